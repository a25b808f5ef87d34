package bundle

import (
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// desired is the BundleDeployment of a Bundle for a Cluster as it should be, made from the one that exists, if any: what
// the hub does not decide stays. While something is paused, only what is staged follows the Bundle.
func desired(b *fleet.Bundle, v variant, cluster *fleet.Cluster, existing *fleet.BundleDeployment) *fleet.BundleDeployment {
	d := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: registration.ClusterNamespace(cluster.Namespace, cluster.Name), Name: b.Name,
	}}
	if existing != nil {
		d.ObjectMeta, d.Spec = *existing.ObjectMeta.DeepCopy(), *existing.Spec.DeepCopy()
	}
	s := &d.Spec
	s.Paused = b.Spec.Paused || cluster.Spec.Paused
	s.StagedOptions, s.StagedDeploymentID = v.options, v.deploymentID
	if !s.Paused {
		s.Options, s.DeploymentID = v.options, v.deploymentID
	}
	s.DependsOn = b.Spec.DependsOn
	s.CorrectDrift = v.options.CorrectDrift
	// The resources are in a Content and the values in the options, whatever an earlier hub did.
	s.OCIContents, s.HelmChartOptions, s.ValuesHash, s.WaitingForValues = false, nil, "", false
	d.Labels = labelsOf(b, cluster, contentOf(s.DeploymentID, s.StagedDeploymentID))
	return d
}

// labelsOf are all labels of a BundleDeployment. Those of the Bundle are among them, for other Bundles may depend on it by
// its labels; those that tools put on what they manage are not, for they do not manage this.
func labelsOf(b *fleet.Bundle, cluster *fleet.Cluster, contentName string) map[string]string {
	all := map[string]string{}
	for key, value := range b.Labels {
		if strings.HasPrefix(key, fleet.ReservedPrefix) || !strings.Contains(key, "cattle.io/") {
			all[key] = value
		}
	}
	maps.Copy(all, map[string]string{
		fleet.ManagedLabel:          fleet.ManagedValue,
		fleet.BundleNameLabel:       registration.LabelValue(b.Name),
		fleet.BundleNamespaceLabel:  b.Namespace,
		fleet.ClusterLabel:          registration.LabelValue(cluster.Name),
		fleet.ClusterNamespaceLabel: cluster.Namespace,
		fleet.ContentNameLabel:      contentName,
	})
	return all
}

// contentOf is the Content in the first of these deployment IDs that is set.
func contentOf(deploymentIDs ...string) string {
	for _, id := range deploymentIDs {
		if name, _, found := strings.Cut(id, ":"); found {
			return name
		}
	}
	return ""
}

// contentsOf are all Contents a BundleDeployment needs, by its label and by what it says.
func contentsOf(d *fleet.BundleDeployment) (names []string) {
	seen := map[string]bool{"": true}
	for _, name := range []string{
		d.Labels[fleet.ContentNameLabel], contentOf(d.Spec.DeploymentID), contentOf(d.Spec.StagedDeploymentID),
	} {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// isOf says whether a BundleDeployment was made from a Bundle of that namespace.
func isOf(d *fleet.BundleDeployment, namespace string) bool {
	return bundleOf(d) != key{} && d.Labels[fleet.BundleNamespaceLabel] == namespace
}

// bundleOf is the Bundle a BundleDeployment was made from; none, for one that is not the hub's. The name is that of the
// BundleDeployment, for a label may have to be shorter.
func bundleOf(d *fleet.BundleDeployment) key {
	namespace := d.Labels[fleet.BundleNamespaceLabel]
	if d.Labels[fleet.ManagedLabel] != fleet.ManagedValue || namespace == "" ||
		d.Labels[fleet.BundleNameLabel] != registration.LabelValue(d.Name) {
		return key{}
	}
	return key{Namespace: namespace, Name: d.Name}
}
