// Package credential handles the agent's request identity: the credential in Secret fleet-agent, its use on a connection to the
// hub, and its renewal.
package credential

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/config"
	tokens "github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Keys of Secret fleet-agent that other agents do not know.
const (
	keyTLSMode          = "agentTLSMode"
	keyHubConfigDigest  = "agentHubSettled"
	keyRequest          = "request"
	keyRegisteredMode   = "registeredTLSMode"
	keyRegisteredServer = "registeredServer"
)

// Stored is the content of Secret fleet-agent: the credential of a registered agent, and its Cluster.
type Stored struct {
	// Access is the endpoint and the token. Its Namespace is the cluster namespace, see ClusterNamespace; its Mode is empty in a Secret of Fleet's
	// agent.
	hubclient.Access
	// Workspace and ClusterName identify the Cluster on the hub.
	Workspace, ClusterName string
	// Lease is the name of the Lease for heartbeats, in ClusterNamespace; empty if the hub makes none.
	Lease string
	// RegistrationKey is the value of key "registration" of the bootstrap Secret with which the credential was obtained.
	RegistrationKey string
	// Request is the name of the ClusterRegistration; empty in a Secret of Fleet's agent.
	Request string
	// HubConfigDigest is the digest of ConfigMap fleet-agent-hub when the endpoint was chosen; empty if there was none.
	HubConfigDigest string
	// RegisteredWith is the TLS mode and the server with which the agent registered, or those of a later bootstrap Secret; empty in a Secret
	// of Fleet's agent.
	RegisteredWith hubclient.Protection
}

// ClusterNamespace is the namespace of the BundleDeployments and of the Lease.
func (s *Stored) ClusterNamespace() string { return s.Namespace }

// CredentialID returns the credential ID of the token; empty if the token has none.
func (s *Stored) CredentialID() string {
	claims, _ := tokens.Inspect(tokens.Token(s.Token)) // a token that is not readable has none
	return claims.CredentialID
}

// HubID identifies the hub, by its address and a digest of its CA, and the Cluster there. It is another one after any of these has changed.
func (s *Stored) HubID() string {
	return fmt.Sprintf("%s %s %s/%s", strings.TrimRight(s.Server, "/"), registration.CAHash(s.CA), s.Workspace, s.ClusterName)
}

// Parse reads Secret fleet-agent. The error names the key and does not quote a value.
func Parse(secret *corev1.Secret) (*Stored, error) {
	unusable := func(key, problem string) error {
		return UnusableKey(secret.Namespace, registration.CredentialSecret, key, problem)
	}
	access, err := hubclient.ParseKubeconfig(secret.Data[registration.CredentialKubeconfig])
	if err != nil {
		return nil, unusable(registration.CredentialKubeconfig, err.Error())
	}
	access.Mode = config.TLSMode(secret.Data[keyTLSMode])
	access.Namespace = cmp.Or(string(secret.Data[registration.CredentialDeploymentNamespace]), access.Namespace)
	s := &Stored{
		Access:          access,
		Workspace:       string(secret.Data[registration.CredentialWorkspace]),
		ClusterName:     string(secret.Data[registration.CredentialClusterName]),
		Lease:           string(secret.Data[registration.CredentialLease]),
		RegistrationKey: string(secret.Data[registration.BootstrapRegistrationKey]),
		Request:         string(secret.Data[keyRequest]),
		HubConfigDigest: string(secret.Data[keyHubConfigDigest]),
		RegisteredWith: hubclient.Protection{
			Mode: config.TLSMode(secret.Data[keyRegisteredMode]), Server: string(secret.Data[keyRegisteredServer]),
		},
	}
	var errs []error
	for key, value := range map[string]string{
		registration.CredentialDeploymentNamespace: s.ClusterNamespace(),
		registration.CredentialWorkspace:           s.Workspace,
		registration.CredentialClusterName:         s.ClusterName,
	} {
		if value == "" {
			errs = append(errs, unusable(key, "it is empty"))
		}
	}
	return s, errors.Join(errs...)
}

// Store replaces the content of Secret fleet-agent with one write, so that there is a credential at every moment.
func (s *Stored) Store(ctx context.Context, m *member.Member) error {
	older, err := m.Secret(ctx, registration.CredentialSecret)
	if err != nil {
		return err
	}
	return s.Replace(ctx, m, older)
}

// Replace writes Secret fleet-agent in place of the older one that the caller has read; nil if there is none. The write fails
// if the Secret has changed since.
func (s *Stored) Replace(ctx context.Context, m *member.Member, older *corev1.Secret) error {
	secret, err := s.secret(m.Namespace, older)
	if err != nil {
		return err
	}
	return m.WriteSecret(ctx, secret, older != nil)
}

// secret keeps the metadata of the older Secret, the resource version included, and replaces all of its data.
func (s *Stored) secret(namespace string, older *corev1.Secret) (*corev1.Secret, error) {
	kubeconfig, err := s.Kubeconfig()
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: registration.CredentialSecret}}
	if older != nil {
		secret = older.DeepCopy()
	}
	secret.Data = map[string][]byte{
		registration.CredentialKubeconfig:          kubeconfig,
		registration.CredentialDeploymentNamespace: []byte(s.ClusterNamespace()),
		registration.CredentialWorkspace:           []byte(s.Workspace),
		registration.CredentialClusterName:         []byte(s.ClusterName),
	}
	for key, value := range map[string]string{
		registration.BootstrapRegistrationKey: s.RegistrationKey, keyRequest: s.Request, keyTLSMode: string(s.Mode), keyHubConfigDigest: s.HubConfigDigest,
		keyRegisteredMode: string(s.RegisteredWith.Mode), keyRegisteredServer: s.RegisteredWith.Server,
		registration.CredentialLease: s.Lease,
	} {
		if value != "" {
			secret.Data[key] = []byte(value)
		}
	}
	return secret, nil
}

// WithToken returns the credential with another token.
func (s *Stored) WithToken(token string) *Stored {
	copied := *s
	copied.Token = token
	return &copied
}

// MovedTo returns the credential at another endpoint, with the present digest of ConfigMap fleet-agent-hub. The bootstrap Secret, unlike a
// ConfigMap, may lower the protection of the credential: it replaces RegisteredWith.
func (s *Stored) MovedTo(e hubclient.Endpoint, fromBootstrap bool, hubConfigDigest string) *Stored {
	copied := *s
	e.Mode = e.TLSMode()
	if copied.RegisteredWith == (hubclient.Protection{}) {
		copied.RegisteredWith = s.Protection()
	}
	if fromBootstrap {
		copied.RegisteredWith = e.Protection()
	}
	copied.Access, copied.HubConfigDigest = s.At(e), hubConfigDigest
	return &copied
}

// UnusableKey returns the error about a key of a Secret, with the Secret, the key and the remedy.
func UnusableKey(namespace, secret, key, problem string) error {
	remedy := "create the Secret again with the values of a ClusterRegistrationToken"
	if secret == registration.CredentialSecret {
		remedy = "register the agent again with a new Secret " + registration.BootstrapSecret
	}
	return fmt.Errorf("key %s of Secret %s/%s is unusable: %s; correct it, or %s", key, namespace, secret, problem, remedy)
}
