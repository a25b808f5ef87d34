package v1alpha1

// BundleState is the state of a BundleDeployment, or the worst one of many.
type BundleState string

// States of a BundleDeployment, from good to bad.
const (
	// Ready means deployed, and all resources are ready.
	Ready BundleState = "Ready"
	// NotReady means deployed, and some resource is not ready.
	NotReady BundleState = "NotReady"
	// Pending means that the rollout strategy holds it back.
	Pending BundleState = "Pending"
	// OutOfSync means that the agent was not yet told about the newest change.
	OutOfSync BundleState = "OutOfSync"
	// Modified means that resources on the cluster differ from what was deployed.
	Modified BundleState = "Modified"
	// WaitApplied means that the agent has not yet deployed what it was told.
	WaitApplied BundleState = "WaitApplied"
	// ErrApplied means that deploying failed.
	ErrApplied BundleState = "ErrApplied"
)

// BundleSummary is set by fleet-controller to the number of BundleDeployments by state.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleSummary struct {
	// NotReady is set by fleet-controller to the number in that state.
	// +optional
	NotReady int `json:"notReady,omitempty"`

	// WaitApplied is set by fleet-controller to the number in that state.
	// +optional
	WaitApplied int `json:"waitApplied,omitempty"`

	// ErrApplied is set by fleet-controller to the number in that state.
	// +optional
	ErrApplied int `json:"errApplied,omitempty"`

	// OutOfSync is set by fleet-controller to the number in that state.
	// +optional
	OutOfSync int `json:"outOfSync,omitempty"`

	// Modified is set by fleet-controller to the number in that state.
	// +optional
	Modified int `json:"modified,omitempty"`

	// Ready is set by fleet-controller to the number in that state.
	// +optional
	Ready int `json:"ready"`

	// Pending is set by fleet-controller to the number in that state.
	// +optional
	Pending int `json:"pending,omitempty"`

	// DesiredReady is set by fleet-controller to the number there should be.
	// +optional
	DesiredReady int `json:"desiredReady"`

	// NonReadyResources is set by fleet-controller to some of those that are not ready, and why.
	// +optional
	// +nullable
	NonReadyResources []NonReadyResource `json:"nonReadyResources,omitempty"`
}

// NonReadyResource is set by fleet-controller and says why something is not ready.
// +kubebuilder:pruning:PreserveUnknownFields
type NonReadyResource struct {
	// Name is set by fleet-controller to the name of the Bundle or BundleDeployment.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// State is set by fleet-controller to its state.
	// +optional
	// +nullable
	State BundleState `json:"bundleState,omitempty"`

	// Message is set by fleet-controller to the reason.
	// +optional
	// +nullable
	Message string `json:"message,omitempty"`

	// ModifiedStatus is set by fleet-controller to resources that differ from what was deployed.
	// +optional
	// +nullable
	ModifiedStatus []ModifiedStatus `json:"modifiedStatus,omitempty"`

	// NonReadyStatus is set by fleet-controller to resources that are not ready.
	// +optional
	// +nullable
	NonReadyStatus []NonReadyStatus `json:"nonReadyStatus,omitempty"`
}

// ResourceCounts is set by fleet-controller to the number of deployed resources by state.
// +kubebuilder:pruning:PreserveUnknownFields
type ResourceCounts struct {
	// Ready is set by fleet-controller to the number in that state.
	// +optional
	Ready int `json:"ready"`

	// DesiredReady is set by fleet-controller to the number there should be.
	// +optional
	DesiredReady int `json:"desiredReady"`

	// WaitApplied is set by fleet-controller to the number that is not yet deployed.
	// +optional
	WaitApplied int `json:"waitApplied"`

	// Modified is set by fleet-controller to the number that differs from what was deployed.
	// +optional
	Modified int `json:"modified"`

	// Orphaned is set by fleet-controller to the number that should be gone.
	// +optional
	Orphaned int `json:"orphaned"`

	// Missing is set by fleet-controller to the number that is gone and should not be.
	// +optional
	Missing int `json:"missing"`

	// Unknown is set by fleet-controller to the number whose state is not known.
	// +optional
	Unknown int `json:"unknown"`

	// NotReady is set by fleet-controller to the number that is not ready.
	// +optional
	NotReady int `json:"notReady"`
}

// NonReadyStatus is set by an agent and says which resource is not ready.
// +kubebuilder:pruning:PreserveUnknownFields
type NonReadyStatus struct {
	// UID is set by the agent to the UID of the resource.
	// +optional
	// +nullable
	UID string `json:"uid,omitempty"`

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

	// Summary is set by the agent to the state of the resource.
	// +optional
	// +nullable
	Summary ResourceSummary `json:"summary,omitempty"`
}

// ResourceSummary is set by an agent to the state of one resource.
// +kubebuilder:pruning:PreserveUnknownFields
type ResourceSummary struct {
	// State is set by the agent to a short word such as "in-progress".
	// +optional
	// +nullable
	State string `json:"state,omitempty"`

	// Error is set by the agent to true when the state will not change by itself.
	// +optional
	Error bool `json:"error,omitempty"`

	// Transitioning is set by the agent to true while the state is expected to change.
	// +optional
	Transitioning bool `json:"transitioning,omitempty"`

	// Message is set by the agent to the reasons.
	// +optional
	// +nullable
	Message []string `json:"message,omitempty"`
}

// ModifiedStatus is set by an agent and says how a resource differs from what was deployed.
// +kubebuilder:pruning:PreserveUnknownFields
type ModifiedStatus struct {
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

	// Create is set by the agent to true when the resource is missing.
	// +optional
	Create bool `json:"missing,omitempty"`

	// Delete is set by the agent to true when the resource should be gone.
	// +optional
	Delete bool `json:"delete,omitempty"`

	// Exist is set by the agent to true when somebody else's resource is in the way.
	// +optional
	Exist bool `json:"exist,omitempty"`

	// Patch is set by the agent to the difference.
	// +optional
	// +nullable
	Patch string `json:"patch,omitempty"`
}
