// Package v1beta1 has the kinds of API group clusters.clusternet.io with which unchanged Clusternet agents register and report, as far as
// the hub uses them. A hub watches them only if hub.Options.Clusternet is set.
package v1beta1

// RequestPrefix and the clusterId are the name of a ClusterRegistrationRequest.
const RequestPrefix = "clusternet-"

// ClusterIDLabel is the label by which an agent finds its ManagedCluster.
const ClusterIDLabel = "clusters.clusternet.io/cluster-id"

// AgentSecret is the Secret in the cluster namespace in which an agent offers a credential for its own cluster. The admission policies
// remove the credential from it.
const AgentSecret = "child-cluster-deployer"

// ReservedPrefixes are the prefixes of the label keys of Clusternet's own hub. An agent may not set them on its Cluster.
var ReservedPrefixes = []string{"clusters.clusternet.io/", "clusternet.io/"}
