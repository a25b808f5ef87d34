package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status

// Content is the resources of a Bundle as they are delivered to agents. It never changes: its name is a digest of the
// resources. The component that creates BundleDeployments creates it; agents only read it.
type Content struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Content is set when the object is created to the gzip of the resources as JSON.
	// +optional
	// +nullable
	Content []byte `json:"content,omitempty"`

	// SHA256Sum is set when the object is created to the SHA-256 of the JSON that Content has compressed, in hexadecimal.
	// +optional
	SHA256Sum string `json:"sha256sum,omitempty"`

	// Status is set by controllers of Fleet.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status ContentStatus `json:"status,omitempty"`
}

// ContentStatus says whether a Content is still needed.
type ContentStatus struct {
	// ReferenceCount is set by controllers of Fleet to the number of BundleDeployments that name this Content; at zero it
	// may be deleted.
	// +optional
	ReferenceCount int `json:"referenceCount,omitempty"`
}
