package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

	"github.com/rancher/wrangler/v3/pkg/randomtoken"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// pending is a request to the hub that is not answered yet. It is written down before it is sent: whatever is lost on the
// way, the answer or the agent, the same request goes out again instead of another one.
type pending struct {
	name         string // of the ClusterRegistration
	clientRandom string
	bootstrap    string // fingerprint of what it was made with
	labels       string // digest of what it says of the cluster; empty where an earlier agent wrote it down
}

// Keys of Secret PendingSecret.
const (
	pendingName         = "request"
	pendingClientRandom = "clientRandom"
	pendingBootstrap    = "bootstrap"
	pendingLabels       = "labels"
)

// requestPrefix and the length of the random part make names that nobody can guess and take first.
const (
	requestPrefix       = "request-"
	requestSuffixLength = 10
)

// newPending makes up a request. Name and clientRandom are independent: the name is public on the hub, and must not tell
// anything of clientRandom, which leads to the credential.
func newPending(bootstrap string) (pending, error) {
	clientRandom, err := randomtoken.Generate()
	if err != nil {
		return pending{}, err
	}
	suffix, err := randomtoken.Generate()
	if err != nil {
		return pending{}, err
	}
	return pending{name: requestPrefix + suffix[:requestSuffixLength], clientRandom: clientRandom, bootstrap: bootstrap}, nil
}

func parsePending(secret *corev1.Secret) pending {
	return pending{
		name:         string(secret.Data[pendingName]),
		clientRandom: string(secret.Data[pendingClientRandom]),
		bootstrap:    string(secret.Data[pendingBootstrap]),
		labels:       string(secret.Data[pendingLabels]),
	}
}

// belongsTo is false as well for a Secret that is damaged.
func (p pending) belongsTo(bootstrap string) bool {
	return p.name != "" && p.clientRandom != "" && p.bootstrap == bootstrap
}

func (p pending) secret(namespace string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: registration.PendingSecret},
		Data: map[string][]byte{
			pendingName:         []byte(p.name),
			pendingClientRandom: []byte(p.clientRandom),
			pendingBootstrap:    []byte(p.bootstrap),
			pendingLabels:       []byte(p.labels),
		},
	}
}

// pending is the request made with this bootstrap, new or from before.
func (m *member) pending(ctx context.Context, fingerprint string, labels map[string]string) (pending, error) {
	older, err := m.secret(ctx, registration.PendingSecret)
	if err != nil {
		return pending{}, err
	}
	if older != nil {
		if p := parsePending(older); p.belongsTo(fingerprint) {
			return p, nil
		}
	}
	p, err := newPending(fingerprint)
	if err != nil {
		return pending{}, err
	}
	p.labels = digestOf(labels)
	secret := p.secret(m.namespace)
	if older != nil {
		secret.ResourceVersion = older.ResourceVersion
	}
	return p, m.write(ctx, secret, older != nil)
}

// saysOf is whether the request says that of the cluster.
func (p pending) saysOf(labels map[string]string) bool {
	return p.labels == "" || p.labels == digestOf(labels)
}

func digestOf(labels map[string]string) string {
	sum := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		sum.Write([]byte(key + "\x00" + labels[key] + "\x00"))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// abandoned says that a request was written down for another bootstrap Secret than the present one. The hub may grant it at
// any moment, and revokes the stored credential then: only another registration makes sure of a credential that stays.
func (m *member) abandoned(ctx context.Context, b *bootstrap, c config.Agent) (bool, error) {
	secret, err := m.secret(ctx, registration.PendingSecret)
	if err != nil || secret == nil {
		return false, err
	}
	clientID, err := m.clientID(ctx, c)
	return err == nil && !parsePending(secret).belongsTo(b.fingerprint(clientID)), err
}

// forgetPending makes the next attempt start with a new request.
func (m *member) forgetPending(ctx context.Context) error {
	secret, err := m.secret(ctx, registration.PendingSecret)
	if err != nil {
		return err
	}
	return m.remove(ctx, secret)
}
