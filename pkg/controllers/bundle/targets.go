package bundle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/rollup"
)

// match is a Cluster that a Bundle targets, or of which that is not known, with the indexes of the targets whose options apply to it.
type match struct {
	cluster *fleet.Cluster
	targets []int // none if they depend on a ClusterGroup that cannot be read
	isKnown bool  // otherwise another ClusterGroup, which may be missing or cannot be read, may change the targets
}

// matches returns the Clusters that a Bundle targets, and those of which that depends on a ClusterGroup that may be missing or cannot be read. It leaves out
// those that are being deleted or managed elsewhere, or whose labels are not known. groupProblem names the groups that cannot be read.
func (d *Deployer) matches(ctx context.Context, b *fleet.Bundle, p *plan, groups *workspaceGroups) (matches []match, groupProblem *problem, err error) {
	end, err := d.Matching.Begin(ctx, b.Namespace)
	if err != nil {
		return nil, nil, err
	}
	defer end()
	for _, cluster := range d.mayMatch(b) {
		if cluster.DeletionTimestamp != nil || cluster.Labels[fleet.ClusterManagementLabel] != "" || cluster.Spec.MetadataTooLarge {
			continue
		}
		m := candidateOf(cluster, groups)
		targets, isKnown := p.choose(b, m)
		isKnown = isKnown && !p.dependsOn(groups.missing, b, m)
		if len(targets) > 0 || !isKnown {
			matches = append(matches, match{cluster, targets, isKnown})
		}
	}
	return matches, p.groupProblem(groups), nil
}

// targeting is a Bundle that targets a Cluster, with the indexes of the targets whose options apply to it. There are none if the Bundle has a problem, or
// if a ClusterGroup that cannot be read decides whether and how it targets the Cluster.
type targeting struct {
	bundle    *fleet.Bundle
	plan      *plan
	targets   []int
	isAssumed bool // a ClusterGroup that does not exist might change the targets
}

// targetingBundles returns the Bundles that target a Cluster, and those that may target it.
func (d *Deployer) targetingBundles(ctx context.Context, cluster *fleet.Cluster) (all []targeting, err error) {
	end, err := d.Matching.Begin(ctx, cluster.Namespace)
	if err != nil {
		return nil, err
	}
	defer end()
	groups := d.groupsOf(cluster.Namespace)
	m := candidateOf(cluster, groups)
	bundles := d.bundlesByTargets(append(nameKeys(cluster), anyKey(cluster.Namespace))...)
	// The order makes error messages the same in each pass, so that a pass that changes nothing writes nothing.
	slices.SortFunc(bundles, func(a, b *fleet.Bundle) int { return strings.Compare(a.Name, b.Name) })
	for _, b := range bundles {
		p := d.plans.of(ctx, b)
		targets, isKnown := p.selected(b, m)
		mayTarget := len(targets) > 0 || !isKnown || p.problem != nil && !p.lacksValues()
		if p.problem != nil {
			targets = nil
		}
		if mayTarget {
			all = append(all, targeting{b, p, targets, len(targets) > 0 && p.dependsOn(anyMissing, b, m)})
		}
	}
	return all, ctx.Err()
}

// bundlesByTargets returns the Bundles of one namespace that have one of the keys in bundlesByTarget, except those that are being deleted.
func (d *Deployer) bundlesByTargets(keys ...string) (bundles []*fleet.Bundle) {
	seen := map[string]bool{}
	for _, k := range keys {
		found, _ := bundlesByTarget.Find(d.bundleCache, k)
		for _, b := range found {
			if !seen[b.Name] && b.DeletionTimestamp == nil {
				seen[b.Name] = true
				bundles = append(bundles, b)
			}
		}
	}
	return bundles
}

// mayMatch returns the Clusters that the targets of a Bundle may match: those with the names in the targets, or all of the
// namespace if a target has no name. It returns each once, even if several targets name it by its name and its display name.
func (d *Deployer) mayMatch(b *fleet.Bundle) (clusters []*fleet.Cluster) {
	seen := map[key]bool{}
	add := func(cluster *fleet.Cluster) {
		if !seen[keyOf(cluster)] {
			seen[keyOf(cluster)] = true
			clusters = append(clusters, cluster)
		}
	}
	for _, t := range b.Spec.Targets {
		if t.ClusterName == "" {
			clusters, _ = d.clusterCache.List(b.Namespace, labels.Everything())
			return clusters
		}
		if cluster, err := d.clusterCache.Get(b.Namespace, t.ClusterName); err == nil {
			add(cluster)
		}
		named, _ := d.clusterCache.GetByIndex(byDisplayName, index.Key(b.Namespace, t.ClusterName))
		for _, cluster := range named {
			add(cluster)
		}
	}
	return clusters
}

// choose returns the indexes of the targets whose options apply to a Cluster, none if the Bundle does not target it or has a problem. If isKnown is false
// that depends on a ClusterGroup that cannot be read, or that is missing as far as m assumes: what is deployed must stay as it is.
func (p *plan) choose(b *fleet.Bundle, m candidate) (chosen []int, isKnown bool) {
	if p.problem != nil {
		return nil, true
	}
	return p.selected(b, m)
}

// selected is choose without the check for a problem. The problem must be one that leaves the targets known, such as missing values.
func (p *plan) selected(b *fleet.Bundle, m candidate) (chosen []int, isKnown bool) {
	// An agent's Bundle targets its Cluster by name, and no other Cluster gets the agent: one may have that name as its display name, and the
	// shortened name of the Bundle may be right for several Clusters with long names.
	if agentspec.IsAgentBundle(b) && agentspec.ClusterOfBundle(b) != m.name {
		return nil, true
	}
	isAllowed, mayBeAllowed := len(p.restrictions) == 0, len(p.restrictions) == 0
	for _, r := range p.restrictions {
		matches, isMatchKnown := r.match(m)
		isAllowed, mayBeAllowed = isAllowed || matches, mayBeAllowed || matches || !isMatchKnown
	}
	if !mayBeAllowed {
		return nil, true
	}
	isKnown, mayDeploy := isAllowed, false
	for i, t := range p.targets {
		matches, isMatchKnown := t.match(m)
		switch {
		case !isMatchKnown:
			isKnown, mayDeploy = false, mayDeploy || !t.doNotDeploy
			continue
		case !matches:
			continue
		case !t.doNotDeploy:
			chosen, mayDeploy = append(chosen, i), true
		case p.allMatches:
			return nil, true
		}
		if !p.allMatches {
			break
		}
	}
	if !mayDeploy || !isKnown {
		return nil, !mayDeploy
	}
	return chosen, true
}

// selectsGroups reports whether the ClusterGroups decide which Clusters a Bundle targets.
func (p *plan) selectsGroups() bool { return len(p.ofGroups) > 0 }

// allOfGroups returns the criteria of the targets, restrictions and partitions that select ClusterGroups.
func (p *plan) allOfGroups() []criteria {
	all := slices.Clip(p.ofGroups)
	if p.strategy != nil {
		for _, partition := range p.strategy.partitions {
			if partition.selectsGroups() {
				all = append(all, partition.criteria)
			}
		}
	}
	return all
}

// dependsOn reports whether the targets of a Cluster depend on the ClusterGroups that may be missing.
func (p *plan) dependsOn(missing missingGroups, b *fleet.Bundle, m candidate) bool {
	if missing == noneMissing || !p.selectsGroups() {
		return false
	}
	m.missing = missing
	_, isKnown := p.choose(b, m)
	return !isKnown
}

// groupProblem returns a problem that names the ClusterGroups which targets, restrictions and partitions select, and of which it is not known which
// Clusters they select; nil if there are none.
func (p *plan) groupProblem(w *workspaceGroups) *problem {
	all := p.allOfGroups()
	if len(all) == 0 {
		return nil
	}
	var unknown []error
	for i, group := range w.list() {
		if w.unknown().has(i) && slices.ContainsFunc(all, func(c criteria) bool { return w.isSelected(i, c) }) {
			_, err := w.selectorOf(group)
			unknown = append(unknown, fmt.Errorf("ClusterGroup %s: %s", group.Name, rollup.Shown(err.Error())))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.SortFunc(unknown, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) }) // the same in each pass
	return &problem{fleet.ReasonBundleInvalid, joinErrors(unknown...).Error() + "; until that is corrected, the hub changes nothing on Clusters that depend on it"}
}

// missingProblem returns a problem that names the ClusterGroups which targets, restrictions and partitions select, and which may be missing because their
// kind was deleted; nil if none may be missing.
func (p *plan) missingProblem(w *workspaceGroups) *problem {
	if w.missing == noneMissing {
		return nil
	}
	var missing []string
	for _, c := range p.allOfGroups() {
		if _, exists := w.positions()[c.group]; c.group != "" && !exists {
			missing = append(missing, "ClusterGroup "+c.group)
		} else if c.group == "" {
			missing = append(missing, fmt.Sprintf("ClusterGroups with the labels %q", c.groups))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	if missing = slices.Compact(missing); len(missing) > maxErrors {
		missing = append(missing[:maxErrors], fmt.Sprintf("and %d more", len(missing)-maxErrors))
	}
	return &problem{fleet.ReasonKindDeleted, fmt.Sprintf("CustomResourceDefinition %s was deleted, and these may be missing: %s; create them again. Until then, or until a day after "+
		"the kind was created again, the hub changes nothing on Clusters that depend on them", app.DefinitionName("clustergroups"), rollup.Shown(strings.Join(missing, "; ")))}
}

// missingGroups says which ClusterGroups may be missing because their kind was deleted: it is not known which Clusters these selected.
type missingGroups int

const (
	noneMissing    missingGroups = iota
	missingIfEmpty               // groups of a name or with labels that no group has
	anyMissing                   // groups of a name that no group has, and groups with any labels
	anyChanged                   // all groups: one that was created again may not select yet what it selected before
)

// mayHide reports whether criteria that select groups by a name or by labels, and find some or none, may select another one that is missing.
func (g missingGroups) mayHide(isNamed, found bool) bool {
	switch g {
	case noneMissing:
		return false
	case missingIfEmpty:
		return !found
	case anyMissing:
		return !found || !isNamed
	case anyChanged:
	}
	return true
}

// candidate has the properties of a Cluster by which targets select it.
type candidate struct {
	name, displayName string
	labels            labels.Set
	workspace         *workspaceGroups
	missing           missingGroups
	// groups returns which ClusterGroups of the workspace select the Cluster. It is called only for targets that select groups.
	groups func() bitset
}

func candidateOf(cluster *fleet.Cluster, workspace *workspaceGroups) candidate {
	return candidate{
		name: cluster.Name, displayName: cluster.Labels[fleet.ClusterDisplayNameLabel], labels: cluster.Labels, workspace: workspace,
		groups: sync.OnceValue(func() bitset {
			return workspace.which(func(group *fleet.ClusterGroup) bool {
				selector, err := workspace.selectorOf(group)
				return err == nil && selector.Matches(labels.Set(cluster.Labels))
			})
		}),
	}
}

// workspaceGroups are the ClusterGroups of a workspace during one pass. Which of them a selector selects does not depend on a Cluster, so it is
// computed once, and a pass over many Clusters or targets does not match every selector with every group for each of them.
type workspaceGroups struct {
	list       func() []*fleet.ClusterGroup // of one time for the whole pass
	positions  func() map[string]int        // in the list, by name
	selectorOf func(*fleet.ClusterGroup) (labels.Selector, error)
	unknown    func() bitset // the groups of which it is not known which Clusters they select
	missing    missingGroups // that the pass must take into account
	selected   map[*groupSelector]bitset
}

// groupSelector is a selector of ClusterGroups. Equal ones of a Bundle are the same pointer.
type groupSelector struct{ labels.Selector }

// groupsOf returns the ClusterGroups of a workspace for one pass.
func (d *Deployer) groupsOf(workspace string) *workspaceGroups {
	return newWorkspaceGroups(func() []*fleet.ClusterGroup {
		all, _ := d.groupCache.List(workspace, labels.Everything())
		return all
	}, d.groupSelectors.Of)
}

func newWorkspaceGroups(list func() []*fleet.ClusterGroup, selectorOf func(*fleet.ClusterGroup) (labels.Selector, error)) *workspaceGroups {
	w := &workspaceGroups{list: sync.OnceValue(list), selectorOf: selectorOf, selected: map[*groupSelector]bitset{}}
	w.unknown = sync.OnceValue(func() bitset {
		return w.which(func(group *fleet.ClusterGroup) bool {
			_, err := selectorOf(group)
			return err != nil
		})
	})
	w.positions = sync.OnceValue(func() map[string]int {
		positions := map[string]int{}
		for i, group := range w.list() {
			positions[group.Name] = i
		}
		return positions
	})
	return w
}

// which returns the groups for which a function returns true.
func (w *workspaceGroups) which(isOne func(*fleet.ClusterGroup) bool) (set bitset) {
	for i, group := range w.list() {
		if isOne(group) {
			set = set.with(i)
		}
	}
	return set
}

// selectedBy returns the groups that a selector selects, and those whose labels are not known.
func (w *workspaceGroups) selectedBy(selector *groupSelector) bitset {
	set, known := w.selected[selector]
	if !known {
		set = w.which(func(group *fleet.ClusterGroup) bool {
			return group.Spec.MetadataTooLarge || selector.Matches(labels.Set(group.Labels))
		})
		w.selected[selector] = set
	}
	return set
}

// isSelected reports whether the group at a position has the name and the labels that criteria require.
func (w *workspaceGroups) isSelected(i int, c criteria) bool {
	return (c.group == "" || w.list()[i].Name == c.group) && (c.groups == nil || w.selectedBy(c.groups).has(i))
}

// bitset is a set of small numbers.
type bitset []uint64

// with adds a number.
func (s bitset) with(n int) bitset {
	for len(s) <= n/64 {
		s = append(s, 0)
	}
	s[n/64] |= 1 << (n % 64)
	return s
}

func (s bitset) has(n int) bool { return n/64 < len(s) && s[n/64]&(1<<(n%64)) != 0 }

func (s bitset) intersects(other bitset) bool {
	for i := range min(len(s), len(other)) {
		if s[i]&other[i] != 0 {
			return true
		}
	}
	return false
}

// criteria select Clusters that meet all of those that are set. If none is set they select no Cluster: a target that was left
// empty by mistake must not deploy everywhere. An empty selector is set, and selects all.
type criteria struct {
	clusterName string
	cluster     labels.Selector
	group       string
	groups      *groupSelector
}

func newCriteria(clusterName string, cluster *metav1.LabelSelector, group string, groups *metav1.LabelSelector) (criteria, error) {
	clusterSelector, errCluster := parseSelector("clusterSelector", cluster)
	groupLabels, errGroups := parseSelector("clusterGroupSelector", groups)
	c := criteria{clusterName: clusterName, cluster: clusterSelector, group: group}
	if groupLabels != nil {
		c.groups = &groupSelector{groupLabels}
	}
	return c, errors.Join(errCluster, errGroups)
}

// parseSelector returns nil for a selector that is not set.
func parseSelector(field string, given *metav1.LabelSelector) (labels.Selector, error) {
	if given == nil {
		return nil, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(given)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return selector, nil
}

func (c criteria) isEmpty() bool {
	return c.clusterName == "" && c.cluster == nil && c.group == "" && c.groups == nil
}

func (c criteria) selectsGroups() bool { return c.group != "" || c.groups != nil }

// match reports whether a Cluster meets the criteria. If isKnown is false that depends on a ClusterGroup that is missing, or of which it is not known which
// Clusters it selects.
func (c criteria) match(m candidate) (matches, isKnown bool) {
	switch {
	case c.isEmpty():
		return false, true
	case c.clusterName != "" && c.clusterName != m.name && c.clusterName != m.displayName:
		return false, true
	case c.cluster != nil && !c.cluster.Matches(m.labels):
		return false, true
	case !c.selectsGroups():
		return true, true
	}
	// One group must have both the name and the labels.
	if c.group == "" {
		selected := m.workspace.selectedBy(c.groups)
		matches = m.groups().intersects(selected)
		return matches, matches || !m.missing.mayHide(false, len(selected) > 0) && !m.workspace.unknown().intersects(selected)
	}
	i, exists := m.workspace.positions()[c.group]
	if !exists || !m.workspace.isSelected(i, c) {
		return false, !m.missing.mayHide(true, exists)
	}
	matches = m.groups().has(i)
	return matches, matches || !m.missing.mayHide(true, true) && !m.workspace.unknown().has(i)
}

// shareSelectors makes equal selectors of ClusterGroups the same pointer.
func shareSelectors(all map[string]*groupSelector, c criteria) criteria {
	if c.groups == nil {
		return c
	}
	text := c.groups.String()
	if known := all[text]; known != nil {
		c.groups = known
	} else {
		all[text] = c.groups
	}
	return c
}
