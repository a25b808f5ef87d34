package register

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

	"github.com/rancher/wrangler/v3/pkg/randomtoken"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/pkg/agent/member"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// pendingRequest is a request without an answer. The agent stores it before it sends it, and sends the same one again after the answer was lost
// or the agent was killed.
type pendingRequest struct {
	name           string // of the ClusterRegistration
	clientRandom   string
	identityDigest string // of its bootstrap identity and clientID
	labelsDigest   string // of its cluster labels
}

// Keys of Secret fleet-agent-pending.
const (
	keyName           = "request"
	keyClientRandom   = "clientRandom"
	keyIdentityDigest = "bootstrap"
	keyLabelsDigest   = "labels"
)

// loadOrCreateRequest returns the stored request if it was made with this bootstrap identity, or else stores a new one.
func loadOrCreateRequest(ctx context.Context, m *member.Member, identityDigest string, labels map[string]string) (pendingRequest, error) {
	older, err := m.Secret(ctx, registration.PendingSecret)
	if err != nil {
		return pendingRequest{}, err
	}
	if older != nil {
		if request := parseRequest(older); request.madeWith(identityDigest) {
			return request, nil
		}
	}
	request, err := newRequest(identityDigest, labels)
	if err != nil {
		return pendingRequest{}, err
	}
	secret := request.secret(m.Namespace)
	if older != nil {
		secret.ResourceVersion = older.ResourceVersion
	}
	return request, m.WriteSecret(ctx, secret, older != nil)
}

// HasOtherRequest reports whether the stored request was made with another bootstrap identity than the present one. The hub may
// grant that request at any moment, and then revokes the credential in use: the agent must register again.
func HasOtherRequest(ctx context.Context, m *member.Member, i *BootstrapIdentity, c config.Agent) (bool, error) {
	secret, err := m.Secret(ctx, registration.PendingSecret)
	if err != nil || secret == nil {
		return false, err
	}
	clientID, err := m.ClientID(ctx, c)
	return err == nil && !parseRequest(secret).madeWith(i.digest(clientID)), err
}

// DeletePendingRequest deletes the stored request: the next attempt makes a new one.
func DeletePendingRequest(ctx context.Context, m *member.Member) error {
	secret, err := m.Secret(ctx, registration.PendingSecret)
	if err != nil {
		return err
	}
	return m.DeleteSecret(ctx, secret)
}

// newRequest generates clientRandom. Its digest is the name of the request, which is public on the hub; the name of the credential Secret
// depends on clientRandom itself.
func newRequest(identityDigest string, labels map[string]string) (pendingRequest, error) {
	clientRandom, err := randomtoken.Generate()
	if err != nil {
		return pendingRequest{}, err
	}
	return pendingRequest{
		name: registration.RequestName(clientRandom), clientRandom: clientRandom,
		identityDigest: identityDigest, labelsDigest: digestOf(labels),
	}, nil
}

func parseRequest(secret *corev1.Secret) pendingRequest {
	return pendingRequest{
		name:           string(secret.Data[keyName]),
		clientRandom:   string(secret.Data[keyClientRandom]),
		identityDigest: string(secret.Data[keyIdentityDigest]),
		labelsDigest:   string(secret.Data[keyLabelsDigest]),
	}
}

func (r pendingRequest) secret(namespace string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: registration.PendingSecret},
		Data: map[string][]byte{
			keyName:           []byte(r.name),
			keyClientRandom:   []byte(r.clientRandom),
			keyIdentityDigest: []byte(r.identityDigest),
			keyLabelsDigest:   []byte(r.labelsDigest),
		},
	}
}

// madeWith reports whether the request was made with this identity. It returns false for a damaged Secret.
func (r pendingRequest) madeWith(identityDigest string) bool {
	return r.name != "" && r.clientRandom != "" && r.identityDigest == identityDigest
}

func digestOf(labels map[string]string) string {
	sum := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		sum.Write([]byte(key + "\x00" + labels[key] + "\x00"))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// clusterRegistration returns the object to send. It names the token, which the hub then permits to read the answer. The annotation announces that
// the agent renews its credential, so that the hub may issue one that expires.
func clusterRegistration(r pendingRequest, i *BootstrapIdentity, clientID string, labels map[string]string, pod string) *fleet.ClusterRegistration {
	clusterLabels := map[string]string{}
	maps.Copy(clusterLabels, labels)
	if pod != "" && isLabelValue(pod) {
		clusterLabels[fleet.CreatedByAgentPodLabel] = pod
	}
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: i.Namespace,
			// The agent chooses the name, so that sending the request twice creates one object. All agents use the prefix.
			Name:         r.name,
			GenerateName: registration.RequestPrefix,
			Labels:       tokenLabel(i.TokenName),
			Annotations:  map[string]string{registration.RenewalAnnotation: "true"},
		},
		Spec: fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: r.clientRandom, ClusterLabels: clusterLabels},
	}
}

// tokenLabel shortens a name that is longer than a label value may be, as the hub does; otherwise the API server would reject the
// whole request.
func tokenLabel(token string) map[string]string {
	value := registration.LabelValue(token)
	if token == "" || !isLabelValue(value) {
		return nil
	}
	return map[string]string{fleet.RegistrationTokenLabel: value}
}

func isLabelValue(value string) bool { return len(validation.IsValidLabelValue(value)) == 0 }
