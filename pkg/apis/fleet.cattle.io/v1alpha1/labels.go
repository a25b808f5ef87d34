package v1alpha1

// Labels and annotations that components of the fleet, agents and management servers put on objects. Most of them occur
// as a label on one kind and as an annotation on another; the comment says where.
const (
	// ManagedLabel, with the value "true", is set by the hub on the objects that it creates: cluster namespaces, ServiceAccounts, RBAC,
	// Contents, BundleDeployments, answer Secrets, and Secrets with values. Of these kinds, the hub overwrites and deletes only objects with
	// this label, except the ClusterRoles and the ClusterRoleBinding with fixed names (package agentrole), and Contents of Fleet's controllers,
	// whose names are digests.
	ManagedLabel = "fleet.cattle.io/managed"

	// ClusterLabel has the name of a Cluster. It is an annotation on the cluster namespace and on the ServiceAccount and
	// the Lease of an agent, and a label on answer Secrets, BundleDeployments and Clusters the hub created.
	ClusterLabel = "fleet.cattle.io/cluster"
	// ClusterAnnotation is ClusterLabel where it is an annotation.
	ClusterAnnotation = ClusterLabel

	// WorkspaceLabel has the workspace of a Cluster, as a label on BundleDeployments. Its key has Fleet's word for the workspace: the namespace
	// of the Cluster. What this project calls the cluster namespace is another one.
	WorkspaceLabel = "fleet.cattle.io/cluster-namespace"
	// WorkspaceAnnotation is WorkspaceLabel as an annotation on the cluster namespace and on the Lease of an agent.
	WorkspaceAnnotation = WorkspaceLabel

	// ClusterRegistrationAnnotation, on the ServiceAccount of an agent and on answer Secrets, has the name of the ClusterRegistration they were
	// made for.
	ClusterRegistrationAnnotation = "fleet.cattle.io/cluster-registration"
	// ClusterRegistrationNamespaceAnnotation, on the same objects, has the namespace of that ClusterRegistration.
	ClusterRegistrationNamespaceAnnotation = "fleet.cattle.io/cluster-registration-namespace"

	// RegistrationTokenLabel, on a ClusterRegistration, has the name of the ClusterRegistrationToken with which the agent claims to
	// register. It is not a proof.
	RegistrationTokenLabel = "fleet.cattle.io/registration-token"

	// ClusterManagementLabel, with a value that is not empty, on a Cluster or ClusterRegistration means that another component manages
	// it. The hub ignores such a request. To such a Cluster it neither deploys nor grants requests, and it deletes the Bundle of its agent; condition
	// Processed says so.
	ClusterManagementLabel = "fleet.cattle.io/cluster-management"

	// CreatedByAgentPodLabel, on a Cluster, has the name of the pod that registered it, for people who debug. It is the
	// only label with a reserved prefix that an agent may ask for.
	CreatedByAgentPodLabel = "fleet.cattle.io/created-by-agent-pod"

	// NonManagedAgentLabel, with any value, on a Cluster prevents the hub from creating a Bundle for its agent.
	NonManagedAgentLabel = "fleet.cattle.io/non-managed-agent"

	// VersionAnnotation, on the hub's ConfigMap, holds the version of the chart that wrote it.
	VersionAnnotation = "fleet.cattle.io/version"

	// BundleNameLabel, on a BundleDeployment, has the name of its Bundle.
	BundleNameLabel = "fleet.cattle.io/bundle-name"
	// BundleNamespaceLabel, on a BundleDeployment, has the namespace of its Bundle.
	BundleNamespaceLabel = "fleet.cattle.io/bundle-namespace"
	// InternalSecretLabel, on a Secret of a cluster namespace, is "true" if it has the credentials for a server from which agents download.
	InternalSecretLabel = "fleet.cattle.io/bundle-internal-secret"

	// ContentNameLabel, on a BundleDeployment, has the name of its Content.
	ContentNameLabel = "fleet.cattle.io/content-name"
	// SizeLabel, on a BundleDeployment with more than 1 KiB of options and Helm values, has the bytes that the hub counts for them.
	SizeLabel = "muster.fleet.cattle.io/size"
	// CommitLabel, on a Bundle made from a git repository and on its BundleDeployments, holds the commit.
	CommitLabel = "fleet.cattle.io/commit"

	// RepoLabel, on a Bundle and its BundleDeployments, is set by Fleet's git job to the name of the GitRepo that the Bundle is from.
	RepoLabel = "fleet.cattle.io/repo-name"
	// HelmOpLabel, on a Bundle and its BundleDeployments, is set by Fleet's HelmOps controller to the name of the HelmOp.
	HelmOpLabel = "fleet.cattle.io/fleet-helm-name"

	// ClusterDisplayNameLabel, which a management server puts on a Cluster, holds a second name by which targets of
	// Bundles can name it.
	ClusterDisplayNameLabel = "management.cattle.io/cluster-display-name"

	// ManagementClusterLabel, which a management server puts on a Cluster, holds the server's own name of the cluster. It
	// stays the same when the server recreates the Cluster in another namespace.
	ManagementClusterLabel = "management.cattle.io/cluster-name"

	// ReservedPrefix begins keys of labels that the hub and other components of the fleet own. An agent may not ask for
	// one, except CreatedByAgentPodLabel.
	ReservedPrefix = "fleet.cattle.io/"
	// ReservedManagementPrefix begins keys of labels that a management server owns. An agent may not ask for one.
	ReservedManagementPrefix = "management.cattle.io/"
)

// ManagedValue is the value of ManagedLabel.
const ManagedValue = "true"

// Finalizers. ClusterRegistrations and ClusterRegistrationTokens have none: what is made for them has an owner
// reference, is deleted with the cluster namespace, or is deleted by their controllers when the object is gone.
const (
	// ClusterFinalizer is put on Clusters by the hub.
	ClusterFinalizer = "fleet.cattle.io/cluster-finalizer"
	// BundleFinalizer is put on Bundles by the hub.
	BundleFinalizer = "fleet.cattle.io/bundle-finalizer"
	// BundleDeploymentFinalizer is set on BundleDeployments by Fleet's own hub, and removed by either hub.
	BundleDeploymentFinalizer = "fleet.cattle.io/bundle-deployment-finalizer"
)
