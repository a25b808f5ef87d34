package bundle

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func someVariant(namespace, id string) variant {
	return variant{options: fleet.BundleDeploymentOptions{DefaultNamespace: namespace}, deploymentID: id}
}

func someCluster() *fleet.Cluster {
	return &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "alice"}}
}

func TestWhatIsStagedIsDeployedUnlessSomethingIsPaused(t *testing.T) {
	old := &fleet.BundleDeployment{Spec: fleet.BundleDeploymentSpec{
		StagedOptions: fleet.BundleDeploymentOptions{DefaultNamespace: "old"}, StagedDeploymentID: "s-old:1",
		Options: fleet.BundleDeploymentOptions{DefaultNamespace: "old"}, DeploymentID: "s-old:1",
	}}
	for _, row := range []struct {
		name                         string
		pausedBundle, pausedCluster  bool
		existing                     *fleet.BundleDeployment
		deployed, namespace, content string
	}{
		{"the first", false, false, nil, "s-new:2", "new", "s-new"},
		{"a change", false, false, old, "s-new:2", "new", "s-new"},
		{"the Bundle is paused", true, false, old, "s-old:1", "old", "s-old"},
		{"the Cluster is paused", false, true, old, "s-old:1", "old", "s-old"},
		{"paused before the first", true, true, nil, "", "", "s-new"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b, c := bundleWith(func(s *fleet.BundleSpec) { s.Paused = row.pausedBundle }), someCluster()
			c.Spec.Paused = row.pausedCluster
			d := desired(b, someVariant("new", "s-new:2"), c, row.existing)
			assert.Equal(t, row.deployed, d.Spec.DeploymentID)
			assert.Equal(t, row.namespace, d.Spec.Options.DefaultNamespace)
			assert.Equal(t, "s-new:2", d.Spec.StagedDeploymentID)
			assert.Equal(t, "new", d.Spec.StagedOptions.DefaultNamespace)
			assert.Equal(t, row.content, d.Labels["fleet.cattle.io/content-name"])
			assert.Equal(t, row.pausedBundle || row.pausedCluster, d.Spec.Paused)
		})
	}
}

func TestABundleDeploymentOfAnEarlierHubBecomesOurs(t *testing.T) {
	existing := &fleet.BundleDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "app", UID: "u", Finalizers: []string{"f"}, Annotations: map[string]string{"a": "b"}, Labels: map[string]string{"old": "x"}},
		Spec: fleet.BundleDeploymentSpec{
			OCIContents: true, HelmChartOptions: &fleet.GenericMap{}, ValuesHash: "x", WaitingForValues: true, OffSchedule: true, DownstreamResourcesGeneration: 3,
		},
	}
	before := existing.DeepCopy()
	d := desired(bundleWith(func(*fleet.BundleSpec) {}), someVariant("n", "s:1"), someCluster(), existing)
	assert.Equal(t, before, existing, "the cache's own is not touched")
	assert.False(t, d.Spec.OCIContents || d.Spec.WaitingForValues)
	assert.Nil(t, d.Spec.HelmChartOptions)
	assert.Empty(t, d.Spec.ValuesHash)
	assert.True(t, d.Spec.OffSchedule, "what another component decides stays")
	assert.Equal(t, int64(3), d.Spec.DownstreamResourcesGeneration)
	assert.Equal(t, []any{existing.UID, existing.Finalizers, existing.Annotations}, []any{d.UID, d.Finalizers, d.Annotations})
	assert.NotContains(t, d.Labels, "old")
}

func TestNamesThatAreTooLongForALabelAreShortened(t *testing.T) {
	long := strings.Repeat("x", 80)
	b, c := bundleWith(func(*fleet.BundleSpec) {}), someCluster()
	b.Name, c.Name = long, long
	d := desired(b, someVariant("n", "s-c:1"), c, nil)
	assert.Equal(t, long, d.Name)
	assert.Equal(t, registration.ClusterNamespace("ws", long), d.Namespace)
	assert.Len(t, d.Labels["fleet.cattle.io/bundle-name"], 63)
	assert.Len(t, d.Labels["fleet.cattle.io/cluster"], 63)
	assert.Equal(t, key{Namespace: "ws", Name: long}, bundleOf(d), "the Bundle is found all the same")
}

func TestOnlyWhatTheHubMadeOfABundleOfTheNamespaceIsOurs(t *testing.T) {
	ours := func() *fleet.BundleDeployment {
		return desired(bundleWith(func(*fleet.BundleSpec) {}), someVariant("n", "s-c:1"), someCluster(), nil)
	}
	assert.True(t, isOf(ours(), "ws"))
	assert.False(t, isOf(ours(), "other"))
	for name, change := range map[string]func(*fleet.BundleDeployment){
		"no label that it is managed": func(d *fleet.BundleDeployment) { delete(d.Labels, fleet.ManagedLabel) },
		"no namespace":                func(d *fleet.BundleDeployment) { delete(d.Labels, fleet.BundleNamespaceLabel) },
		"of another Bundle":           func(d *fleet.BundleDeployment) { d.Labels[fleet.BundleNameLabel] = "other" },
		"no labels at all":            func(d *fleet.BundleDeployment) { d.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := ours()
			change(d)
			assert.False(t, isOf(d, "ws"))
			assert.False(t, isOf(d, ""))
			assert.Equal(t, key{}, bundleOf(d))
		})
	}
}

func TestAllContentsThatAreNeededAreKnown(t *testing.T) {
	d := &fleet.BundleDeployment{Spec: fleet.BundleDeploymentSpec{DeploymentID: "a:1", StagedDeploymentID: "b:2"}}
	assert.Equal(t, []string{"a", "b"}, contentsOf(d))
	d.Labels = map[string]string{"fleet.cattle.io/content-name": "c"}
	assert.Equal(t, []string{"c", "a", "b"}, contentsOf(d))
	d.Spec.DeploymentID, d.Spec.StagedDeploymentID = "c:1", ""
	assert.Equal(t, []string{"c"}, contentsOf(d))
	assert.Empty(t, contentsOf(&fleet.BundleDeployment{Spec: fleet.BundleDeploymentSpec{DeploymentID: "no colon"}}))
}

func TestBundlesAreFoundByTheClustersTheyMayBeFor(t *testing.T) {
	agent := fleet.BundleTarget{ClusterName: "alice", ClusterSelector: selector("a", "b")}
	for _, row := range []struct {
		name    string
		targets []fleet.BundleTarget
		want    []string
	}{
		{"no target", nil, []string{}},
		{"of an agent: a name and a selector", []fleet.BundleTarget{agent}, []string{"ws/name/alice"}},
		{"names", []fleet.BundleTarget{agent, {ClusterName: "bob"}}, []string{"ws/name/alice", "ws/name/bob"}},
		{"a selector", []fleet.BundleTarget{{ClusterSelector: selector("a", "b")}}, []string{"ws/*"}},
		{"a name and something else", []fleet.BundleTarget{agent, {ClusterGroup: "g"}}, []string{"ws/*"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			keys, err := bundleByTarget(bundleWith(func(s *fleet.BundleSpec) { s.Targets = row.targets }))
			require.NoError(t, err)
			assert.Equal(t, row.want, keys)
		})
	}
}
