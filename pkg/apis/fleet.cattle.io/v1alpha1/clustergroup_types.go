package v1alpha1

import (
	"github.com/rancher/wrangler/v3/pkg/genericcondition"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=fleet,scope=Namespaced
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Clusters-Ready",type=string,JSONPath=`.status.display.readyClusters`
// +kubebuilder:printcolumn:name="Bundles-Ready",type=string,JSONPath=`.status.display.readyBundles`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`

// ClusterGroup is a name for the Clusters of its namespace that have certain labels. A person creates it so that
// Bundles can target it.
type ClusterGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is set by a person and says which Clusters belong to the group.
	// +optional
	Spec ClusterGroupSpec `json:"spec,omitempty"`
	// Status is set by the hub and sums up the Clusters of the group.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status ClusterGroupStatus `json:"status,omitempty"`
}

// ClusterGroupSpec says which Clusters belong to a group.
type ClusterGroupSpec struct {
	// Selector is set by a person to the labels of the Clusters that belong to the group. Absent means none.
	// +optional
	// +nullable
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// MetadataTooLarge is not part of the API: in the caches of the hub it stands for labels or annotations that take too much memory.
	MetadataTooLarge bool `json:"-"`

	// Excess is not part of the API: in the caches of the hub it says that parts were dropped because the workspace has no room for them.
	Excess MemoryExcess `json:"-"`
}

// ClusterGroupStatus is set by the hub.
type ClusterGroupStatus struct {
	// ClusterCount is set by the hub to the number of Clusters in the group.
	// +optional
	ClusterCount int `json:"clusterCount"`

	// NonReadyClusterCount is set by the hub to the number of Clusters in the group that are not ready.
	// +optional
	NonReadyClusterCount int `json:"nonReadyClusterCount"`

	// NonReadyClusters is set by the hub to the names of Clusters that are not ready, ten at most.
	// +optional
	NonReadyClusters []string `json:"nonReadyClusters,omitempty"`

	// Conditions are set by the hub: Ready and Processed.
	// +optional
	Conditions []genericcondition.GenericCondition `json:"conditions,omitempty"`

	// Summary is set by the hub to the number of BundleDeployments of all Clusters in the group by state.
	// +optional
	Summary BundleSummary `json:"summary,omitempty"`

	// Display is set by the hub to texts for user interfaces.
	// +optional
	Display ClusterGroupDisplay `json:"display,omitempty"`

	// ResourceCounts is set by the hub to the number of deployed resources by state.
	// +optional
	ResourceCounts ResourceCounts `json:"resourceCounts,omitempty"`
}

// ClusterGroupDisplay is set by the hub and has texts for user interfaces about a group.
// +kubebuilder:pruning:PreserveUnknownFields
type ClusterGroupDisplay struct {
	// ReadyClusters is set by the hub to the number of ready and of all Clusters, with the names of at most 10 that are not ready:
	// "2/3 (east)".
	// +optional
	ReadyClusters string `json:"readyClusters,omitempty"`

	// ReadyBundles is set by the hub to the numbers of ready and of all BundleDeployments, such as "2/3".
	// +optional
	ReadyBundles string `json:"readyBundles,omitempty"`

	// State is set by the hub to the worst state of a BundleDeployment.
	// +optional
	State string `json:"state,omitempty"`
}
