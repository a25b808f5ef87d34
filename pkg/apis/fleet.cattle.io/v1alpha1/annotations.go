package v1alpha1

// KubeconfigAllowedAnnotation is put on a kubeconfig Secret by whoever owns it: a comma-separated list of namespaces
// whose Clusters may use it, or "*". Without it only Clusters of the Secret's own namespace may, and those of any
// namespace where the Secret is in one of the namespaces management servers keep them in.
const KubeconfigAllowedAnnotation = "muster.fleet.cattle.io/kubeconfig-allowed-namespaces"
