package v1alpha1

import (
	"github.com/rancher/wrangler/v3/pkg/genericcondition"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Secret-Name",type=string,JSONPath=`.status.secretName`

// ClusterRegistrationToken is the permission to register clusters in its namespace. A person creates it to install
// agents by hand; the hub creates one for each cluster it imports.
type ClusterRegistrationToken struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is set by whoever creates the token.
	// +optional
	Spec ClusterRegistrationTokenSpec `json:"spec,omitempty"`
	// Status is set by the hub when the token can be used and until when.
	// +optional
	Status ClusterRegistrationTokenStatus `json:"status,omitempty"`
}

// ClusterRegistrationTokenSpec says how long a token lives.
type ClusterRegistrationTokenSpec struct {
	// TTL is set by whoever creates the token to how long, from its creation, it may be used; the hub deletes it
	// afterwards. It is a Go duration such as "240h" or "30m". Absent or "0" means that it does not expire.
	// +optional
	// +nullable
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == '0' || (self.matches('^([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))*$') && duration(self) <= duration('2562047h'))",message="ttl must be '0' or a Go duration such as '240h' or '30m'; units d and w are not known"
	TTL *metav1.Duration `json:"ttl,omitempty"`
}

// ClusterRegistrationTokenStatus is what the hub made of a token.
type ClusterRegistrationTokenStatus struct {
	// Expires is set by the hub to the time at which the token ends. Absent means never.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`

	// SecretName is set by the hub, once the token can be used, to the Secret in the token's namespace whose key "values"
	// is a values file for the chart fleet-agent.
	// +optional
	// +nullable
	SecretName string `json:"secretName,omitempty"`

	// Conditions are set by the hub whenever they change: Ready, with the reason while the token cannot be used.
	// +optional
	Conditions []genericcondition.GenericCondition `json:"conditions,omitempty"`
}
