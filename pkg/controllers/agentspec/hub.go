package agentspec

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ErrBadCA means that agents could not use the CA in the hub's configuration.
var ErrBadCA = errors.New("apiServerCA is not a PEM certificate; correct it in the hub's configuration (ConfigMap " + registration.HubConfigMap + ")")

// HubConfigMap returns the ConfigMap with the address, CA and TLS mode of the hub for an agent that a person installed. Agents that the
// hub installs get these with their import.
func HubConfigMap(hub config.Hub, namespace string) (*corev1.ConfigMap, error) {
	if len(hub.APIServerCA) > 0 && !registration.IsCABundle(hub.APIServerCA) {
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
