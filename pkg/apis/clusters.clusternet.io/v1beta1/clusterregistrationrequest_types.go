package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=clsrr,categories=clusternet
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="CLUSTER ID",type=string,JSONPath=`.spec.clusterId`
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.result`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`

// ClusterRegistrationRequest is the request of a Clusternet agent to become, or to remain, the agent of a cluster. Its name is
// "clusternet-" and the clusterId. The hub creates a ClusterRegistration from it, and writes the decision about that into the status.
type ClusterRegistrationRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is set by the agent when it creates the request. It cannot be changed, because the hub decides on the request as it was
	// created.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a ClusterRegistrationRequest cannot be changed; delete it and restart the agent"
	Spec ClusterRegistrationRequestSpec `json:"spec"`
	// Status is set by the hub when it decides.
	// +optional
	Status ClusterRegistrationRequestStatus `json:"status,omitempty"`
}

// ClusterRegistrationRequestSpec contains the claims of an agent about its cluster. The hub does not trust them.
type ClusterRegistrationRequestSpec struct {
	// ClusterID is set by the agent to the identity of its cluster, the UID of its Lease.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$`
	ClusterID string `json:"clusterId"`

	// ClusterType is set by the agent to its configured type. The hub ignores it.
	// +optional
	ClusterType string `json:"clusterType,omitempty"`

	// ClusterName is set by the agent to the name that it requests. The hub ignores it.
	// +optional
	// +kubebuilder:validation:MaxLength=30
	ClusterName string `json:"clusterName,omitempty"`

	// ClusterNamespace is set by the agent to the namespace that it requests. The hub ignores it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	ClusterNamespace string `json:"clusterNamespace,omitempty"`

	// ClusterLabels is set by the agent to its configured labels. The hub sets them on a Cluster that it creates, except labels with
	// reserved prefixes.
	// +optional
	// +kubebuilder:validation:MaxProperties=256
	ClusterLabels map[string]string `json:"clusterLabels,omitempty"`

	// SyncMode is set by the agent to its configured mode. The hub ignores it: it deploys nothing through these agents.
	// +optional
	// +kubebuilder:validation:Enum=Push;Pull;Dual
	// +kubebuilder:default=Pull
	SyncMode string `json:"syncMode,omitempty"`
}

// The values of status.result. An agent waits until it is ResultApproved.
const (
	ResultApproved = "Approved"
	ResultDenied   = "Denied"
)

// ClusterRegistrationRequestStatus is the hub's answer to a request.
type ClusterRegistrationRequestStatus struct {
	// Result is set by the hub to Approved or Denied; absent while the request waits.
	// +optional
	Result string `json:"result,omitempty"`

	// ErrorMessage is set by the hub to the reason why a request waits or is denied, and to what can be done.
	// +optional
	ErrorMessage string `json:"errorMessage,omitempty"`

	// DedicatedNamespace is set by the hub to the cluster namespace, in which the agent finds its ManagedCluster.
	// +optional
	DedicatedNamespace string `json:"dedicatedNamespace,omitempty"`

	// DedicatedToken is set by the hub to the credential of the agent.
	// +optional
	DedicatedToken []byte `json:"token,omitempty"`

	// CACertificate is set by the hub to the PEM bundle with which the agent verifies the certificate of the hub.
	// +optional
	CACertificate []byte `json:"caCertificate,omitempty"`

	// ManagedClusterName is set by the hub to the name of the ManagedCluster.
	// +optional
	ManagedClusterName string `json:"managedClusterName,omitempty"`
}
