package registration

// Fields of log lines about one object. Their values are NAMESPACE/NAME, or NAME alone where the namespace is not known.
const (
	LogCluster          = "cluster"
	LogRequest          = "request"
	LogToken            = "token"
	LogBundleDeployment = "bundleDeployment"
)
