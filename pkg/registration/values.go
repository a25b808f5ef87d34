package registration

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// Values is the content of a ClusterRegistrationToken's Secret: a values file for the chart fleet-agent, and what the hub
// itself installs an agent with.
type Values struct {
	// ClusterNamespace is the token's namespace, where the agent asks to be registered.
	ClusterNamespace string `json:"clusterNamespace"`
	// APIServerURL and APIServerCA (PEM) are where and how the agent reaches the hub.
	APIServerURL string `json:"apiServerURL"`
	APIServerCA  string `json:"apiServerCA"`
	// Token is the bearer token to register with.
	Token string `json:"token"`
	// TokenName is what the agent puts on its request as the label fleet.cattle.io/registration-token.
	TokenName string `json:"tokenName"`
	// SystemRegistrationNamespace is where the agent finds its credential.
	SystemRegistrationNamespace string `json:"systemRegistrationNamespace"`
	// Internal is set only where the hub does not live in DefaultSystemNamespace.
	Internal *ValuesInternal `json:"internal,omitempty"`
}

// ValuesInternal is the part of Values that a person does not set.
type ValuesInternal struct {
	SystemNamespace string `json:"systemNamespace"`
}

// EncodeValues renders the values file.
func EncodeValues(v Values) ([]byte, error) { return yaml.Marshal(v) }

// DecodeValues reads a values file. Its error never repeats the content, which holds a token.
func DecodeValues(data []byte) (Values, error) {
	var v Values
	if err := yaml.Unmarshal(data, &v); err != nil {
		return Values{}, fmt.Errorf("the values are no YAML document")
	}
	return v, nil
}
