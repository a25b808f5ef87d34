package hubclient

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Endpoint is where the hub's API server is and how its certificate is verified.
type Endpoint struct {
	Server string
	CA     []byte // PEM; empty if none was given
	Mode   config.TLSMode
	// Source names the object that configures the endpoint, CASource the key of its CA, for messages.
	Source, CASource string
	// Err says why the endpoint cannot be used; nothing is sent to it.
	Err error
}

// Same reports whether both endpoints need the same connection.
func (e Endpoint) Same(other Endpoint) bool {
	return strings.TrimRight(e.Server, "/") == strings.TrimRight(other.Server, "/") &&
		bytes.Equal(e.CA, other.CA) && e.TLSMode() == other.TLSMode()
}

// TLSMode returns the Mode, or the default mode.
func (e Endpoint) TLSMode() config.TLSMode { return cmp.Or(e.Mode, config.TLSModeSystemStore) }

// String returns a text for the log and the status on the hub, with a digest of the CA.
func (e Endpoint) String() string {
	const shown = 12 // enough of the digest to tell two CAs apart
	ca := "without a CA"
	if len(e.CA) > 0 {
		ca = "with CA " + registration.CAHash(e.CA)[:shown]
	}
	return fmt.Sprintf("%s (%s, %s) of %s", cmp.Or(e.Server, "no address"), ca, e.TLSMode(), e.Source)
}

// Candidates are the objects beside the stored credential that say where the hub is.
type Candidates struct {
	// Bootstrap is the endpoint in Secret fleet-agent-bootstrap; nil if there is none, or it belongs to another registration.
	Bootstrap *Endpoint
	// ConfigMap is the endpoint in ConfigMap fleet-agent-hub; nil if there is none.
	ConfigMap *ConfigMapEndpoint
	// Mode is agentTLSMode of ConfigMap fleet-agent.
	Mode config.TLSMode
	// RegisteredWith is the TLS mode and the server with which the agent registered, or those of a later bootstrap Secret. ConfigMaps may not
	// lower the protection of the credential below them.
	RegisteredWith Protection
}

// Protection is how an agent reaches its hub, as far as the protection of the credential depends on it.
type Protection struct {
	Mode   config.TLSMode
	Server string
}

// Protection returns the protection of the endpoint.
func (e Endpoint) Protection() Protection { return Protection{Mode: e.TLSMode(), Server: e.Server} }

// limit makes an endpoint of a ConfigMap unusable if it protects the credential less than the registration did. More users may write
// a ConfigMap than a Secret: they could otherwise have the credential sent without TLS, or to a server that any public authority knows. It
// does not limit the address or, in mode strict, the CA: a hub may move to others. Dial refuses http in mode strict in any case.
func (c Candidates) limit(e Endpoint) Endpoint {
	const remedy = "; only an import by the hub or a new registration token can change that"
	parsed, err := url.Parse(e.Server)
	switch {
	case e.Err != nil || err != nil:
	case c.RegisteredWith.Mode == config.TLSModeStrict && e.TLSMode() != config.TLSModeStrict:
		e.Err = fmt.Errorf("it sets agentTLSMode to %s, and the agent has registered in mode %s%s", e.TLSMode(), config.TLSModeStrict, remedy)
	case parsed.Scheme == "http" && e.Mode != config.TLSModeStrict && strings.TrimRight(e.Server, "/") != strings.TrimRight(c.RegisteredWith.Server, "/"):
		e.Err = fmt.Errorf("the token would be sent unencrypted to %s, and the agent has registered with %s%s", e.Server, c.RegisteredWith.Server, remedy)
	}
	return e
}

// ConfigMapEndpoint is the endpoint in ConfigMap fleet-agent-hub, with a digest by which the agent notices a change.
type ConfigMapEndpoint struct {
	Endpoint
	Digest string
}

// Digest returns the digest of the ConfigMap; empty if there is none.
func (c Candidates) Digest() string {
	if c.ConfigMap == nil {
		return ""
	}
	return c.ConfigMap.Digest
}

// Preferred returns the endpoint to which the agent should switch from the current one; nil if it should stay.
//
// The bootstrap Secret wins, because an import writes it and imports are deliberate. Once it is used up, ConfigMap
// fleet-agent-hub counts only if its digest differs from seen, the digest at the last switch: an older content must not undo a
// newer import, or the agent would switch back and forth without end. ConfigMap fleet-agent has no address; its TLS mode applies
// where the other objects set none.
func (c Candidates) Preferred(current Endpoint, seen string) *Endpoint {
	var preferred Endpoint
	switch {
	case c.Bootstrap != nil:
		preferred = *c.Bootstrap
	case c.ConfigMap != nil && c.ConfigMap.Digest != seen:
		preferred = c.configMapEndpoint()
	case c.ConfigMap == nil || c.ConfigMap.Mode == "":
		preferred = current
		preferred.Mode, preferred.Source = c.Mode, "ConfigMap "+registration.AgentConfigMap
		preferred = c.limit(preferred)
	default:
		return nil
	}
	if preferred.Same(current) {
		return nil
	}
	return &preferred
}

// Fallback returns an endpoint to try when the current one does not work and no other is preferred: the one in ConfigMap
// fleet-agent-hub, even if its content is older than the last switch. A chart's values may have led the agent away from it, to
// an address that is gone.
func (c Candidates) Fallback(current Endpoint) *Endpoint {
	if c.Bootstrap != nil || c.ConfigMap == nil {
		return nil
	}
	fallback := c.configMapEndpoint()
	if fallback.Same(current) {
		return nil
	}
	return &fallback
}

func (c Candidates) configMapEndpoint() Endpoint {
	e := c.ConfigMap.Endpoint
	e.Mode = cmp.Or(e.Mode, c.Mode)
	return c.limit(e)
}

// ParseConfigMap reads ConfigMap fleet-agent-hub; nil if there is none. An unusable ConfigMap becomes an endpoint with an Err:
// the agent keeps its current endpoint and reports the error to the hub.
func ParseConfigMap(configMap *corev1.ConfigMap) *ConfigMapEndpoint {
	if configMap == nil {
		return nil
	}
	source := "ConfigMap " + registration.AgentHubConfigMap
	e := &ConfigMapEndpoint{Endpoint: Endpoint{
		Server: strings.TrimSpace(configMap.Data[registration.BootstrapAPIServerURL]),
		CA:     bytes.TrimSpace([]byte(configMap.Data[registration.BootstrapAPIServerCA])),
		Mode:   config.TLSMode(strings.TrimSpace(configMap.Data[registration.AgentHubTLSMode])),
		Source: source, CASource: "key " + registration.BootstrapAPIServerCA + " of " + source,
	}}
	sum := sha256.Sum256([]byte(strings.Join([]string{e.Server, string(e.CA), string(e.Mode)}, "\x00")))
	e.Digest = hex.EncodeToString(sum[:])
	if problem := config.CheckServerURL(e.Server); problem != "" {
		e.Err = fmt.Errorf("its key %s is unusable: %s", registration.BootstrapAPIServerURL, problem)
	} else if !ValidCA(e.CA) {
		e.Err = fmt.Errorf("its key %s is unusable: it is not a PEM certificate", registration.BootstrapAPIServerCA)
	}
	return e
}

// ValidCA reports whether a CA is valid. An empty one is: the TLS mode decides whether a CA is needed.
func ValidCA(pem []byte) bool {
	return len(pem) == 0 || registration.IsCABundle(pem)
}

// Access is an endpoint and a bearer token for it. Other ways to authenticate are not supported: a proxy in front of the hub
// passes bearer tokens only.
type Access struct {
	Endpoint
	Token string
	// Namespace is the namespace of a kubeconfig's context: the workspace for a bootstrap token, the cluster namespace for a credential.
	Namespace string
}

// Kubeconfig returns the access in the form in which it is stored. It contains the CA in every TLS mode, for other readers of the Secret.
func (a Access) Kubeconfig() ([]byte, error) {
	return transport.Kubeconfig(a.Server, a.CA, a.Token, a.Namespace)
}

// ParseKubeconfig reads the address, the data of the CA, the token and the namespace of the current context, whatever its name. It ignores
// other ways to authenticate or to verify the server: a kubeconfig that needs one of them does not work, or is an error because it has no
// token. Errors do not quote the content, which includes a token.
func ParseKubeconfig(data []byte) (Access, error) {
	config, err := clientcmd.Load(data)
	if err != nil || len(data) == 0 {
		return Access{}, errors.New("it is not a kubeconfig")
	}
	kubeContext := config.Contexts[config.CurrentContext]
	if kubeContext == nil {
		return Access{}, errors.New("its current context does not exist")
	}
	cluster, user := config.Clusters[kubeContext.Cluster], config.AuthInfos[kubeContext.AuthInfo]
	if cluster == nil || user == nil {
		return Access{}, errors.New("its current context names a cluster or user that does not exist")
	}
	access := Access{
		Endpoint: Endpoint{
			Server: cluster.Server, CA: bytes.TrimSpace(cluster.CertificateAuthorityData),
			Source:   "Secret " + registration.CredentialSecret,
			CASource: "apiServerCA in a new Secret " + registration.BootstrapSecret,
		},
		Token: user.Token, Namespace: kubeContext.Namespace,
	}
	return access, access.validate()
}

func (a Access) validate() error {
	if problem := config.CheckServerURL(a.Server); problem != "" {
		return errors.New("its server is unusable: " + problem)
	}
	if a.Token == "" {
		return errors.New("its user has no bearer token")
	}
	if !ValidCA(a.CA) {
		return errors.New("its certificate-authority-data is not a PEM certificate")
	}
	return nil
}

// At returns the access with another endpoint.
func (a Access) At(e Endpoint) Access {
	a.Endpoint = e
	return a
}

// Same reports whether both need the same connection.
func (a Access) Same(b Access) bool {
	return a.Endpoint.Same(b.Endpoint) && a.Token == b.Token && a.Namespace == b.Namespace
}
