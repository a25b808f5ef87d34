package v1alpha1

// KubeconfigAllowedAnnotation is set by the owner of a kubeconfig Secret to a comma-separated list of namespaces whose
// Clusters may use it, or "*". Without it, only Clusters of the Secret's own namespace may use it. Clusters of any namespace may use
// Secrets in fleet-default, where management servers store them.
const KubeconfigAllowedAnnotation = "muster.fleet.cattle.io/kubeconfig-allowed-namespaces"

// FarewellAnnotation is set by the hub, with any value, on the BundleDeployment of an agent whose Cluster is being deleted.
// The agent uninstalls its releases, sets condition Farewell, and then uninstalls itself.
const FarewellAnnotation = "muster.fleet.cattle.io/farewell"

// UnmanagedAnnotation is set by the hub, with any value, on the BundleDeployment of an agent before it deletes the Bundle of the agent because it no longer
// manages that agent. Without it, an agent whose BundleDeployment is gone takes that for a fault of the hub for a day, and uninstalls nothing.
const UnmanagedAnnotation = "muster.fleet.cattle.io/unmanaged"

// KeepWorkloadsAnnotation is KeepWorkloadsValue on a Cluster whose BundleDeployments all get keepResources, whatever the options of their
// Bundles, except the BundleDeployment of the agent. So the workloads stay on the member after the deletion of the Cluster or of the Bundles.
// `muster remove --keep-workloads` sets it. The hub copies it, with FarewellAnnotation, to the BundleDeployment of the agent: then the objects of all
// releases stay, also of those whose BundleDeployment the hub has lost.
const (
	KeepWorkloadsAnnotation = "muster.fleet.cattle.io/keep-workloads"
	KeepWorkloadsValue      = "true"
)

// RestoredAnnotation is set by the hub to the current time on an object whose large parts its caches have dropped, when the workspace has room for them:
// the event of this write brings the whole object.
const RestoredAnnotation = "muster.fleet.cattle.io/restored-at"

// CreatorAnnotation is set on every ClusterRegistration by an API server that serves mutating policies, through an admission policy of the hub, to the
// name of the user that created it. The policies prevent users from setting or changing it.
const CreatorAnnotation = "muster.fleet.cattle.io/created-by"

// AudiencesAnnotation is set by the hub on ClusterRole fleet-agent-token-audience to the audiences for which the API server issues tokens by
// default, one in each line. An admission policy refuses tokens of agents for others.
const AudiencesAnnotation = "muster.fleet.cattle.io/api-audiences"

// RequesterAnnotation is set by the hub, on a ClusterRegistration that it creates for a Clusternet agent, to the user who according to the
// API server created the ClusterRegistrationRequest of that agent. It means nothing on a ClusterRegistration of another creator.
const RequesterAnnotation = "muster.fleet.cattle.io/requested-by"

// CredentialAnnotation is CredentialIssued on the kubeconfig Secret that the hub creates for its own cluster: the kubeconfig has
// no credential. The hub issues a short-lived one for each call of its own cluster, and keeps it in memory. The hub ignores the
// annotation on any other Secret.
const (
	CredentialAnnotation = "muster.fleet.cattle.io/credential"
	CredentialIssued     = "issued"
)

// StatusAnnotation is set by a hub with disableBundles on a Cluster to a JSON document with status.import and with what the agent
// reports in status.agent. Fleet's own Cluster controller replaces the status of a Cluster and does not know these fields, so that
// they would be lost. A hub without disableBundles moves status.import back and removes the annotation.
const StatusAnnotation = "muster.fleet.cattle.io/status"

// QuarantineReasonAnnotation is set by `muster quarantine --message` on a Cluster: who quarantined it and why. Condition Registered shows it.
const QuarantineReasonAnnotation = "muster.fleet.cattle.io/quarantine-reason"

// MemberAccountAnnotation is set by `muster import --create-service-account` on a Cluster to the namespace and the name of the ServiceAccount
// that it has created on the member, and whose token is in the kubeconfig. The hub ignores it.
const MemberAccountAnnotation = "muster.fleet.cattle.io/member-account"

// CopyAnnotation is set by the hub on a Secret or ConfigMap that it copies into a cluster namespace because a Bundle names it in
// downstreamResources: "<generation> <UID of the source>/<version of the source> <bytes>".
const CopyAnnotation = "muster.fleet.cattle.io/copied-from"

// NamespaceDigestAnnotation is set by the hub on a Cluster to the SHA-256 digest of a random key before it creates the cluster namespace,
// which has the key in NamespaceKeyAnnotation. The hub does not use a Namespace whose key does not fit: a user created it. The key is no
// secret once the Namespace exists.
const (
	NamespaceDigestAnnotation = "muster.fleet.cattle.io/namespace-digest"
	NamespaceKeyAnnotation    = "muster.fleet.cattle.io/namespace-key"
)
