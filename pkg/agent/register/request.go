package register

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/randomtoken"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// BootstrapIdentity is the content of Secret fleet-agent-bootstrap: where the hub is, and the token to register with.
type BootstrapIdentity struct {
	hubclient.Access // its Namespace is the workspace, see Workspace
	// TokenName is the name of the ClusterRegistrationToken.
	TokenName string
	// RegistrationKey identifies the registration that the hub wants; empty if the hub does not say.
	RegistrationKey string

	registrationNamespace string // of the answer Secret
}

// identityKeys are the keys that are read. A values document may have others: it is a values file of the chart, too.
var identityKeys = [...]string{
	registration.BootstrapAPIServerURL, registration.BootstrapAPIServerCA, registration.BootstrapWorkspace,
	registration.BootstrapToken, registration.BootstrapTokenName, registration.BootstrapSystemRegistrationNamespace,
	registration.BootstrapRegistrationKey,
}

// ParseIdentity reads the keys of the Secret, each of them or all in one YAML document under the key "values"; a key of the
// Secret wins. The error names the keys and does not quote values, one of which is a token.
func ParseIdentity(secret *corev1.Secret) (*BootstrapIdentity, error) {
	unusable := func(key, problem string) error {
		return credential.UnusableKey(secret.Namespace, registration.BootstrapSecret, key, problem)
	}
	document := map[string]any{}
	if err := yaml.Unmarshal(secret.Data[registration.ValuesKey], &document); err != nil {
		return nil, unusable(registration.ValuesKey, "it is not a YAML object")
	}
	values := map[string]string{}
	for _, key := range identityKeys {
		text, _ := document[key].(string)
		values[key] = cmp.Or(strings.TrimSpace(string(secret.Data[key])), strings.TrimSpace(text))
	}

	source := "Secret " + registration.BootstrapSecret
	i := &BootstrapIdentity{
		Access: hubclient.Access{
			Endpoint: hubclient.Endpoint{
				Server: values[registration.BootstrapAPIServerURL],
				CA:     bytes.TrimSpace([]byte(values[registration.BootstrapAPIServerCA])),
				Source: source, CASource: "key " + registration.BootstrapAPIServerCA + " of " + source,
			},
			Token: values[registration.BootstrapToken], Namespace: values[registration.BootstrapWorkspace],
		},
		TokenName:             values[registration.BootstrapTokenName],
		RegistrationKey:       values[registration.BootstrapRegistrationKey],
		registrationNamespace: values[registration.BootstrapSystemRegistrationNamespace],
	}

	var errs []error
	if problem := config.CheckServerURL(i.Server); problem != "" {
		errs = append(errs, unusable(registration.BootstrapAPIServerURL, problem))
	}
	if !hubclient.ValidCA(i.CA) {
		errs = append(errs, unusable(registration.BootstrapAPIServerCA, "it is not a PEM certificate"))
	}
	for _, key := range []string{registration.BootstrapWorkspace, registration.BootstrapToken, registration.BootstrapSystemRegistrationNamespace} {
		if values[key] == "" {
			errs = append(errs, unusable(key, "it is empty"))
		}
	}
	return i, errors.Join(errs...)
}

// Workspace is the namespace in which the agent creates its ClusterRegistration.
func (i *BootstrapIdentity) Workspace() string { return i.Namespace }

// EndpointIn returns the endpoint in the TLS mode of ConfigMap fleet-agent, which an import writes together with the Secret.
func (i *BootstrapIdentity) EndpointIn(mode config.TLSMode) hubclient.Endpoint {
	e := i.Endpoint
	e.Mode = mode
	return e
}

// digest identifies this bootstrap identity and the clientID. A request that was made with another digest is useless: perhaps only another
// token can read its credential.
func (i *BootstrapIdentity) digest(clientID string) string {
	parts := []string{i.Server, i.Workspace(), i.registrationNamespace, i.Token, i.TokenName, i.RegistrationKey, clientID}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

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
// grant that request at any moment. Fleet's hub then revokes the credential in use; Muster's hub does so once the agent uses the new one. So the agent
// must register again.
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

// newRequest generates clientRandom. Its digest is the name of the request, which is public on the hub; the name of the answer Secret is
// computed from the clientID and clientRandom itself.
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
			Namespace: i.Workspace(),
			// The agent chooses the name, so that sending the request twice creates one object. generateName then has no effect; it is set as
			// by Fleet's agent.
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
