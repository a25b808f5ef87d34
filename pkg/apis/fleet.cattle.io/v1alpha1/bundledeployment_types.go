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
// +kubebuilder:printcolumn:name="Deployed",type=string,JSONPath=`.status.display.deployed`
// +kubebuilder:printcolumn:name="Monitored",type=string,JSONPath=`.status.display.monitored`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`

// BundleDeployment is the deployment of a Bundle to one cluster. It is in the namespace of that cluster on the hub and has the
// name of the Bundle. The hub, or Fleet's own Bundle controller, creates it. The agent of the cluster deploys it and writes its
// status.
type BundleDeployment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is set by the hub.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec BundleDeploymentSpec `json:"spec,omitempty"`
	// Status is set by the agent.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status BundleDeploymentStatus `json:"status,omitempty"`
}

// BundleDeploymentSpec says what the agent of one cluster deploys.
type BundleDeploymentSpec struct {
	// Paused is set by the hub while the Bundle or the Cluster is paused, and for an agent of Fleet until there is a deploymentID; the agent then
	// changes nothing.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// StagedOptions is set by the hub to the newest options; the rollout strategy decides when they become
	// Options.
	// +optional
	StagedOptions BundleDeploymentOptions `json:"stagedOptions,omitempty"`

	// StagedDeploymentID is set by the hub to the newest deployment ID; the rollout strategy decides when it
	// becomes DeploymentID.
	// +optional
	// +nullable
	StagedDeploymentID string `json:"stagedDeploymentID,omitempty"`

	// Options is set by the hub to the options with which the agent deploys.
	// +optional
	Options BundleDeploymentOptions `json:"options,omitempty"`

	// DeploymentID is set by the hub to the deployment: the name of a Content or of an OCI artifact, or nothing if the agent downloads a chart; a
	// colon; and a digest of the options.
	// +optional
	// +nullable
	DeploymentID string `json:"deploymentID,omitempty"`

	// DependsOn is set by the hub to Bundles that must first be Ready, or in one of their acceptedStates.
	// +optional
	// +nullable
	DependsOn []BundleRef `json:"dependsOn,omitempty"`

	// CorrectDrift is set by the hub to the correctDrift of the Bundle: whether and how the agent undoes drift.
	// +optional
	// +nullable
	CorrectDrift *CorrectDrift `json:"correctDrift,omitempty"`

	// OCIContents is set to true by the hub if the resources are in an OCI artifact instead of a Content.
	// +optional
	OCIContents bool `json:"ociContents,omitempty"`

	// HelmChartOptions is set by the hub if the agent downloads the chart itself.
	// +optional
	// +nullable
	HelmChartOptions *GenericMap `json:"helmChartOptions,omitempty"`

	// ValuesHash is set by the hub to a digest of the Secret with the values, which has the name of the BundleDeployment.
	// +optional
	// +nullable
	ValuesHash string `json:"valuesHash,omitempty"`

	// DownstreamResourcesGeneration is increased by the hub when a resource in spec.options.downstreamResources has changed.
	// +optional
	DownstreamResourcesGeneration int64 `json:"downstreamResourcesGeneration,omitempty"`

	// OffSchedule is set to true by a controller of Fleet while a Schedule forbids deployments. The agent then changes nothing.
	// +optional
	OffSchedule bool `json:"offSchedule,omitempty"`

	// WaitingForValues is set to true by the hub while the Secret with the values does not exist yet.
	// +optional
	WaitingForValues bool `json:"waitingForValues,omitempty"`

	// CachedDigests is not part of the API: in the caches of the hub it stands for the fields that users fill.
	CachedDigests *SpecDigests `json:"-"`
}

// BundleDeploymentStatus is the report of the agent.
type BundleDeploymentStatus struct {
	// Conditions are set by the agent: Deployed, Installed, Monitored, Ready; and, for the agent itself, Farewell.
	// +optional
	// +nullable
	Conditions []genericcondition.GenericCondition `json:"conditions,omitempty"`

	// AppliedDeploymentID is set by the agent to the deployment ID it last deployed.
	// +optional
	// +nullable
	AppliedDeploymentID string `json:"appliedDeploymentID,omitempty"`

	// Release is set by the agent to namespace, name and revision of the Helm release.
	// +optional
	// +nullable
	Release string `json:"release,omitempty"`

	// Ready is set by the agent to true when all resources are ready.
	// +optional
	Ready bool `json:"ready,omitempty"`

	// NonModified is set by the agent to true when no resource differs from what was deployed.
	// +optional
	NonModified bool `json:"nonModified,omitempty"`

	// NonReadyStatus is set by the agent to the resources that are not ready.
	// +optional
	// +nullable
	NonReadyStatus []NonReadyStatus `json:"nonReadyStatus,omitempty"`

	// ModifiedStatus is set by the agent to the resources that differ from what was deployed.
	// +optional
	// +nullable
	ModifiedStatus []ModifiedStatus `json:"modifiedStatus,omitempty"`

	// IncompleteState is set by the agent to true when the lists of this status were cut short.
	// +optional
	IncompleteState bool `json:"incompleteState,omitempty"`

	// Display is set by the agent, or by the hub for an agent of Fleet, to texts for user interfaces.
	// +optional
	Display BundleDeploymentDisplay `json:"display,omitempty"`

	// SyncGeneration is set by the agent to the forceSyncGeneration of its last deployment.
	// +optional
	// +nullable
	SyncGeneration *int64 `json:"syncGeneration,omitempty"`

	// Resources is set by the agent to the deployed resources.
	// +optional
	// +nullable
	Resources []BundleDeploymentResource `json:"resources,omitempty"`

	// ResourceCounts is set by the agent to the number of deployed resources by state.
	// +optional
	ResourceCounts ResourceCounts `json:"resourceCounts,omitempty"`

	// DownstreamResourcesGeneration is set by the agent to the generation it last copied.
	// +optional
	DownstreamResourcesGeneration int64 `json:"downstreamResourcesGeneration,omitempty"`
}

// BundleDeploymentDisplay has texts for user interfaces about a BundleDeployment.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleDeploymentDisplay struct {
	// Deployed is set to the status or message of the condition Deployed.
	// +optional
	// +nullable
	Deployed string `json:"deployed,omitempty"`

	// Monitored is set to the status or message of the condition Monitored.
	// +optional
	// +nullable
	Monitored string `json:"monitored,omitempty"`

	// State is set to the state of the BundleDeployment.
	// +optional
	// +nullable
	State string `json:"state,omitempty"`
}

// BundleDeploymentResource is a deployed resource.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleDeploymentResource struct {
	// Kind is set by the agent to the kind of the resource.
	// +optional
	// +nullable
	Kind string `json:"kind,omitempty"`

	// APIVersion is set by the agent to the API version of the resource.
	// +optional
	// +nullable
	APIVersion string `json:"apiVersion,omitempty"`

	// Namespace is set by the agent to the namespace of the resource.
	// +optional
	// +nullable
	Namespace string `json:"namespace,omitempty"`

	// Name is set by the agent to the name of the resource.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// CreatedAt is set by the agent to the time at which the resource was created.
	// +optional
	// +nullable
	CreatedAt metav1.Time `json:"createdAt"`
}
