package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BundleDeploymentOptions say how resources are deployed to a cluster. A person sets them on a Bundle or on one of its targets.
// The hub merges both and passes the result to the agent in a BundleDeployment. The order of the fields is part of the wire
// format: the deployment ID contains a digest of the options as JSON.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleDeploymentOptions struct {
	// YAML is set by a person to the options of plain manifests.
	// +optional
	// +nullable
	YAML *YAMLOptions `json:"yaml,omitempty"`

	// Kustomize is set by a person to build the resources with kustomize.
	// +optional
	// +nullable
	Kustomize *KustomizeOptions `json:"kustomize,omitempty"`

	// DefaultNamespace is set by a person to the namespace of resources that set none.
	// +optional
	// +nullable
	DefaultNamespace string `json:"defaultNamespace,omitempty"`

	// TargetNamespace is set by a person to the namespace of all resources. A cluster-scoped resource is then an error.
	// +optional
	// +nullable
	TargetNamespace string `json:"namespace,omitempty"`

	// Helm is set by a person to the options of the Helm release.
	// +optional
	// +nullable
	Helm *HelmOptions `json:"helm,omitempty"`

	// ServiceAccount is set by a person to the ServiceAccount on the cluster with which the agent deploys. Empty means
	// ServiceAccount fleet-default of the agent's namespace if it exists, and otherwise the agent's own.
	// +optional
	// +nullable
	ServiceAccount string `json:"serviceAccount,omitempty"`

	// ForceSyncGeneration is increased by a person to deploy everything again.
	// +optional
	ForceSyncGeneration int64 `json:"forceSyncGeneration,omitempty"`

	// Diff is set by a person to the differences on the cluster that are not drift.
	// +optional
	// +nullable
	Diff *DiffOptions `json:"diff,omitempty"`

	// KeepResources is set by a person to leave the resources on the cluster when the deployment is removed.
	// +optional
	KeepResources bool `json:"keepResources,omitempty"`

	// DeleteNamespace is set by a person to delete the namespace together with the deployment.
	// +optional
	DeleteNamespace bool `json:"deleteNamespace,omitempty"`

	// DeleteCRDResources is set by a person to delete CustomResourceDefinitions together with the deployment, except those in the folder crds of a
	// chart.
	// +optional
	DeleteCRDResources bool `json:"deleteCRDResources,omitempty"`

	// IgnoreOptions is set by a person to conditions of resources that are ignored when readiness is assessed.
	// +optional
	// +nullable
	IgnoreOptions *IgnoreOptions `json:"ignore,omitempty"`

	// CorrectDrift is set by a person to undo drift on the cluster.
	// +optional
	// +nullable
	CorrectDrift *CorrectDrift `json:"correctDrift,omitempty"`

	// NamespaceLabels is set by a person to labels for the namespace of the deployment.
	// +optional
	// +nullable
	NamespaceLabels map[string]string `json:"namespaceLabels,omitempty"`

	// NamespaceAnnotations is set by a person to annotations for the namespace of the deployment.
	// +optional
	// +nullable
	NamespaceAnnotations map[string]string `json:"namespaceAnnotations,omitempty"`

	// DownstreamResources is set by a person to the ConfigMaps and Secrets of the Bundle's namespace that are copied to
	// the cluster.
	// +optional
	// +nullable
	DownstreamResources []DownstreamResource `json:"downstreamResources,omitempty"`

	// Overwrites is set by a person to resources of other Bundles that this Bundle overwrites on purpose.
	// +optional
	// +nullable
	Overwrites []OverwrittenResource `json:"overwrites,omitempty"`

	// CreateNamespace is set by a person, or by a Policy of Fleet's own hub, to false if the agent must not create the namespace
	// of the deployment.
	// +optional
	// +nullable
	CreateNamespace *bool `json:"createNamespace,omitempty"`

	// AllowedTargetNamespaceSelector is set by a person, or by a Policy of Fleet's own hub, to the labels of the namespaces to
	// which the agent may deploy. The namespace must exist.
	// +optional
	// +nullable
	AllowedTargetNamespaceSelector *metav1.LabelSelector `json:"allowedTargetNamespaceSelector,omitempty"`
}

// KustomizeOptions are the options of kustomize.
// +kubebuilder:pruning:PreserveUnknownFields
type KustomizeOptions struct {
	// Dir is set by a person to the directory with kustomization.yaml.
	// +optional
	// +nullable
	Dir string `json:"dir,omitempty"`
}

// HelmOptions are the options of a Helm release. The order of the fields is part of the wire format, as in BundleDeploymentOptions.
// +kubebuilder:pruning:PreserveUnknownFields
type HelmOptions struct {
	// Chart is set by a person to the chart: a directory of the Bundle, a URL, or a name in Repo.
	// +optional
	// +nullable
	Chart string `json:"chart,omitempty"`

	// Repo is set by a person to the URL of the chart repository.
	// +optional
	// +nullable
	Repo string `json:"repo,omitempty"`

	// ReleaseName is set by a person to the name of the release. Empty means a name computed from that of the Bundle.
	// +optional
	// +nullable
	ReleaseName string `json:"releaseName,omitempty"`

	// Version is set by a person to the version, or range of versions, of the chart.
	// +optional
	// +nullable
	Version string `json:"version,omitempty"`

	// TimeoutSeconds is set by a person to the time limit of an operation of Helm, in seconds. 0 means 5 minutes; Helm then
	// waits only for hooks, or with Atomic also for the objects.
	// +optional
	TimeoutSeconds int `json:"timeoutSeconds,omitempty"`

	// Values is set by a person to the values of the chart.
	// +optional
	// +nullable
	Values *GenericMap `json:"values,omitempty"`

	// TemplateValues is set by a person to values that are templates.
	// +optional
	// +nullable
	TemplateValues map[string]string `json:"templateValues,omitempty"`

	// ValuesFrom is set by a person to ConfigMaps and Secrets on the cluster that contain values.
	// +optional
	// +nullable
	ValuesFrom []ValuesFrom `json:"valuesFrom,omitempty"`

	// Force is set by a person to replace resources that cannot be patched, of the kinds Deployment, DaemonSet, ReplicaSet, Job and CronJob. Other
	// kinds may hold data.
	// +optional
	Force bool `json:"force,omitempty"`

	// TakeOwnership is set by a person to let the release adopt resources that belong to another release or to none.
	// +optional
	TakeOwnership bool `json:"takeOwnership,omitempty"`

	// MaxHistory is set by a person to the number of revisions that are kept.
	// +optional
	MaxHistory int `json:"maxHistory,omitempty"`

	// ValuesFiles is set by a person to files of the Bundle that contain values.
	// +optional
	// +nullable
	ValuesFiles []string `json:"valuesFiles,omitempty"`

	// WaitForJobs is set by a person to let Helm wait until Jobs are complete. It requires TimeoutSeconds or Atomic.
	// +optional
	WaitForJobs bool `json:"waitForJobs,omitempty"`

	// Atomic is set by a person to undo a failed installation or upgrade.
	// +optional
	Atomic bool `json:"atomic,omitempty"`

	// DisablePreProcess is set by a person to leave templates in the values unevaluated.
	// +optional
	DisablePreProcess bool `json:"disablePreProcess,omitempty"`

	// DisableDNS is set by a person to prevent DNS lookups in templates.
	// +optional
	DisableDNS bool `json:"disableDNS,omitempty"`

	// SkipSchemaValidation is set by a person to skip the validation of values with the schema of the chart.
	// +optional
	SkipSchemaValidation bool `json:"skipSchemaValidation,omitempty"`

	// DisableDependencyUpdate is set by a person to use the dependencies that the chart contains, without an update.
	// +optional
	DisableDependencyUpdate bool `json:"disableDependencyUpdate,omitempty"`
}

// ValuesFrom refers to values on the cluster. One of its fields is set.
// +kubebuilder:pruning:PreserveUnknownFields
type ValuesFrom struct {
	// ConfigMapKeyRef is set by a person to a key of a ConfigMap.
	// +optional
	// +nullable
	ConfigMapKeyRef *KeySelector `json:"configMapKeyRef,omitempty"`

	// SecretKeyRef is set by a person to a key of a Secret.
	// +optional
	// +nullable
	SecretKeyRef *KeySelector `json:"secretKeyRef,omitempty"`
}

// KeySelector is a key of a ConfigMap or Secret on the cluster.
// +kubebuilder:pruning:PreserveUnknownFields
type KeySelector struct {
	// Name is set by a person to the name of the object.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// Namespace is set by a person to the namespace of the object. Empty means the namespace of the deployment.
	// +optional
	// +nullable
	Namespace string `json:"namespace,omitempty"`

	// Key is set by a person to the key. Empty means values.yaml.
	// +optional
	// +nullable
	Key string `json:"key,omitempty"`
}

// YAMLOptions are the options of plain manifests.
// +kubebuilder:pruning:PreserveUnknownFields
type YAMLOptions struct {
	// Overlays is set by a person to the directories below "overlays" whose files replace or patch the manifests.
	// +optional
	// +nullable
	Overlays []string `json:"overlays,omitempty"`
}

// DiffOptions list the differences that are not drift.
// +kubebuilder:pruning:PreserveUnknownFields
type DiffOptions struct {
	// ComparePatches is set by a person to the differences to ignore.
	// +optional
	// +nullable
	ComparePatches []ComparePatch `json:"comparePatches,omitempty"`
}

// ComparePatch lists differences of one resource that are not drift.
// +kubebuilder:pruning:PreserveUnknownFields
type ComparePatch struct {
	// Kind is set by a person to the kind of the resource.
	// +optional
	// +nullable
	Kind string `json:"kind,omitempty"`

	// APIVersion is set by a person to the API version of the resource.
	// +optional
	// +nullable
	APIVersion string `json:"apiVersion,omitempty"`

	// Namespace is set by a person to the namespace of the resource.
	// +optional
	// +nullable
	Namespace string `json:"namespace,omitempty"`

	// Name is set by a person to the name of the resource.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// Operations is set by a person to JSON patch operations that are applied before comparing.
	// +optional
	// +nullable
	Operations []Operation `json:"operations,omitempty"`

	// JSONPointers is set by a person to paths that are not compared.
	// +optional
	// +nullable
	JSONPointers []string `json:"jsonPointers,omitempty"`
}

// Operation is one operation of a JSON patch (RFC 6902).
// +kubebuilder:pruning:PreserveUnknownFields
type Operation struct {
	// Op is set by a person to the operation: add, remove, replace or ignore.
	// +optional
	// +nullable
	Op string `json:"op,omitempty"`

	// Path is set by a person to the JSON pointer to which the operation applies.
	// +optional
	// +nullable
	Path string `json:"path,omitempty"`

	// Value is set by a person to the value to add or to replace with.
	// +optional
	// +nullable
	Value string `json:"value,omitempty"`
}

// IgnoreOptions say what is ignored when the readiness of a resource is assessed.
// +kubebuilder:pruning:PreserveUnknownFields
type IgnoreOptions struct {
	// Conditions is set by a person to fields of conditions. A condition is ignored if it has all fields of an entry.
	// +optional
	// +nullable
	Conditions []map[string]string `json:"conditions,omitempty"`
}

// CorrectDrift says whether and how drift on the cluster is undone.
// +kubebuilder:pruning:PreserveUnknownFields
type CorrectDrift struct {
	// Enabled is set by a person to undo drift.
	// +optional
	Enabled bool `json:"enabled,omitempty"`

	// Force is set by a person to replace resources that cannot be patched, of the kinds Deployment, DaemonSet, ReplicaSet, Job and CronJob. Other
	// kinds may hold data.
	// +optional
	Force bool `json:"force,omitempty"`

	// KeepFailHistory is set by a person to keep the revisions of failed corrections.
	// +optional
	KeepFailHistory bool `json:"keepFailHistory,omitempty"`
}

// DownstreamResource is an object of the Bundle's namespace that is copied to the cluster.
// +kubebuilder:pruning:PreserveUnknownFields
type DownstreamResource struct {
	// Kind is set by a person to ConfigMap or Secret.
	// +optional
	// +nullable
	Kind string `json:"kind,omitempty"`

	// Name is set by a person to the name of the object.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`
}

// OverwrittenResource is a resource of another Bundle that is overwritten on purpose.
// +kubebuilder:pruning:PreserveUnknownFields
type OverwrittenResource struct {
	// Kind is set by a person to the kind of the resource.
	// +optional
	// +nullable
	Kind string `json:"kind,omitempty"`

	// Name is set by a person to the name of the resource.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// Namespace is set by a person to the namespace of the resource.
	// +optional
	// +nullable
	Namespace string `json:"namespace,omitempty"`
}

// BundleRef selects Bundles that must be deployed first.
// +kubebuilder:pruning:PreserveUnknownFields
type BundleRef struct {
	// Name is set by a person to the name of the Bundle.
	// +optional
	// +nullable
	Name string `json:"name,omitempty"`

	// Selector is set by a person to the labels of the Bundles.
	// +optional
	// +nullable
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// AcceptedStates is set by a person to the states in which such a Bundle counts as deployed. Empty means Ready only.
	// +optional
	// +nullable
	AcceptedStates []BundleState `json:"acceptedStates,omitempty"`
}
