package bundle

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// The kind of ClusterGroups is deleted and created again, groups come back one by one, cannot be read, and are corrected, and the labels of Clusters change,
// in a random order. A pass must do what is right with all groups as they are to be, and whenever the missing and unreadable ones cannot change that; else
// nothing.
func TestAssign_randomGroups(t *testing.T) {
	random := sample.Random(t)
	for round := range 30 {
		g := newGroupSimulation(t, random)
		for step := range 40 {
			event := g.change()
			g.pass(event)
			if t.Failed() {
				require.FailNow(t, "stopped", "round %d, step %d: %s; targets %+v, restrictions %+v", round, step, event, g.bundle.Spec.Targets, g.bundle.Spec.TargetRestrictions)
			}
		}
		g.restoreAll()
	}
}

// groupSimulation has one Bundle, whose target i deploys with the namespace label "i", and the groups and Clusters of a workspace.
type groupSimulation struct {
	*testing.T
	*rand.Rand
	*stage
	bundle   *fleet.Bundle
	clusters []*fleet.Cluster
	groups   map[string]*fleet.ClusterGroup // as they are to be
	version  int64                          // of the group that was written last
	deployed map[string]string              // the targets with whose options the Bundle is deployed, by Cluster

	isDefined bool // the kind exists
	defined   time.Time
	// protected is when the hub last had a reason to keep a BundleDeployment although no group selects its Cluster. It may remember that for a while.
	protected time.Time
}

func newGroupSimulation(t *testing.T, random *rand.Rand) *groupSimulation {
	g := &groupSimulation{
		T: t, Rand: random, stage: newStage(t), groups: map[string]*fleet.ClusterGroup{}, deployed: map[string]string{},
		isDefined: true, defined: noon.Add(-1000 * time.Hour),
	}
	g.define()
	for i := range 4 {
		cluster := clusterNamed(fmt.Sprint("c", i))
		cluster.Labels = g.labels()
		g.clusters = append(g.clusters, cluster)
		g.has(t, cluster)
		made := group(fmt.Sprint("g", i), g.labels(), g.selector())
		made.Namespace, made.UID = "ws", "uid-of-group"
		g.groups[made.Name] = made
		g.restore(made.Name, false)
	}
	g.bundle = bundleWith(func(s *fleet.BundleSpec) {
		for i := range 1 + g.IntN(4) {
			target := fleet.BundleTarget{DoNotDeploy: g.IntN(3) == 0}
			target.ClusterName, target.ClusterSelector, target.ClusterGroup, target.ClusterGroupSelector = g.criteria()
			target.NamespaceLabels = map[string]string{fmt.Sprint(i): "yes"}
			s.Targets = append(s.Targets, target)
		}
		if g.IntN(3) == 0 {
			var r fleet.BundleTargetRestriction
			r.ClusterName, r.ClusterSelector, r.ClusterGroup, r.ClusterGroupSelector = g.criteria()
			s.TargetRestrictions = append(s.TargetRestrictions, r)
		}
		s.TargetCustomizationMode = []string{firstMatch, allMatches}[g.IntN(2)]
	})
	g.bundle.CreationTimestamp = metav1.NewTime(noon.Add(-100 * time.Hour))
	g.has(t, g.bundle)
	g.pass("the start")
	return g
}

func (g *groupSimulation) labels() map[string]string {
	return map[string]string{"a": fmt.Sprint(g.IntN(2)), "b": fmt.Sprint(g.IntN(2))}
}

func (g *groupSimulation) selector() *metav1.LabelSelector {
	return selector([]string{"a", "b"}[g.IntN(2)], fmt.Sprint(g.IntN(2)))
}

func (g *groupSimulation) criteria() (clusterName string, cluster *metav1.LabelSelector, group string, groups *metav1.LabelSelector) {
	if g.IntN(8) == 0 {
		clusterName = fmt.Sprint("c", g.IntN(4))
	}
	if g.IntN(4) == 0 {
		cluster = g.selector()
	}
	switch g.IntN(4) {
	case 0:
		group = fmt.Sprint("g", g.IntN(4))
	case 1, 2:
		groups = g.selector()
	case 3:
		if cluster = g.selector(); g.IntN(2) == 0 {
			cluster = &metav1.LabelSelector{}
		}
	}
	return clusterName, cluster, group, groups
}

// define gives the stage the kind as it is.
func (g *groupSimulation) define() {
	const name = "clustergroups.fleet.cattle.io"
	g.kinds, g.errors = map[string]*metav1.PartialObjectMetadata{name: kindSince(g.defined)}, nil
	if g.isDefined {
		return
	}
	if g.IntN(2) == 0 {
		g.kinds[name].DeletionTimestamp = &metav1.Time{Time: g.clock.Now()}
	} else {
		g.kinds[name], g.errors = nil, map[string]error{"confirm groups": errNoKind}
	}
}

// change changes anything, and says what.
func (g *groupSimulation) change() string {
	g.clock.Step(time.Duration(2+g.IntN(3600)) * time.Second)
	names := slices.Sorted(maps.Keys(g.groups))
	name := names[g.IntN(len(names))]
	switch g.IntN(10) {
	case 0:
		if g.isDefined = !g.isDefined; g.isDefined {
			g.defined = g.clock.Now()
			g.define()
			return "the kind is created again"
		}
		for _, there := range g.existing() {
			g.lost(g.T, there)
		}
		g.define()
		return "the kind is deleted"
	case 1, 2, 3:
		if g.isDefined {
			g.restore(name, g.IntN(4) == 0)
			return "group " + name + " is written"
		}
	case 4:
		g.clock.Step(time.Duration(g.IntN(30)) * time.Hour)
		return "time passes"
	default:
		i := g.IntN(len(g.clusters))
		g.clusters[i] = g.clusters[i].DeepCopy()
		g.clusters[i].Labels = g.labels()
		g.has(g.T, g.clusters[i])
		return fmt.Sprint("Cluster ", g.clusters[i].Name, " has the labels ", g.clusters[i].Labels)
	}
	return "nothing changes"
}

// restore writes a group as it is to be, or with an invalid selector.
func (g *groupSimulation) restore(name string, isUnreadable bool) {
	written := g.groups[name].DeepCopy()
	g.version++
	written.Generation, written.ResourceVersion = g.version, fmt.Sprint(g.version)
	if isUnreadable {
		unknown["no value"](written)
	}
	g.has(g.T, written)
}

// restoreAll writes all groups, and waits until none counts as missing.
func (g *groupSimulation) restoreAll() {
	if !g.isDefined {
		g.isDefined, g.defined = true, g.clock.Now()
		g.define()
	}
	for name := range g.groups {
		g.restore(name, false)
	}
	g.clock.Step(groupsRestoreTime + 30*g.RecheckDelay())
	g.pass("all groups are there")
	for _, cluster := range g.clusters {
		assert.Len(g, g.possible(cluster, g.existing(), false), 1)
	}
}

func (g *groupSimulation) existing() (all []*fleet.ClusterGroup) {
	for _, there := range g.indexers["*v1alpha1.ClusterGroup"].List() {
		all = append(all, there.(*fleet.ClusterGroup))
	}
	return all
}

// pass carries out the decisions about all Clusters, and checks them.
func (g *groupSimulation) pass(event string) {
	g.log = nil
	mayLack := !g.isDefined || g.defined.After(g.bundle.CreationTimestamp.Time) && g.clock.Now().Before(g.defined.Add(groupsRestoreTime))
	var intended []*fleet.ClusterGroup // all of them, until nobody is going to create the others again
	for name, group := range g.groups {
		if mayLack || slices.ContainsFunc(g.existing(), func(e *fleet.ClusterGroup) bool { return e.Name == name }) {
			intended = append(intended, group)
		}
	}
	p := g.plans.of(g.T.Context(), g.bundle)
	require.Nil(g, p.problem)
	groups, err := g.groupsForBundle(g.T.Context(), g.bundle, p)
	require.NoError(g, err)
	matches, _, err := g.matches(g.T.Context(), g.bundle, p, groups)
	require.NoError(g, err)
	for _, cluster := range g.clusters {
		before := g.deployed[cluster.Name]
		after := g.decide(cluster)
		right := g.possible(cluster, intended, false)
		possible := g.possible(cluster, g.existing(), mayLack)
		says := fmt.Sprintf("%s; Cluster %s %v had %q and gets %q; right is %q, of %q", event, cluster.Name, cluster.Labels, before, after, right, possible)

		require.Len(g, right, 1)
		if after != before {
			assert.Equal(g, right[0], after, says)
		}
		i := slices.IndexFunc(matches, func(m match) bool { return m.cluster.Name == cluster.Name })
		assert.Equal(g, len(possible) > 1, i >= 0 && !matches[i].isKnown, "the pass over the Bundle: "+says)
		if mayLack || g.selectsNoGroup() {
			g.protected = g.clock.Now()
		}
		isProtected := before != "" && g.clock.Now().Before(g.protected.Add(kindRecheck*g.RecheckDelay()))
		switch {
		case len(possible) > 1:
			assert.Equal(g, before, after, says)
		case possible[0] != "" || !isProtected:
			assert.Equal(g, possible[0], after, says)
		}
	}
}

// decide decides about the BundleDeployment of a Cluster, and returns the targets with whose options the Bundle is deployed then, "" for none.
func (g *groupSimulation) decide(cluster *fleet.Cluster) string {
	own, err := g.deploymentCache.List(cluster.Status.Namespace, labels.Everything())
	require.NoError(g, err)
	assignments, err := g.assign(g.T.Context(), cluster, own, nil)
	require.NoError(g, err)
	for _, a := range assignments {
		switch a.action {
		case update:
			after := a.wanted.DeepCopy()
			g.deployed[cluster.Name] = strings.Join(slices.Sorted(maps.Keys(after.Spec.Options.NamespaceLabels)), " ")
			if a.existing == nil {
				after.UID, after.CreationTimestamp = "uid-of-app", metav1.NewTime(g.clock.Now())
			} else if isAsWanted(a.existing, a.wanted) {
				continue
			}
			g.has(g.T, after)
		case remove:
			delete(g.deployed, cluster.Name)
			g.lost(g.T, a.existing)
		case asIs:
		}
	}
	return g.deployed[cluster.Name]
}

// possible returns the targets with whose options the Bundle may be deployed to a Cluster, whichever Clusters the groups select that cannot be read or,
// if groups may be missing, do not exist.
func (g *groupSimulation) possible(cluster *fleet.Cluster, groups []*fleet.ClusterGroup, mayLack bool) (outcomes []string) {
	is := func(name string, of *metav1.LabelSelector, group string, selects *metav1.LabelSelector) []bool {
		matches := func(s *metav1.LabelSelector, l map[string]string) bool {
			compiled, err := metav1.LabelSelectorAsSelector(s)
			return err == nil && compiled.Matches(labels.Set(l))
		}
		switch {
		case name != "" && name != cluster.Name, of != nil && !matches(of, cluster.Labels), name == "" && of == nil && group == "" && selects == nil:
			return []bool{false}
		case group == "" && selects == nil:
			return []bool{true}
		}
		isUnknown, found := false, false
		for _, one := range groups {
			if group == "" && !matches(selects, one.Labels) || group != "" && group != one.Name {
				continue
			}
			found = true
			if _, err := metav1.LabelSelectorAsSelector(one.Spec.Selector); err != nil {
				isUnknown = true
			} else if matches(one.Spec.Selector, cluster.Labels) {
				return []bool{true}
			}
		}
		if isUnknown || mayLack && (!found || group == "") {
			return []bool{false, true}
		}
		return []bool{false}
	}
	answers := [][]bool{{len(g.bundle.Spec.TargetRestrictions) == 0}}
	for _, r := range g.bundle.Spec.TargetRestrictions {
		answers[0] = is(r.ClusterName, r.ClusterSelector, r.ClusterGroup, r.ClusterGroupSelector)
	}
	for _, t := range g.bundle.Spec.Targets {
		answers = append(answers, is(t.ClusterName, t.ClusterSelector, t.ClusterGroup, t.ClusterGroupSelector))
	}
	combinations := [][]bool{nil}
	for _, answer := range answers {
		var longer [][]bool
		for _, c := range combinations {
			for _, a := range answer {
				longer = append(longer, append(slices.Clone(c), a))
			}
		}
		combinations = longer
	}
	for _, c := range combinations {
		outcomes = append(outcomes, g.outcome(c[0], c[1:]))
	}
	slices.Sort(outcomes)
	return slices.Compact(outcomes)
}

// outcome returns the targets that apply, if it is known which of them match.
func (g *groupSimulation) outcome(isAllowed bool, matches []bool) string {
	var chosen []string
	for i, t := range g.bundle.Spec.Targets {
		if !matches[i] || !isAllowed {
			continue
		}
		if t.DoNotDeploy {
			if g.bundle.Spec.TargetCustomizationMode == allMatches {
				return ""
			}
			return strings.Join(chosen, " ")
		}
		chosen = append(chosen, fmt.Sprint(i))
		if g.bundle.Spec.TargetCustomizationMode == firstMatch {
			break
		}
	}
	return strings.Join(chosen, " ")
}

// selectsNoGroup reports whether a target or a restriction finds no group: such a Bundle removes nothing that is older than the kind.
func (g *groupSimulation) selectsNoGroup() bool {
	none := func(group string, selects *metav1.LabelSelector) bool {
		return (group != "" || selects != nil) && !slices.ContainsFunc(g.existing(), func(e *fleet.ClusterGroup) bool {
			compiled, _ := metav1.LabelSelectorAsSelector(selects)
			return group == e.Name || selects != nil && compiled.Matches(labels.Set(e.Labels))
		})
	}
	return slices.ContainsFunc(g.bundle.Spec.Targets, func(t fleet.BundleTarget) bool { return none(t.ClusterGroup, t.ClusterGroupSelector) }) ||
		slices.ContainsFunc(g.bundle.Spec.TargetRestrictions, func(r fleet.BundleTargetRestriction) bool { return none(r.ClusterGroup, r.ClusterGroupSelector) })
}
