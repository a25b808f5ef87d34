package v1alpha1

// KubeconfigAllowedAnnotation is put on a kubeconfig Secret by whoever owns it: a comma-separated list of namespaces
// whose Clusters may use it, or "*". Without it only Clusters of the Secret's own namespace may, and, where that is
// fleet-default, in which management servers keep such Secrets, those of any namespace.
const KubeconfigAllowedAnnotation = "muster.fleet.cattle.io/kubeconfig-allowed-namespaces"

// FarewellAnnotation is put, with any value, by the hub on the BundleDeployment of an agent whose Cluster is being
// deleted. The agent removes all it deployed, says so by condition Farewell, and then removes itself.
const FarewellAnnotation = "muster.fleet.cattle.io/farewell"

// CreatorAnnotation is put on every ClusterRegistration by the API server itself, by an admission policy of the hub: the
// name of the user that created it. The policies let nobody set or change it.
const CreatorAnnotation = "muster.fleet.cattle.io/created-by"

// CredentialAnnotation is CredentialIssued on the kubeconfig Secret that the hub makes for its own cluster: the kubeconfig has
// no credential. The hub issues one for itself whenever it calls its own cluster, keeps it in memory, and lets it end after
// minutes. On any other Secret the annotation means nothing.
const (
	CredentialAnnotation = "muster.fleet.cattle.io/credential"
	CredentialIssued     = "issued"
)
