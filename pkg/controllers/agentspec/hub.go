package agentspec

import (
	"crypto/x509"
	"encoding/pem"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ErrBadCA says that the hub's configuration has something as its CA that agents could not use.
var ErrBadCA = errors.New("apiServerCA is no PEM certificate; correct it in the hub's configuration (ConfigMap " + registration.HubConfigMap + ")")

// HubConfigMap tells an agent that registered by itself where its hub is, as the configuration says. Agents that the hub
// installs learn it from their import.
func HubConfigMap(hub config.Hub, namespace string) (*corev1.ConfigMap, error) {
	if len(hub.APIServerCA) > 0 && !IsCertificate(hub.APIServerCA) {
		return nil, ErrBadCA
	}
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: registration.AgentHubConfigMap},
		Data: map[string]string{
			registration.BootstrapAPIServerURL: hub.APIServerURL,
			registration.BootstrapAPIServerCA:  string(hub.APIServerCA),
			registration.AgentHubTLSMode:       string(hub.TLSMode()),
		},
	}, nil
}

// IsCertificate says whether the data begins with a certificate in PEM.
func IsCertificate(data []byte) bool {
	block, _ := pem.Decode(data)
	if block == nil {
		return false
	}
	_, err := x509.ParseCertificate(block.Bytes)
	return err == nil
}
