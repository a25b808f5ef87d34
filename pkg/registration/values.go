package registration

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Values is the content of a ClusterRegistrationToken's Secret: a values file for the chart fleet-agent. The hub also uses it
// to install an agent itself.
type Values struct {
	// Workspace is the token's namespace, in which the agent creates its request.
	Workspace string `json:"clusterNamespace"`
	// APIServerURL and APIServerCA (PEM) are the address and the CA of the hub for the agent.
	APIServerURL string `json:"apiServerURL"`
	APIServerCA  string `json:"apiServerCA"`
	// Token is the bearer token for the registration.
	Token string `json:"token"`
	// TokenName is the value that the agent sets on its request as the label fleet.cattle.io/registration-token.
	TokenName string `json:"tokenName"`
	// SystemRegistrationNamespace is the namespace of the agent's answer Secret.
	SystemRegistrationNamespace string `json:"systemRegistrationNamespace"`
	// Internal is set only if the hub does not run in DefaultSystemNamespace.
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
	if RefuseAliases(data) != nil || yaml.Unmarshal(data, &v) != nil {
		return Values{}, fmt.Errorf("the values are not valid YAML, or contain an alias")
	}
	return v, nil
}

// Limits of DecodeLimitedValues, beside what the certificates of the hub take.
const (
	maxValuesSize  = 64 << 10
	maxValuesNodes = 1000
)

// DecodeLimitedValues reads a values file that users may have written: the decoder takes up to 800 bytes for each character of a text such as
// [{},{}]. The file may have more than the limits by what the CA of the hub takes, which the hub has written there itself.
func DecodeLimitedValues(data, hubCA []byte) (Values, error) {
	const encoded = 4 // bytes of YAML for a byte of the CA, at most: an escaped one
	if len(data) > maxValuesSize+encoded*len(hubCA) || MostNodes(data) > maxValuesNodes+MostNodes(hubCA) {
		return Values{}, fmt.Errorf("the values are larger than those of a token")
	}
	return DecodeValues(data)
}

// HoldsValuesOf reports whether a Secret was made for the values of this token. A token of the same name that was deleted may have left one.
func HoldsValuesOf(secret *corev1.Secret, token *fleet.ClusterRegistrationToken) bool {
	return secret.Type == SecretTypeValues && slices.ContainsFunc(secret.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.UID == token.UID
	})
}
