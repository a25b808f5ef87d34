package bundle

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Indexes whose keys differ from one object to the next.
var (
	// bundlesByTarget finds Bundles by the Clusters that their targets may match: see nameKey and anyKey.
	bundlesByTarget = index.Bucketed[*fleet.Bundle]{Name: "muster.fleet.cattle.io/bundles-by-target", Keys: targetKeys}
	// clustersByClusterNamespace finds the Cluster of a cluster namespace. The key is computed, because other clients may write status.namespace.
	clustersByClusterNamespace = index.Bucketed[*fleet.Cluster]{Name: "muster.fleet.cattle.io/clusters-by-cluster-namespace", Keys: clusterNamespaceKeys}
	// byAgentBundle finds the BundleDeployments for which isOfAgent is true by the index.Key of their Bundle.
	byAgentBundle = index.Bucketed[*fleet.BundleDeployment]{
		Name: "muster.fleet.cattle.io/deployments-by-agent-bundle",
		Keys: func(deployment *fleet.BundleDeployment) []string { return bundleKeys(deployment, true) },
	}
)

const (
	// byBundle finds the BundleDeployments for which isOfAgent is false by the index.Key of their Bundle.
	byBundle = "muster.fleet.cattle.io/deployments-by-bundle"
	// bySource finds Bundles by the Secrets and ConfigMaps of which they need copies: see sourceKey and unknownSourcesKey.
	bySource = "muster.fleet.cattle.io/bundles-by-source"
	// bySourceUID finds the metadata of copies by the UID of their source.
	bySourceUID = "muster.fleet.cattle.io/copies-by-source"
	// byContent finds BundleDeployments by the name of a Content that they need.
	byContent = "muster.fleet.cattle.io/deployments-by-content"
	// byDisplayName finds Clusters by the index.Key of their namespace and display name.
	byDisplayName = "muster.fleet.cattle.io/clusters-by-display-name"
)

func (d *Deployer) addIndexes() {
	bundlesByTarget.AddTo(d.bundleCache)
	d.bundleCache.AddIndexer(bySource, func(b *fleet.Bundle) (keys []string, err error) {
		sources := sourcesOfBundle(b)
		if isReduced(b) || len(sources) > maxSources {
			return []string{unknownSourcesKey(b.Namespace)}, nil
		}
		for _, r := range sources {
			keys = append(keys, sourceKey(b.Namespace, r))
		}
		return keys, nil
	})
	byAgentBundle.AddTo(d.deploymentCache)
	d.deploymentCache.AddIndexer(byBundle, func(deployment *fleet.BundleDeployment) ([]string, error) {
		return bundleKeys(deployment, false), nil
	})
	d.deploymentCache.AddIndexer(byContent, func(deployment *fleet.BundleDeployment) ([]string, error) {
		return contentsOf(deployment), nil
	})
	d.clusterCache.AddIndexer(byDisplayName, func(c *fleet.Cluster) ([]string, error) {
		if displayName := c.Labels[fleet.ClusterDisplayNameLabel]; displayName != "" {
			return []string{index.Key(c.Namespace, displayName)}, nil
		}
		return nil, nil
	})
	clustersByClusterNamespace.AddTo(d.clusterCache)
	for _, informer := range []cache.SharedIndexInformer{d.SecretMetadata, d.ConfigMapMetadata} {
		_ = informer.AddIndexers(cache.Indexers{bySourceUID: sourceUID}) // fails only for an informer that was stopped
	}
}

func sourceUID(object any) ([]string, error) {
	version, found := parseCopyVersion(object.(metav1.Object))
	if !found {
		return nil, nil
	}
	uid, _, _ := strings.Cut(version.sourceVersion, "/")
	return []string{uid}, nil
}

// deploymentsOfBundle returns the BundleDeployments of a Bundle.
func (d *Deployer) deploymentsOfBundle(b key) ([]*fleet.BundleDeployment, error) {
	ofAgents, err := byAgentBundle.Find(d.deploymentCache, index.Key(b.Namespace, b.Name))
	if err != nil {
		return nil, err
	}
	others, err := d.deploymentCache.GetByIndex(byBundle, index.Key(b.Namespace, b.Name))
	return append(others, ofAgents...), err
}

// bundleKeys returns the index.Key of the Bundle of a BundleDeployment, if it belongs to the agent of its Cluster, or does not, as ofAgent says.
func bundleKeys(deployment *fleet.BundleDeployment, ofAgent bool) []string {
	b := bundleOf(deployment)
	if b == (key{}) || isOfAgent(deployment) != ofAgent {
		return nil
	}
	return []string{index.Key(b.Namespace, b.Name)}
}

// isOfAgent reports whether a BundleDeployment has the name of the Bundle of its Cluster's agent. Such a Bundle has one BundleDeployment, so a set in
// byBundle for each of them would take more memory than the rest of the index.
func isOfAgent(deployment *fleet.BundleDeployment) bool {
	return deployment.Name == registration.AgentBundleName(clusterOf(deployment).Name)
}

func clusterNamespaceKeys(c *fleet.Cluster) []string {
	return []string{registration.ClusterNamespace(c.Namespace, c.Name)}
}

// maxNames is the number of names in the targets of a Bundle up to which bundlesByTarget has a key for each. The buckets of that index have the
// Bundles of all workspaces: one with hundreds of names would be in all of them, and slow down the look-ups of other tenants.
const maxNames = 4

// targetKeys returns the keys of a Bundle in bundlesByTarget. Each agent has a Bundle that names its Cluster, so that a pass
// over one Cluster must not visit the Bundles that name another.
func targetKeys(b *fleet.Bundle) []string {
	keys := make([]string, 0, min(len(b.Spec.Targets), maxNames))
	for _, t := range b.Spec.Targets {
		if t.ClusterName == "" || len(keys) == maxNames {
			return []string{anyKey(b.Namespace)}
		}
		keys = append(keys, nameKey(b.Namespace, t.ClusterName))
	}
	return keys
}

// nameKey returns the key of the Bundles with up to maxNames targets that all name a Cluster, one of them this one.
func nameKey(namespace, cluster string) string { return index.Key(namespace, "name/"+cluster) }

// nameKeys returns the keys of nameKey for the name and for the display name of a Cluster.
func nameKeys(cluster *fleet.Cluster) []string {
	keys := []string{nameKey(cluster.Namespace, cluster.Name)}
	if displayName := cluster.Labels[fleet.ClusterDisplayNameLabel]; displayName != "" && displayName != cluster.Name {
		keys = append(keys, nameKey(cluster.Namespace, displayName))
	}
	return keys
}

// anyKey returns the key of the Bundles of a namespace that have a target without a name, or more than maxNames targets.
func anyKey(namespace string) string { return index.Key(namespace, "*") }

// sourceKey returns the key of the Bundles that name a Secret or ConfigMap of their namespace.
func sourceKey(namespace string, s copySource) string { return index.Key(namespace, s.kind+"/"+s.name) }

// unknownSourcesKey returns the key of the Bundles of a namespace of which nothing new is deployed, because the cache has dropped their spec or they
// name too many sources. The BundleDeployments of an earlier version may name any source.
func unknownSourcesKey(namespace string) string { return index.Key(namespace, "*") }

// key is the namespace and name of an object.
type key = types.NamespacedName

func keyOf(o metav1.Object) key { return key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// contentOf returns the name of the Content in a deployment ID.
func contentOf(deploymentID string) string {
	name, _, found := strings.Cut(deploymentID, ":")
	if !found {
		return ""
	}
	return name
}

// contentsOf returns the names of all Contents that a BundleDeployment needs, by its label and by its deployment IDs.
func contentsOf(deployment *fleet.BundleDeployment) (names []string) {
	if deployment.Spec.OCIContents {
		return nil
	}
	for _, name := range []string{
		deployment.Labels[fleet.ContentNameLabel], contentOf(deployment.Spec.DeploymentID), contentOf(deployment.Spec.StagedDeploymentID),
	} {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// isFromWorkspace reports whether a BundleDeployment was made from a Bundle of that namespace.
func isFromWorkspace(deployment *fleet.BundleDeployment, namespace string) bool {
	return bundleOf(deployment) != key{} && deployment.Labels[fleet.BundleNamespaceLabel] == namespace
}

// bundleOf returns the Bundle that a BundleDeployment was made from, or the empty key if the hub did not make it. The name is that
// of the BundleDeployment, because a label may have a shortened name.
func bundleOf(deployment *fleet.BundleDeployment) key {
	namespace := deployment.Labels[fleet.BundleNamespaceLabel]
	if deployment.Labels[fleet.ManagedLabel] != fleet.ManagedValue || namespace == "" ||
		deployment.Labels[fleet.BundleNameLabel] != registration.LabelValue(deployment.Name) {
		return key{}
	}
	return key{Namespace: namespace, Name: deployment.Name}
}

// clusterOf returns the Cluster of a BundleDeployment.
func clusterOf(deployment *fleet.BundleDeployment) key {
	return key{Namespace: deployment.Labels[fleet.WorkspaceLabel], Name: deployment.Labels[fleet.ClusterLabel]}
}
