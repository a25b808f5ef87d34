package agent

import (
	"cmp"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Keys of Secret fleet-agent that only this agent knows. They say by which TLS mode the credential worked, what ConfigMap
// fleet-agent-hub said then, and with which ClusterRegistration the agent got it.
const (
	credentialTLSMode = "agentTLSMode"
	credentialSettled = "agentHubSettled"
	credentialRequest = "request"
)

// stored is what Secret fleet-agent keeps: the credential of a registered agent and whose it is.
type stored struct {
	access           hubAccess // its namespace is the deployment namespace
	clusterNamespace string
	clusterName      string
	registration     string // the value of the bootstrap Secret it was obtained with
	request          string // name of the ClusterRegistration; empty in a Secret of an earlier agent

	mode    config.TLSMode // it works in; empty in a Secret of an earlier agent
	settled string         // digest of ConfigMap fleet-agent-hub when this way was taken; empty if there was none
}

func parseStored(secret *corev1.Secret) (*stored, error) {
	bad := func(key, why string) error {
		return malformed(secret.Namespace, registration.CredentialSecret, key, why)
	}
	access, err := parseKubeconfig(secret.Data[registration.CredentialKubeconfig])
	if err != nil {
		return nil, bad(registration.CredentialKubeconfig, err.Error())
	}
	access.namespace = cmp.Or(string(secret.Data[registration.CredentialDeploymentNamespace]), access.namespace)
	s := &stored{
		access:           access,
		clusterNamespace: string(secret.Data[registration.CredentialClusterNamespace]),
		clusterName:      string(secret.Data[registration.CredentialClusterName]),
		registration:     string(secret.Data[registration.BootstrapRegistration]),
		request:          string(secret.Data[credentialRequest]),
		mode:             config.TLSMode(secret.Data[credentialTLSMode]),
		settled:          string(secret.Data[credentialSettled]),
	}
	var errs []error
	for key, value := range map[string]string{
		registration.CredentialDeploymentNamespace: access.namespace,
		registration.CredentialClusterNamespace:    s.clusterNamespace,
		registration.CredentialClusterName:         s.clusterName,
	} {
		if value == "" {
			errs = append(errs, bad(key, "it is empty"))
		}
	}
	return s, errors.Join(errs...)
}

// secret is the whole Secret to store. It replaces the data of an older one and keeps its metadata: with the resource
// version in it, a write in between makes the update fail instead of being lost.
func (s *stored) secret(namespace string, older *corev1.Secret) (*corev1.Secret, error) {
	kubeconfig, err := s.access.kubeconfig()
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: registration.CredentialSecret}}
	if older != nil {
		secret = older.DeepCopy()
	}
	secret.Data = map[string][]byte{
		registration.CredentialKubeconfig:          kubeconfig,
		registration.CredentialDeploymentNamespace: []byte(s.access.namespace),
		registration.CredentialClusterNamespace:    []byte(s.clusterNamespace),
		registration.CredentialClusterName:         []byte(s.clusterName),
	}
	for key, value := range map[string]string{
		registration.BootstrapRegistration: s.registration, credentialRequest: s.request,
		credentialTLSMode: string(s.mode), credentialSettled: s.settled,
	} {
		if value != "" {
			secret.Data[key] = []byte(value)
		}
	}
	return secret, nil
}

// renewed is the same with another token.
func (s *stored) renewed(token string) *stored {
	copied := *s
	copied.access.token = token
	return &copied
}

// sameWork says that sessions with either credential would do the same.
func (s *stored) sameWork(other *stored) bool {
	return s.access.same(other.access) && tlsMode(s.mode) == tlsMode(other.mode)
}

// granted is the Secret with which the hub answers a request.
type granted struct {
	token, deploymentNamespace, clusterNamespace, clusterName string
}

// parseGranted says false while the hub has not filled in everything.
func parseGranted(secret *corev1.Secret) (granted, bool) {
	g := granted{
		token:               string(secret.Data[registration.CredentialToken]),
		deploymentNamespace: string(secret.Data[registration.CredentialDeploymentNamespace]),
		clusterNamespace:    string(secret.Data[registration.CredentialClusterNamespace]),
		clusterName:         string(secret.Data[registration.CredentialClusterName]),
	}
	return g, g.token != "" && g.deploymentNamespace != "" && g.clusterNamespace != "" && g.clusterName != ""
}

// stored joins the answer with where the hub is, which the agent knows from the bootstrap Secret alone.
func (g granted) stored(b *bootstrap, request string, from sources) *stored {
	return &stored{
		request: request,
		mode:    tlsMode(from.mode), settled: from.settled(),
		access: hubAccess{
			server: b.apiServerURL, ca: b.apiServerCA, token: g.token, namespace: g.deploymentNamespace,
			caSource: b.hubAccess().caSource,
		},
		clusterNamespace: g.clusterNamespace,
		clusterName:      g.clusterName,
		registration:     b.registration,
	}
}
