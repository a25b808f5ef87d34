package v1alpha1

import (
	"github.com/rancher/wrangler/v3/pkg/genericcondition"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="BundleDeployments-Ready",type=string,JSONPath=`.status.display.readyClusters`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`

// Bundle is a set of resources with the Clusters to which they are deployed. The hub creates a Bundle for the agent of each
// Cluster. Users and other components create the others.
type Bundle struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is set by the creator of the Bundle.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec BundleSpec `json:"spec,omitempty"`
	// Status is set by the hub.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status BundleStatus `json:"status,omitempty"`
}

// BundleSpec says what is deployed, how, and to which Clusters. In the Bundle of an agent, the hub sets defaultNamespace,
// helm.takeOwnership, resources and targets.
type BundleSpec struct {
	BundleDeploymentOptions `json:",inline"`

	// Paused is set by a person to stop updates of the Bundle's BundleDeployments.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// RolloutStrategy is set by a person to limit the number of clusters that are updated at a time.
	// +optional
	// +nullable
	RolloutStrategy *RolloutStrategy `json:"rolloutStrategy,omitempty"`

	// Resources is set by the creator of the Bundle to the files that are deployed.
	// +optional
	// +nullable
	Resources []BundleResource `json:"resources,omitempty"`

	// ResourcesDigest is not part of the API: in the caches of the hub it stands for the resources, which they leave out.
	ResourcesDigest string `json:"-"`

	// TooLarge is not part of the API: in the caches of the hub it stands for a spec that takes too much memory.
	TooLarge bool `json:"-"`

	// MetadataTooLarge is not part of the API: in the caches of the hub it stands for labels or annotations that take too much memory.
	MetadataTooLarge bool `json:"-"`

	// Excess is not part of the API: in the caches of the hub it says that parts were dropped because the workspace has no room for them.
	Excess MemoryExcess `json:"-"`

	// TargetCustomizationMode is set by a person to FirstMatch, the default, to use the options of the first target that matches,
	// or to AllMatches to merge the options of all targets that match.
	// +optional
	// +nullable
	TargetCustomizationMode string `json:"targetCustomizationMode,omitempty"`

	// Targets is set by the creator of the Bundle to the Clusters to which it is deployed.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxItems=10000
	Targets []BundleTarget `json:"targets,omitempty"`

	// TargetRestrictions is set by another component to the only Clusters to which the Bundle may be deployed.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxItems=10000
	TargetRestrictions []BundleTargetRestriction `json:"targetRestrictions,omitempty"`

	// DependsOn is set by a person to Bundles that must be deployed first.
	// +optional
	// +nullable
	DependsOn []BundleRef `json:"dependsOn,omitempty"`

	// ContentsID is set by another component to the OCI artifact that contains the resources; Resources is empty then.
	// +optional
	// +nullable
	ContentsID string `json:"contentsId,omitempty"`

	// HelmOpOptions is set by another component if the agent downloads the chart itself.
	// +optional
	// +nullable
	HelmOpOptions *GenericMap `json:"helmOpOptions,omitempty"`

	// ValuesHash is set by another component to a digest of the values that it stores in a Secret.
	// +optional
	// +nullable
	ValuesHash string `json:"valuesHash,omitempty"`
}

// BundleResource is a file.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleResource struct {
	// Name is set by the creator of the Bundle to the path of the file.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// Content is set by the creator of the Bundle to the content of the file, in the encoding of the field Encoding.
	// +optional
	// +nullable
	Content string `json:"content,omitempty"`

	// Encoding is set by the creator of the Bundle to "base64+gz" or "base64", or left empty for plain text.
	// +optional
	// +nullable
	Encoding string `json:"encoding,omitempty"`
}

// BundleTarget selects Clusters, and has the options that apply to them.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleTarget struct {
	BundleDeploymentOptions `json:",inline"`

	// Name is set by the creator of the Bundle to a name for the target, used in messages only.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// ClusterName is set by the creator of the Bundle to the name of one Cluster.
	// +optional
	// +nullable
	ClusterName string `json:"clusterName,omitempty"`

	// ClusterSelector is set by the creator of the Bundle to the labels of Clusters.
	// +optional
	// +nullable
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// ClusterGroup is set by the creator of the Bundle to the name of a ClusterGroup.
	// +optional
	// +nullable
	ClusterGroup string `json:"clusterGroup,omitempty"`

	// ClusterGroupSelector is set by the creator of the Bundle to the labels of ClusterGroups.
	// +optional
	// +nullable
	ClusterGroupSelector *metav1.LabelSelector `json:"clusterGroupSelector,omitempty"`

	// DoNotDeploy is set by a person to exclude the Clusters of this target.
	// +optional
	DoNotDeploy bool `json:"doNotDeploy,omitempty"`
}

// BundleTargetRestriction selects Clusters.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleTargetRestriction struct {
	// Name is set by another component to a name for the restriction, used in messages only.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// ClusterName is set by another component to the name of one Cluster.
	// +optional
	// +nullable
	ClusterName string `json:"clusterName,omitempty"`

	// ClusterSelector is set by another component to the labels of Clusters.
	// +optional
	// +nullable
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// ClusterGroup is set by another component to the name of a ClusterGroup.
	// +optional
	// +nullable
	ClusterGroup string `json:"clusterGroup,omitempty"`

	// ClusterGroupSelector is set by another component to the labels of ClusterGroups.
	// +optional
	// +nullable
	ClusterGroupSelector *metav1.LabelSelector `json:"clusterGroupSelector,omitempty"`
}

// RolloutStrategy limits the number of clusters that are updated at a time.
// +kubebuilder:pruning:PreserveUnknownFields
type RolloutStrategy struct {
	// MaxUnavailable is set by a person to a number or percentage of clusters that may be unavailable. An available cluster is updated only
	// below that number.
	// +optional
	// +nullable
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// MaxUnavailablePartitions is set by a person to a number or percentage of partitions that may be unfinished when the next one
	// begins: with 0, one partition after the other.
	// +optional
	// +nullable
	MaxUnavailablePartitions *intstr.IntOrString `json:"maxUnavailablePartitions,omitempty"`

	// AutoPartitionSize is set by a person to the size of partitions that the hub creates.
	// +optional
	// +nullable
	AutoPartitionSize *intstr.IntOrString `json:"autoPartitionSize,omitempty"`

	// Partitions is set by a person to explicit partitions.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxItems=10000
	Partitions []Partition `json:"partitions,omitempty"`
}

// Partition selects Clusters that are updated together.
// +kubebuilder:pruning:PreserveUnknownFields
type Partition struct {
	// Name is set by a person to a name for the partition, used in messages only.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// MaxUnavailable is set by a person to a number or percentage of clusters that may be unavailable. An available cluster is updated only
	// below that number.
	// +optional
	// +nullable
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// ClusterName is set by a person to the name of one Cluster.
	// +optional
	// +nullable
	ClusterName string `json:"clusterName,omitempty"`

	// ClusterSelector is set by a person to the labels of Clusters.
	// +optional
	// +nullable
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// ClusterGroup is set by a person to the name of a ClusterGroup.
	// +optional
	// +nullable
	ClusterGroup string `json:"clusterGroup,omitempty"`

	// ClusterGroupSelector is set by a person to the labels of ClusterGroups.
	// +optional
	// +nullable
	ClusterGroupSelector *metav1.LabelSelector `json:"clusterGroupSelector,omitempty"`
}

// BundleStatus is set by the hub.
type BundleStatus struct {
	// Conditions are set by the hub: Ready and others.
	// +optional
	// +nullable
	Conditions []genericcondition.GenericCondition `json:"conditions,omitempty"`

	// Summary is set by the hub to the number of the Bundle's BundleDeployments by state.
	// +optional
	Summary BundleSummary `json:"summary,omitempty"`

	// NewlyCreated is set by controllers of Fleet to the number of BundleDeployments that the last reconcile created.
	// +optional
	NewlyCreated int `json:"newlyCreated,omitempty"`

	// Unavailable is set by the hub to the number of clusters that are not available.
	// +optional
	Unavailable int `json:"unavailable"`

	// UnavailablePartitions is set by the hub to the number of partitions that are not finished: a cluster waits, or too many are unavailable.
	// +optional
	UnavailablePartitions int `json:"unavailablePartitions"`

	// MaxUnavailable is set by the hub to the number of clusters that may be unavailable.
	// +optional
	MaxUnavailable int `json:"maxUnavailable"`

	// MaxUnavailablePartitions is set by the hub to the number of partitions that may be unavailable.
	// +optional
	MaxUnavailablePartitions int `json:"maxUnavailablePartitions"`

	// Partitions is set by the hub to the state of each partition.
	// +optional
	// +nullable
	Partitions []PartitionStatus `json:"partitions,omitempty"`

	// Display is set by the hub to texts for user interfaces.
	// +optional
	Display BundleDisplay `json:"display,omitempty"`

	// ResourceKey is set by controllers of Fleet to the resources of the Bundle.
	// +optional
	// +nullable
	ResourceKey []ResourceKey `json:"resourceKey,omitempty"`

	// OCIReference is set by controllers of Fleet to the OCI artifact in which the resources are stored.
	// +optional
	// +nullable
	OCIReference string `json:"ociReference,omitempty"`

	// ObservedGeneration is set by the hub to the generation that it has reconciled last.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration"`

	// ResourcesSHA256Sum is set by the hub to the SHA-256 of the Bundle's resources.
	// +optional
	// +nullable
	ResourcesSHA256Sum string `json:"resourcesSha256Sum,omitempty"`
}

// PartitionStatus is set by the hub to the state of a partition.
// +kubebuilder:pruning:PreserveUnknownFields
type PartitionStatus struct {
	// Name is set by the hub to the name of the partition.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// Count is set by the hub to the number of clusters in the partition.
	// +optional
	Count int `json:"count,omitempty"`

	// MaxUnavailable is set by the hub to the number of clusters that may be unavailable.
	// +optional
	MaxUnavailable int `json:"maxUnavailable,omitempty"`

	// Unavailable is set by the hub to the number of clusters that are unavailable.
	// +optional
	Unavailable int `json:"unavailable,omitempty"`

	// Summary is set by the hub to the number of BundleDeployments of the partition by state.
	// +optional
	Summary BundleSummary `json:"summary,omitempty"`
}

// BundleDisplay is set by the hub and has texts for user interfaces about a Bundle.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleDisplay struct {
	// ReadyClusters is set by the hub to the numbers of ready and targeted clusters, such as "2/3".
	// +optional
	// +nullable
	ReadyClusters string `json:"readyClusters,omitempty"`

	// State is set by the hub to the worst state of a BundleDeployment.
	// +optional
	// +nullable
	State string `json:"state,omitempty"`
}

// ResourceKey names a resource.
// +kubebuilder:pruning:PreserveUnknownFields
type ResourceKey struct {
	// Kind is set by controllers of Fleet to the kind of the resource.
	// +optional
	// +nullable
	Kind string `json:"kind,omitempty"`

	// APIVersion is set by controllers of Fleet to the API version of the resource.
	// +optional
	// +nullable
	APIVersion string `json:"apiVersion,omitempty"`

	// Namespace is set by controllers of Fleet to the namespace of the resource.
	// +optional
	// +nullable
	Namespace string `json:"namespace,omitempty"`

	// Name is set by controllers of Fleet to the name of the resource.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`
}
