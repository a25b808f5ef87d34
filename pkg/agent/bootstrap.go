package agent

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/pkg/registration"
)

// bootstrap is what Secret fleet-agent-bootstrap says: where the hub is, and how to register there.
type bootstrap struct {
	apiServerURL                string
	apiServerCA                 []byte
	clusterNamespace            string
	token                       string
	tokenName                   string
	systemRegistrationNamespace string
	registration                string
}

// parseBootstrap reads the keys of the Secret, each of them or all in one YAML document under the key "values"; a key of
// its own wins. The error never quotes a value: one of them is a token.
func parseBootstrap(secret *corev1.Secret) (*bootstrap, error) {
	values, err := bootstrapValues(secret)
	if err != nil {
		return nil, err
	}
	b := &bootstrap{
		apiServerURL:                values[registration.BootstrapAPIServerURL],
		apiServerCA:                 bytes.TrimSpace([]byte(values[registration.BootstrapAPIServerCA])),
		clusterNamespace:            values[registration.BootstrapClusterNamespace],
		token:                       values[registration.BootstrapToken],
		tokenName:                   values[registration.BootstrapTokenName],
		systemRegistrationNamespace: values[registration.BootstrapSystemRegistrationNamespace],
		registration:                values[registration.BootstrapRegistration],
	}
	return b, b.validate(secret.Namespace)
}

// bootstrapKeys are the keys read; a values document may have more, for it is a values file of the chart as well.
var bootstrapKeys = [...]string{
	registration.BootstrapAPIServerURL, registration.BootstrapAPIServerCA, registration.BootstrapClusterNamespace,
	registration.BootstrapToken, registration.BootstrapTokenName, registration.BootstrapSystemRegistrationNamespace,
	registration.BootstrapRegistration,
}

func bootstrapValues(secret *corev1.Secret) (map[string]string, error) {
	document := map[string]any{}
	if err := yaml.Unmarshal(secret.Data[registration.BootstrapValues], &document); err != nil {
		return nil, malformed(secret.Namespace, registration.BootstrapSecret, registration.BootstrapValues, "it is not a YAML object")
	}
	values := map[string]string{}
	for _, key := range bootstrapKeys {
		text, _ := document[key].(string)
		values[key] = cmp.Or(strings.TrimSpace(string(secret.Data[key])), strings.TrimSpace(text))
	}
	return values, nil
}

func (b *bootstrap) validate(namespace string) error {
	bad := func(key, why string) error { return malformed(namespace, registration.BootstrapSecret, key, why) }
	var errs []error
	if why := checkServerURL(b.apiServerURL); why != "" {
		errs = append(errs, bad(registration.BootstrapAPIServerURL, why))
	}
	if !validCA(b.apiServerCA) {
		errs = append(errs, bad(registration.BootstrapAPIServerCA, "it is not a PEM certificate"))
	}
	for key, value := range map[string]string{
		registration.BootstrapClusterNamespace:            b.clusterNamespace,
		registration.BootstrapToken:                       b.token,
		registration.BootstrapSystemRegistrationNamespace: b.systemRegistrationNamespace,
	} {
		if value == "" {
			errs = append(errs, bad(key, "it is empty"))
		}
	}
	return errors.Join(errs...)
}

// fingerprint identifies this very bootstrap Secret for this clientID: a request made with another one is not ours to
// wait for, since its credential may be readable by another token only.
func (b *bootstrap) fingerprint(clientID string) string {
	parts := []string{
		b.apiServerURL, b.clusterNamespace, b.systemRegistrationNamespace, b.token, b.tokenName, b.registration, clientID,
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// hubAccess is how to reach the hub with the registration token.
func (b *bootstrap) hubAccess() hubAccess {
	return hubAccess{
		server: b.apiServerURL, ca: b.apiServerCA, token: b.token, namespace: b.clusterNamespace,
		caSource: "key " + registration.BootstrapAPIServerCA + " of Secret " + registration.BootstrapSecret,
	}
}

// malformed names the Secret, the key and what to do about it.
func malformed(namespace, secret, key, why string) error {
	return fmt.Errorf("key %s of Secret %s/%s is unusable: %s; correct it, or delete the Secret and have the hub make it again",
		key, namespace, secret, why)
}
