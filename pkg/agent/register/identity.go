package register

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// BootstrapIdentity is the content of Secret fleet-agent-bootstrap: where the hub is, and the token to register with.
type BootstrapIdentity struct {
	hubclient.Access // its Namespace is the one of the ClusterRegistrations
	// TokenName is the name of the ClusterRegistrationToken.
	TokenName string
	// RegistrationKey identifies the registration that the hub wants; empty if the hub does not say.
	RegistrationKey string

	systemNamespace string // of the Secrets with the credentials
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
	if err := yaml.Unmarshal(secret.Data[registration.BootstrapValues], &document); err != nil {
		return nil, unusable(registration.BootstrapValues, "it is not a YAML object")
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
		TokenName:       values[registration.BootstrapTokenName],
		RegistrationKey: values[registration.BootstrapRegistrationKey],
		systemNamespace: values[registration.BootstrapSystemRegistrationNamespace],
	}

	var errs []error
	if problem := hubclient.CheckServer(i.Server); problem != "" {
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

// EndpointIn returns the endpoint in the TLS mode of ConfigMap fleet-agent, which an import writes together with the Secret.
func (i *BootstrapIdentity) EndpointIn(mode config.TLSMode) hubclient.Endpoint {
	e := i.Endpoint
	e.Mode = mode
	return e
}

// digest identifies this bootstrap identity and the clientID. A request that was made with another digest is useless: perhaps only another
// token can read its credential.
func (i *BootstrapIdentity) digest(clientID string) string {
	parts := []string{i.Server, i.Namespace, i.systemNamespace, i.Token, i.TokenName, i.RegistrationKey, clientID}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}
