package bundle

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
)

func selector(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func group(name string, labels map[string]string, selects *metav1.LabelSelector) *fleet.ClusterGroup {
	return &fleet.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: fleet.ClusterGroupSpec{Selector: selects}}
}

// alice returns a Cluster in the groups "edge" (tier: gold) and "north" (tier: tin). The group "broken" (tier: lead) cannot be read.
func alice() candidate {
	m := inGroups(candidate{name: "alice", displayName: "Alice A", labels: map[string]string{"env": "prod"}},
		group("edge", map[string]string{"tier": "gold"}, nil), group("north", map[string]string{"tier": "tin"}, nil))
	others := m.workspace.list()
	m.workspace = newWorkspaceGroups(func() []*fleet.ClusterGroup {
		return append(others, group("broken", map[string]string{"tier": "lead"}, expression("env", "Inn")))
	}, clustergroup.Compile)
	return m
}

// inGroups adds the ClusterGroups that select a Cluster, and 70 others before them.
func inGroups(m candidate, groups ...*fleet.ClusterGroup) candidate {
	const others = 70
	m.workspace = newWorkspaceGroups(func() (all []*fleet.ClusterGroup) {
		for n := range others {
			all = append(all, group(fmt.Sprint("other-", n), map[string]string{"tier": "iron"}, nil))
		}
		return append(all, groups...)
	}, clustergroup.Compile)
	m.groups = func() (set bitset) {
		for n := range groups {
			set = set.with(others + n)
		}
		return set
	}
	return m
}

func TestMatch(t *testing.T) {
	for _, row := range []struct {
		name   string
		target fleet.BundleTarget
		want   bool
	}{
		{"empty", fleet.BundleTarget{}, false},
		{"a group that exists and does not select it", fleet.BundleTarget{ClusterGroup: "other-69"}, false},
		{"the labels of groups that do not select it", fleet.BundleTarget{ClusterGroupSelector: selector("tier", "iron")}, false},
		{"the name of the target", fleet.BundleTarget{Name: "alice"}, false},
		{"an empty selector", fleet.BundleTarget{ClusterSelector: &metav1.LabelSelector{}}, true},
		{"the name", fleet.BundleTarget{ClusterName: "alice"}, true},
		{"the display name", fleet.BundleTarget{ClusterName: "Alice A"}, true},
		{"another name", fleet.BundleTarget{ClusterName: "bob"}, false},
		{"the labels", fleet.BundleTarget{ClusterSelector: selector("env", "prod")}, true},
		{"other labels", fleet.BundleTarget{ClusterSelector: selector("env", "dev")}, false},
		{"the absence of a label", fleet.BundleTarget{ClusterSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "fleet.cattle.io/non-managed-agent", Operator: metav1.LabelSelectorOpDoesNotExist},
		}}}, true},
		{"the group", fleet.BundleTarget{ClusterGroup: "north"}, true},
		{"another group", fleet.BundleTarget{ClusterGroup: "south"}, false},
		{"labels of a group", fleet.BundleTarget{ClusterGroupSelector: selector("tier", "gold")}, true},
		{"labels that no group has", fleet.BundleTarget{ClusterGroupSelector: selector("tier", "none")}, false},
		{"labels of any group", fleet.BundleTarget{ClusterGroupSelector: &metav1.LabelSelector{}}, true},
		{"name and labels", fleet.BundleTarget{ClusterName: "alice", ClusterSelector: selector("env", "prod")}, true},
		{"the name, but other labels", fleet.BundleTarget{ClusterName: "alice", ClusterSelector: selector("env", "dev")}, false},
		{"the labels, but another group", fleet.BundleTarget{ClusterSelector: selector("env", "prod"), ClusterGroup: "south"}, false},
		{"a group with these labels", fleet.BundleTarget{ClusterGroup: "edge", ClusterGroupSelector: selector("tier", "gold")}, true},
		{"one group and the labels of another", fleet.BundleTarget{ClusterGroup: "edge", ClusterGroupSelector: selector("tier", "tin")}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := newCriteria(row.target.ClusterName, row.target.ClusterSelector, row.target.ClusterGroup, row.target.ClusterGroupSelector)
			require.NoError(t, err)
			matches, isKnown := c.match(alice())
			assert.True(t, isKnown)
			assert.Equal(t, row.want, matches)
		})
	}
}

func TestMatchesHaveEachClusterOnce(t *testing.T) {
	s := newStage(t)
	a, b := clusterNamed("alice"), clusterNamed("bob")
	a.Labels = map[string]string{fleet.ClusterDisplayNameLabel: "alice"}
	b.Labels = map[string]string{fleet.ClusterDisplayNameLabel: "Bob"}
	app := bundleWith(func(s *fleet.BundleSpec) {
		s.Targets = []fleet.BundleTarget{{ClusterName: "alice"}, {ClusterName: "bob"}, {ClusterName: "Bob"}}
	})
	s.has(t, a, b)
	assert.Len(t, s.matching(app), 2)
	assert.Equal(t, "0/2 Pending(2) [Cluster ws/alice; Cluster ws/bob]", s.shown(app))
}

func TestMatchListsGroupsOnlyForTargetsThatSelectThem(t *testing.T) {
	m := alice()
	m.groups = func() bitset { t.Error("matched"); return nil }
	m.workspace = newWorkspaceGroups(func() []*fleet.ClusterGroup { t.Error("listed"); return nil }, clustergroup.Compile)
	c, err := newCriteria("alice", selector("env", "prod"), "", nil)
	require.NoError(t, err)
	matches, isKnown := c.match(m)
	assert.True(t, matches && isKnown)
}

// A user of a workspace may write many targets that select many groups. A selector is matched with a group once in a pass, not for each Cluster.
func TestGroupSelectorsAreMatchedOncePerPass(t *testing.T) {
	const groups, clusters, targets = 70, 20, 30
	s := newStage(t)
	for n := range groups {
		g := group(fmt.Sprint("g-", n), map[string]string{"tier": "gold"}, &metav1.LabelSelector{})
		g.Namespace = "ws"
		s.has(t, g)
	}
	for n := range clusters {
		s.has(t, clusterNamed(fmt.Sprint("c-", n)))
	}
	b := bundleWith(func(s *fleet.BundleSpec) {
		for range targets {
			s.Targets = append(s.Targets, fleet.BundleTarget{ClusterGroupSelector: selector("tier", "tin")})
		}
	})
	counted := 0
	for i := range s.plans.of(t.Context(), b).targets {
		selector := s.plans.of(t.Context(), b).targets[i].groups
		if _, isCounted := selector.Selector.(countingSelector); !isCounted {
			selector.Selector = countingSelector{selector.Selector, &counted}
		}
	}
	assert.Empty(t, s.matching(b))
	assert.Equal(t, groups, counted)
}

type countingSelector struct {
	labels.Selector
	matched *int
}

func (s countingSelector) Matches(l labels.Labels) bool {
	*s.matched++
	return s.Selector.Matches(l)
}

func TestNewCriteriaNamesInvalidSelectors(t *testing.T) {
	wrong := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
	_, err := newCriteria("", wrong, "", wrong)
	require.ErrorContains(t, err, `clusterSelector: "Like" is not a valid label selector operator`)
	require.ErrorContains(t, err, "clusterGroupSelector: ")
}

func TestCandidateOf_groups(t *testing.T) {
	for name, row := range map[string]struct {
		selector          *metav1.LabelSelector
		selected, unknown bool
	}{
		"its labels":        {selector("env", "prod"), true, false},
		"everything":        {&metav1.LabelSelector{}, true, false},
		"other labels":      {selector("env", "dev"), false, false},
		"no selector":       {nil, false, false},
		"an invalid one":    {expression("env", "x"), false, true},
		"one too large":     {notInMany(clustergroup.MaxSelector), false, true},
		"one just as large": {notInMany(clustergroup.MaxSelector - 1), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, g, cluster := newStage(t), group("g", nil, row.selector), clusterNamed("alice")
			g.Namespace, cluster.Labels = cluster.Namespace, map[string]string{"env": "prod"}
			s.has(t, g)
			groups := s.groupsOf("ws")
			assert.Equal(t, row.selected, candidateOf(cluster, groups).groups().has(0))
			assert.Equal(t, row.unknown, groups.unknown().has(0))
		})
	}
}

// notInMany returns a selector with one expression and so many values.
func notInMany(values int) *metav1.LabelSelector {
	e := metav1.LabelSelectorRequirement{Key: "env", Operator: metav1.LabelSelectorOpNotIn}
	for n := range values {
		e.Values = append(e.Values, fmt.Sprint("v", n))
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}}
}
