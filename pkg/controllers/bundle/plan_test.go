package bundle

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestChoose(t *testing.T) {
	yes, no := fleet.BundleTarget{ClusterName: "alice"}, fleet.BundleTarget{ClusterName: "bob"}
	never := fleet.BundleTarget{ClusterSelector: &metav1.LabelSelector{}, DoNotDeploy: true}
	maybe := fleet.BundleTarget{ClusterGroup: "broken"}
	maybeNever := fleet.BundleTarget{ClusterGroup: "broken", DoNotDeploy: true}
	ofLead, ofIron := fleet.BundleTarget{ClusterGroupSelector: selector("tier", "lead")}, fleet.BundleTarget{ClusterGroupSelector: selector("tier", "iron")}
	onlyMaybe, alsoYes := []fleet.BundleTargetRestriction{{ClusterGroup: "broken"}}, []fleet.BundleTargetRestriction{{ClusterGroup: "broken"}, {ClusterName: "alice"}}
	for _, row := range []struct {
		name         string
		mode         string
		targets      []fleet.BundleTarget
		restrictions []fleet.BundleTargetRestriction
		want         []int
		isUnknown    bool
	}{
		{name: "no target"},
		{name: "no target matches", targets: []fleet.BundleTarget{no, {}}},
		{name: "the first match", targets: []fleet.BundleTarget{no, yes, yes}, want: []int{1}},
		{name: "the first match, set explicitly", mode: "FirstMatch", targets: []fleet.BundleTarget{yes, yes}, want: []int{0}},
		{name: "all matches", mode: "AllMatches", targets: []fleet.BundleTarget{yes, no, yes}, want: []int{0, 2}},
		{name: "the first match is doNotDeploy", targets: []fleet.BundleTarget{never, yes}},
		{name: "the second match is doNotDeploy: ignored", targets: []fleet.BundleTarget{yes, never}, want: []int{0}},
		{name: "one of all matches is doNotDeploy", mode: "AllMatches", targets: []fleet.BundleTarget{yes, never}},
		{name: "a restriction matches", targets: []fleet.BundleTarget{yes}, restrictions: []fleet.BundleTargetRestriction{{ClusterName: "bob"}, {ClusterSelector: selector("env", "prod")}}, want: []int{0}},
		{name: "no restriction matches", targets: []fleet.BundleTarget{yes}, restrictions: []fleet.BundleTargetRestriction{{ClusterName: "bob"}}},
		{name: "unknown", targets: []fleet.BundleTarget{maybe}, isUnknown: true},
		{name: "unknown, by the labels of the group", targets: []fleet.BundleTarget{ofLead}, isUnknown: true},
		{name: "other labels of groups", targets: []fleet.BundleTarget{ofIron}},
		{name: "a group selects it, whatever the unknown one does", targets: []fleet.BundleTarget{{ClusterGroupSelector: &metav1.LabelSelector{}}}, want: []int{0}},
		{name: "unknown, and of another Cluster", targets: []fleet.BundleTarget{{ClusterName: "bob", ClusterGroup: "broken"}}},
		{name: "unknown before a match", targets: []fleet.BundleTarget{maybe, yes}, isUnknown: true},
		{name: "unknown after a match", targets: []fleet.BundleTarget{yes, maybe, maybeNever}, want: []int{0}},
		{name: "unknown before doNotDeploy", targets: []fleet.BundleTarget{maybe, never}, isUnknown: true},
		{name: "unknown after doNotDeploy", targets: []fleet.BundleTarget{never, maybe}},
		{name: "unknown doNotDeploy before a match", targets: []fleet.BundleTarget{maybeNever, yes}, isUnknown: true},
		{name: "unknown doNotDeploy alone", targets: []fleet.BundleTarget{maybeNever, no}},
		{name: "unknown doNotDeploy before doNotDeploy", targets: []fleet.BundleTarget{maybeNever, never, yes}},
		{name: "unknown after a match of all", mode: "AllMatches", targets: []fleet.BundleTarget{yes, maybe}, isUnknown: true},
		{name: "unknown doNotDeploy after a match of all", mode: "AllMatches", targets: []fleet.BundleTarget{yes, maybeNever}, isUnknown: true},
		{name: "unknown, and one of all matches is doNotDeploy", mode: "AllMatches", targets: []fleet.BundleTarget{maybe, never}},
		{name: "an unknown restriction", targets: []fleet.BundleTarget{yes}, restrictions: onlyMaybe, isUnknown: true},
		{name: "an unknown restriction of no target", targets: []fleet.BundleTarget{no}, restrictions: onlyMaybe},
		{name: "an unknown restriction, and doNotDeploy", targets: []fleet.BundleTarget{never, yes}, restrictions: onlyMaybe},
		{name: "one of several restrictions is unknown", targets: []fleet.BundleTarget{yes}, restrictions: alsoYes, want: []int{0}},
		{name: "an empty restriction matches nothing", targets: []fleet.BundleTarget{yes}, restrictions: []fleet.BundleTargetRestriction{{}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := bundleWith(func(s *fleet.BundleSpec) {
				s.Targets, s.TargetRestrictions, s.TargetCustomizationMode = row.targets, row.restrictions, row.mode
			})
			p := planOf(b)
			require.Nil(t, p.problem)
			chosen, isKnown := p.choose(b, alice())
			assert.Equal(t, row.want, chosen)
			assert.Equal(t, row.isUnknown, !isKnown)
		})
	}
}

func TestChooseForTheBundleOfAnAgent(t *testing.T) {
	chosen := func(b *fleet.Bundle, m candidate) []int {
		targets, isKnown := planOf(b).choose(b, m)
		assert.True(t, isKnown)
		return targets
	}
	b := bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterName: "Alice A"}} })
	b.Name, b.Annotations = "fleet-agent-other", map[string]string{"objectset.rio.cattle.io/id": "fleet-manage-agent"}
	assert.Empty(t, chosen(b, alice()), "the display name of another Cluster")
	b.Name = "fleet-agent-alice"
	assert.Empty(t, chosen(b, alice()), "the display name of this Cluster")
	b.Spec.Targets[0].ClusterName = "alice"
	assert.Equal(t, []int{0}, chosen(b, alice()))
	b.Spec.Targets = append(b.Spec.Targets, fleet.BundleTarget{ClusterSelector: &metav1.LabelSelector{}})
	assert.Empty(t, chosen(b, candidate{name: "bob"}))
	b.Name, b.Annotations = "anything", nil
	assert.Equal(t, []int{0}, chosen(b, alice()))
}

func values(data map[string]any) *fleet.HelmOptions {
	return &fleet.HelmOptions{Values: &fleet.GenericMap{Data: data}}
}

func TestMergeOptions(t *testing.T) {
	base := fleet.BundleDeploymentOptions{
		DefaultNamespace: "base", KeepResources: true, NamespaceLabels: map[string]string{"a": "1", "b": "1"},
		Helm:          &fleet.HelmOptions{ReleaseName: "r", ValuesFiles: []string{"x", "y"}, Values: &fleet.GenericMap{Data: map[string]any{"big": int64(9007199254740993), "in": map[string]any{"a": int64(1), "gone": nil}}}},
		IgnoreOptions: &fleet.IgnoreOptions{Conditions: []map[string]string{{"type": "A"}}},
	}
	merged, err := mergeOptions(base,
		fleet.BundleDeploymentOptions{TargetNamespace: "target", NamespaceLabels: map[string]string{"b": "2"}},
		fleet.BundleDeploymentOptions{DefaultNamespace: "last", Helm: &fleet.HelmOptions{ValuesFiles: []string{"z"}, Values: &fleet.GenericMap{Data: map[string]any{"in": map[string]any{"b": "2"}}}}})
	require.NoError(t, err)
	assert.Equal(t, fleet.BundleDeploymentOptions{
		DefaultNamespace: "last", TargetNamespace: "target", KeepResources: true, NamespaceLabels: map[string]string{"a": "1", "b": "2"},
		Helm:          &fleet.HelmOptions{ReleaseName: "r", ValuesFiles: []string{"z"}, Values: &fleet.GenericMap{Data: map[string]any{"big": int64(9007199254740993), "in": map[string]any{"a": int64(1), "gone": nil, "b": "2"}}}},
		IgnoreOptions: &fleet.IgnoreOptions{Conditions: []map[string]string{{"type": "A"}}},
	}, merged)
	assert.Equal(t, map[string]any{"a": int64(1), "gone": nil}, base.Helm.Values.Data["in"], "the Bundle is not modified")
}

// The time does not grow with the number of targets times the number of values.
func TestMergeOptions_many(t *testing.T) {
	values := map[string]any{}
	for i := range 20_000 {
		values[fmt.Sprint("v", i)] = int64(i)
	}
	base := fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{Values: &fleet.GenericMap{Data: values}}}
	var overrides []fleet.BundleDeploymentOptions
	for i := range 1000 {
		overrides = append(overrides, fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"last": int64(i)}}}})
	}
	var merged fleet.BundleDeploymentOptions
	var err error
	allocated := heap.Allocated(func() { merged, err = mergeOptions(append([]fleet.BundleDeploymentOptions{base}, overrides...)...) })
	require.NoError(t, err)
	assert.Len(t, merged.Helm.Values.Data, 20_001)
	assert.Equal(t, int64(999), merged.Helm.Values.Data["last"])
	assert.Less(t, allocated, 100<<20, "the values must not be copied for each target")
}

func TestMergeOptions_lists(t *testing.T) {
	with := func(names ...string) fleet.BundleDeploymentOptions {
		o := fleet.BundleDeploymentOptions{Helm: &fleet.HelmOptions{}, Diff: &fleet.DiffOptions{}, YAML: &fleet.YAMLOptions{Overlays: names}}
		for _, name := range names {
			o.Helm.ValuesFrom = append(o.Helm.ValuesFrom, fleet.ValuesFrom{ConfigMapKeyRef: &fleet.KeySelector{Name: name}})
			o.Diff.ComparePatches = append(o.Diff.ComparePatches, fleet.ComparePatch{Kind: "ConfigMap", Name: name})
		}
		return o
	}
	base := with("a", "b")
	merged, err := mergeOptions(base, with("c"), fleet.BundleDeploymentOptions{}, with(), with("d", "a"))
	require.NoError(t, err)
	assert.Equal(t, with("a", "b", "c", "d", "a"), merged)
	assert.Equal(t, with("a", "b"), base, "the Bundle is not modified")
	merged, err = mergeOptions(fleet.BundleDeploymentOptions{}, with("c"))
	require.NoError(t, err)
	assert.Equal(t, with("c"), merged)
}

func TestMergeOptions_correctDrift(t *testing.T) {
	forced, off := &fleet.CorrectDrift{Enabled: true, Force: true}, &fleet.CorrectDrift{}
	for name, row := range map[string]struct{ base, override, want *fleet.CorrectDrift }{
		"of the Bundle":           {forced, nil, forced},
		"of the target":           {nil, forced, forced},
		"turned off for a target": {forced, off, off},
		"without force":           {forced, &fleet.CorrectDrift{Enabled: true}, &fleet.CorrectDrift{Enabled: true}},
		"neither":                 {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			merged, err := mergeOptions(fleet.BundleDeploymentOptions{CorrectDrift: row.base}, fleet.BundleDeploymentOptions{CorrectDrift: row.override})
			require.NoError(t, err)
			assert.Equal(t, row.want, merged.CorrectDrift)
		})
	}
}

func TestVariant(t *testing.T) {
	b := bundleWith(func(s *fleet.BundleSpec) {
		s.DefaultNamespace = "base"
		s.Targets = []fleet.BundleTarget{{}, {BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: "other"}}}
	})
	p := planOf(b)
	first, err := p.variant(t.Context(), []int{0}, &fleet.Cluster{})
	require.NoError(t, err)
	second, err := p.variant(t.Context(), []int{1}, &fleet.Cluster{})
	require.NoError(t, err)
	again, err := p.variant(t.Context(), []int{0}, &fleet.Cluster{})
	require.NoError(t, err)
	assert.Equal(t, "base", first.options.DefaultNamespace)
	assert.Equal(t, "other", second.options.DefaultNamespace)
	assert.Equal(t, first, again)
	assert.NotEqual(t, first.deploymentID, second.deploymentID)
	name, sum, err := content.Digest(files)
	require.NoError(t, err)
	assert.Equal(t, name, contentOf(first.deploymentID))
	assert.Equal(t, []string{name, sum}, []string{p.content, p.sum})
}

// A Cluster with the annotation gets keepResources in every Bundle except the Bundle of an agent, and so a deployment ID of its own.
func TestVariant_keepWorkloads(t *testing.T) {
	annotated := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fleet.KeepWorkloadsAnnotation: fleet.KeepWorkloadsValue}}}
	denied := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fleet.KeepWorkloadsAnnotation: "false"}}}
	for name, values := range map[string]map[string]any{"plain": {"a": "b"}, "template": {"name": "${ .ClusterName }x"}} {
		t.Run(name, func(t *testing.T) {
			b := bundleWith(func(s *fleet.BundleSpec) {
				s.Helm, s.Targets = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: values}}, []fleet.BundleTarget{{}}
			})
			p := planOf(b)
			kept, err := p.variant(t.Context(), []int{0}, annotated)
			require.NoError(t, err)
			other, err := p.variant(t.Context(), []int{0}, denied)
			require.NoError(t, err)
			assert.True(t, kept.options.KeepResources)
			assert.False(t, other.options.KeepResources)
			assert.Equal(t, other.size, kept.size, "the limit of the workspace does not keep a Cluster from being removed")
			assert.NotEqual(t, kept.deploymentID, other.deploymentID)

			b.Annotations = map[string]string{apply.LabelID: registration.SetIDManageAgent}
			agent, err := planOf(b).variant(t.Context(), []int{0}, annotated)
			require.NoError(t, err)
			assert.Equal(t, other.options, agent.options)
		})
	}
}

func TestVariant_clusterLabels(t *testing.T) {
	for _, disablePreProcess := range []bool{false, true} {
		p := planOf(bundleWith(func(s *fleet.BundleSpec) {
			s.Helm = &fleet.HelmOptions{DisablePreProcess: disablePreProcess, Values: &fleet.GenericMap{Data: map[string]any{
				"env": "global.fleet.clusterLabels.env", "same": "x",
				"in": []any{map[string]any{"region": "global.fleet.clusterLabels.region"}},
			}}}
			s.Targets = []fleet.BundleTarget{{}}
		}))
		east, err := p.variant(t.Context(), []int{0}, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"env": "dev", "region": "east", "other": "1"}}})
		require.NoError(t, err)
		assert.JSONEq(t, `{"env":"dev","in":[{"region":"east"}],"same":"x"}`, string(east.values))
		again, err := p.variant(t.Context(), []int{0}, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"env": "dev", "region": "east", "other": "2"}}})
		require.NoError(t, err)
		assert.Equal(t, east, again, "only the labels in the values count")
		none, err := p.variant(t.Context(), []int{0}, &fleet.Cluster{})
		require.NoError(t, err)
		assert.JSONEq(t, `{"env":"","in":[{"region":""}],"same":"x"}`, string(none.values))
		assert.NotEqual(t, east.deploymentID, none.deploymentID)
	}
}

func TestNewPlanProblem(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*fleet.BundleSpec)
		reason string
		says   string
	}{
		{"a range of versions of a chart that the agent downloads", func(s *fleet.BundleSpec) {
			s.HelmOpOptions, s.Helm = &fleet.GenericMap{}, &fleet.HelmOptions{Version: "0.1.*"}
		}, fleet.ReasonBundleInvalid, `spec.helm.version "0.1.*" is not the version of one chart`},
		{"a rollout strategy with a text", func(s *fleet.BundleSpec) {
			s.RolloutStrategy = &fleet.RolloutStrategy{Partitions: []fleet.Partition{{MaxUnavailable: ptr.To(intstr.FromString("some"))}}}
		}, fleet.ReasonBundleInvalid, `spec.rolloutStrategy.partitions[0].maxUnavailable is "some"`},
		{"a rollout strategy with a negative number", func(s *fleet.BundleSpec) {
			s.RolloutStrategy = &fleet.RolloutStrategy{AutoPartitionSize: ptr.To(intstr.FromInt32(-1))}
		}, fleet.ReasonBundleInvalid, `spec.rolloutStrategy.autoPartitionSize is "-1"`},
		{"a partition with an invalid selector", func(s *fleet.BundleSpec) {
			s.RolloutStrategy = &fleet.RolloutStrategy{Partitions: []fleet.Partition{{ClusterSelector: selector("a b", "")}}}
		}, fleet.ReasonBundleInvalid, "spec.rolloutStrategy.partitions[0].clusterSelector"},
		{"a downstream resource of another kind", func(s *fleet.BundleSpec) {
			s.Targets = []fleet.BundleTarget{{BundleDeploymentOptions: fleet.BundleDeploymentOptions{DownstreamResources: []fleet.DownstreamResource{{Kind: "Pod", Name: "p"}}}}}
		}, fleet.ReasonBundleInvalid, `downstreamResources has kind "Pod" and name "p"`},
		{"more downstream resources than the hub looks up", func(s *fleet.BundleSpec) {
			s.Targets = []fleet.BundleTarget{{BundleDeploymentOptions: fleet.BundleDeploymentOptions{DownstreamResources: make([]fleet.DownstreamResource, 1001)}}}
		}, fleet.ReasonBundleInvalid, "name 1001 Secrets and ConfigMaps in downstreamResources; they may name 1000"},
		{"a spec that the cache has dropped", func(s *fleet.BundleSpec) {
			*s = fleet.BundleSpec{Targets: []fleet.BundleTarget{{}}, TooLarge: true}
		}, fleet.ReasonBundleInvalid, "the spec takes more than 8 MiB of memory"},
		{"an unknown mode", func(s *fleet.BundleSpec) { s.TargetCustomizationMode = "Some" }, fleet.ReasonBundleInvalid, `spec.targetCustomizationMode is "Some"`},
		{"an invalid restriction", func(s *fleet.BundleSpec) {
			s.TargetRestrictions = []fleet.BundleTargetRestriction{{ClusterSelector: selector("a b", "")}}
		}, fleet.ReasonBundleInvalid, "spec.targetRestrictions[0].clusterSelector"},
		{"more selectors than the hub evaluates for each Cluster", func(s *fleet.BundleSpec) {
			s.Targets = slices.Repeat([]fleet.BundleTarget{{ClusterSelector: selector("a", "b")}}, 600)
			s.TargetRestrictions = slices.Repeat([]fleet.BundleTargetRestriction{{ClusterGroup: "g"}}, 401)
		}, fleet.ReasonBundleInvalid, "have 1001 entries that select Clusters by label or group; they may have 1000"},
		{"a file of an unknown encoding", func(s *fleet.BundleSpec) { s.Resources = []fleet.BundleResource{{Name: "f", Encoding: "zip"}} }, fleet.ReasonBundleInvalid, "spec.resources: resource f"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := bundleWith(row.change)
			b.Spec.Targets = append(b.Spec.Targets, fleet.BundleTarget{ClusterName: "alice"})
			p := planOf(b)
			require.NotNil(t, p.problem)
			assert.Equal(t, row.reason, p.problem.reason)
			assert.Contains(t, p.problem.message, row.says)
			chosen, isKnown := p.choose(b, alice())
			assert.True(t, isKnown && len(chosen) == 0)
		})
	}
}

func TestNewPlanWithoutProblem(t *testing.T) {
	for name, change := range map[string]func(*fleet.BundleSpec){
		"a strategy that limits nothing": func(s *fleet.BundleSpec) { s.RolloutStrategy = &fleet.RolloutStrategy{} },
		"a dollar":                       func(s *fleet.BundleSpec) { s.Helm = values(map[string]any{"price": "$5"}) },
		"disablePreProcess": func(s *fleet.BundleSpec) {
			s.Helm = values(map[string]any{"script": "${HOME}"})
			s.Helm.DisablePreProcess = true
		},
		"many names": func(s *fleet.BundleSpec) {
			s.Targets = slices.Repeat([]fleet.BundleTarget{{ClusterName: "alice"}}, 2000)
			s.TargetRestrictions = slices.Repeat([]fleet.BundleTargetRestriction{{ClusterName: "alice"}}, 2000)
		},
		"no resources": func(s *fleet.BundleSpec) { s.Resources = nil },
	} {
		t.Run(name, func(t *testing.T) { assert.Nil(t, planOf(bundleWith(change)).problem) })
	}
}

func TestPlans(t *testing.T) {
	all := newPlans(&app.Context{})
	b := bundleWith(func(*fleet.BundleSpec) {})
	first := all.of(t.Context(), b)
	assert.Same(t, first, all.of(t.Context(), b.DeepCopy()))
	changed := b.DeepCopy()
	changed.Generation++
	second := all.of(t.Context(), changed)
	assert.NotSame(t, first, second)
	again := changed.DeepCopy()
	again.UID = "another of that name"
	assert.NotSame(t, second, all.of(t.Context(), again))
	all.forget(keyOf(b))
	assert.Empty(t, all.byKey)
}

func TestTargetKeys(t *testing.T) {
	agent := fleet.BundleTarget{ClusterName: "alice", ClusterSelector: selector("a", "b")}
	for _, row := range []struct {
		name    string
		targets []fleet.BundleTarget
		want    []string
	}{
		{"no target", nil, []string{}},
		{"the target of an agent: a name and a selector", []fleet.BundleTarget{agent}, []string{"ws/name/alice"}},
		{"names", []fleet.BundleTarget{agent, {ClusterName: "bob"}}, []string{"ws/name/alice", "ws/name/bob"}},
		{"as many names as have a key", []fleet.BundleTarget{agent, agent, agent, agent}, []string{"ws/name/alice", "ws/name/alice", "ws/name/alice", "ws/name/alice"}},
		{"one more: the Bundle would need too many index keys", []fleet.BundleTarget{agent, agent, agent, agent, agent}, []string{"ws/*"}},
		{"a selector", []fleet.BundleTarget{{ClusterSelector: selector("a", "b")}}, []string{"ws/*"}},
		{"a name and a group", []fleet.BundleTarget{agent, {ClusterGroup: "g"}}, []string{"ws/*"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			assert.Equal(t, row.want, targetKeys(bundleWith(func(s *fleet.BundleSpec) { s.Targets = row.targets })))
		})
	}
}

// Reading a large Bundle takes long. The plans of other Bundles do not wait for it.
func TestPlansOfOthers(t *testing.T) {
	s := newStage(t)
	large := targetingAlice()
	large.Name = "large"
	reading := s.plans.find(large)
	reading.mu.Lock()
	defer reading.mu.Unlock()
	assert.NotEmpty(t, s.plans.of(t.Context(), targetingAlice()).targets)
}
