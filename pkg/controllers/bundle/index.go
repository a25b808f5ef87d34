package bundle

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// byTarget finds Bundles by the Clusters they may be for: see nameKey and anyKey.
	byTarget = "muster.fleet.cattle.io/bundles-by-target"
	// byBundle finds BundleDeployments by Key(namespace, name) of their Bundle.
	byBundle = "muster.fleet.cattle.io/deployments-by-bundle"
	// byContent finds BundleDeployments by the name of a Content they need.
	byContent = "muster.fleet.cattle.io/deployments-by-content"
	// byDisplayName finds Clusters by Key(namespace, display name).
	byDisplayName = "muster.fleet.cattle.io/clusters-by-display-name"
	// byClusterNamespace finds the Cluster of a cluster namespace. It is computed, for nobody else may say it.
	byClusterNamespace = "muster.fleet.cattle.io/clusters-by-cluster-namespace"
)

// key is the namespace and name of an object.
type key = types.NamespacedName

func keyOf(o metav1.Object) key { return key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// nameKey finds Bundles all of whose targets name a Cluster, of which there is one for each agent: they are never walked.
func nameKey(namespace, cluster string) string { return index.Key(namespace, "name/"+cluster) }

// anyKey finds the Bundles of a namespace that may be for any Cluster.
func anyKey(namespace string) string { return index.Key(namespace, "*") }

func bundleByTarget(b *fleet.Bundle) ([]string, error) {
	keys := make([]string, 0, len(b.Spec.Targets))
	for _, t := range b.Spec.Targets {
		if t.ClusterName == "" {
			return []string{anyKey(b.Namespace)}, nil
		}
		keys = append(keys, nameKey(b.Namespace, t.ClusterName))
	}
	return keys, nil
}

func deploymentByBundle(d *fleet.BundleDeployment) ([]string, error) {
	b := bundleOf(d)
	if b == (key{}) {
		return nil, nil
	}
	return []string{index.Key(b.Namespace, b.Name)}, nil
}

func deploymentByContent(d *fleet.BundleDeployment) ([]string, error) { return contentsOf(d), nil }

func clusterByDisplayName(c *fleet.Cluster) ([]string, error) {
	name := c.Labels[fleet.ClusterDisplayNameLabel]
	if name == "" {
		return nil, nil
	}
	return []string{index.Key(c.Namespace, name)}, nil
}

func clusterByClusterNamespace(c *fleet.Cluster) ([]string, error) {
	return []string{registration.ClusterNamespace(c.Namespace, c.Name)}, nil
}
