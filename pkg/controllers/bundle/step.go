package bundle

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Condition is Ready.
func (s *Step) Condition() string { return fleet.ConditionReady }

// Forget has Bundles no longer wait for a Cluster that is gone.
func (s *Step) Forget(clusterKey string) {
	k := splitKey(clusterKey)
	s.bringBundles(s.tally.forgetCluster(registration.ClusterNamespace(k.Namespace, k.Name), s.Clock.Now()))
}

func (s *Step) bringBundles(keys []key) {
	for _, k := range keys {
		s.bringBundle(k)
	}
}

// Reconcile makes the BundleDeployments of a Cluster what its Bundles ask for, and sums up what its agent reports of them.
func (s *Step) Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	p := &pass{Step: s, cluster: cluster, namespace: registration.ClusterNamespace(cluster.Namespace, cluster.Name)}
	err := p.run(ctx)
	s.bringBundles(s.tally.arrived(p.namespace, p.arrived, s.Clock.Now()))
	if ctx.Err() == nil {
		p.report()
	}
	return p.outcome(err)
}

// pass is one look at one Cluster.
type pass struct {
	*Step
	cluster   *fleet.Cluster
	namespace string

	existing map[string]*fleet.BundleDeployment // in the cluster namespace, by name
	kept     map[string]bool                    // those that are not deleted
	current  []*fleet.BundleDeployment          // as they are after the pass
	arrived  []key                              // the Bundles that were carried out
	failed   bool                               // another one could not be
	again    time.Duration
}

func (p *pass) run(ctx context.Context) error {
	all, err := p.deployed.List(p.namespace, labels.Everything())
	if err != nil {
		return err
	}
	p.existing, p.kept = map[string]*fleet.BundleDeployment{}, map[string]bool{}
	if p.cluster.Spec.Quarantined {
		p.freeze(all)
		return p.roles.Forbid(ctx, p.cluster)
	}
	for _, d := range all {
		p.existing[d.Name] = d
	}
	m := p.memberOf(p.cluster)
	intents, problems := p.intend(m)
	if err := p.letRead(ctx, intents); err != nil {
		p.keepAll(intents)
		return joined(append(problems, err)...)
	}
	for _, i := range intents {
		if err := ctx.Err(); err != nil {
			return err // the rest is not known to be unwanted
		}
		problems = append(problems, p.deploy(i))
	}
	if p.failed {
		problems = append(problems, p.letRead(ctx, intents))
	}
	return joined(append(problems, p.deleteOthers()...)...)
}

// candidates are the Bundles that may be for the Cluster. One that is being deleted is not.
func (p *pass) candidates(m member) (bundles []*fleet.Bundle) {
	keys := []string{nameKey(p.cluster.Namespace, m.name), anyKey(p.cluster.Namespace)}
	if m.displayName != "" && m.displayName != m.name {
		keys = append(keys, nameKey(p.cluster.Namespace, m.displayName))
	}
	seen := map[string]bool{}
	for _, k := range keys {
		found, _ := p.bundleCache.GetByIndex(byTarget, k)
		for _, b := range found {
			if !seen[b.Name] && b.DeletionTimestamp == nil {
				seen[b.Name] = true
				bundles = append(bundles, b)
			}
		}
	}
	// An index has no order, but what is said of several problems has to be the same each time: otherwise each pass would
	// write another status, and be followed by another pass.
	slices.SortFunc(bundles, func(a, b *fleet.Bundle) int { return strings.Compare(a.Name, b.Name) })
	return bundles
}

func (s *Step) memberOf(cluster *fleet.Cluster) member {
	return member{
		name: cluster.Name, displayName: cluster.Labels[fleet.ClusterDisplayNameLabel], labels: cluster.Labels,
		groups: sync.OnceValue(func() []*fleet.ClusterGroup { return s.groupsOf(cluster) }),
	}
}

func (s *Step) groupsOf(cluster *fleet.Cluster) (groups []*fleet.ClusterGroup) {
	all, _ := s.groups.List(cluster.Namespace, labels.Everything())
	for _, group := range all {
		if selects(group, cluster.Labels) {
			groups = append(groups, group)
		}
	}
	return groups
}

// intent is a BundleDeployment that a Bundle asks for.
type intent struct {
	bundle           *fleet.Bundle
	plan             *plan
	variant          variant
	existing, wanted *fleet.BundleDeployment
}

// intend says what the Bundles ask for on the Cluster, before anything is written.
func (p *pass) intend(m member) (intents []intent, problems []error) {
	for _, b := range p.candidates(m) {
		i, err := p.intentOf(b, m)
		if i != nil {
			intents = append(intents, *i)
		}
		problems = append(problems, err)
	}
	return intents, problems
}

// intentOf is nil for a Bundle that is not for the Cluster, or that cannot be carried out.
func (p *pass) intentOf(b *fleet.Bundle, m member) (*intent, error) {
	plan := p.plans.of(b)
	existing := p.existing[b.Name]
	if plan.problem != nil {
		p.keepOurs(existing)
		return nil, nil
	}
	chosen := plan.choose(b, m)
	if len(chosen) == 0 {
		p.arrived = append(p.arrived, keyOf(b))
		return nil, nil
	}
	v, err := plan.variant(chosen)
	if err != nil {
		p.keepOurs(existing) // what cannot be made anew is no reason to take away what is there
		return nil, err
	}
	return &intent{bundle: b, plan: plan, variant: v, existing: existing, wanted: desired(b, v, p.cluster, existing)}, nil
}

// deploy carries one Bundle out for the Cluster.
func (p *pass) deploy(i intent) error {
	d, err := p.ensure(i.bundle, i.plan, i.variant, i.existing, i.wanted)
	if err != nil {
		p.keep(cmp.Or(i.existing, i.wanted)) // it counts, and is not deleted
		p.failed = true
		return err
	}
	p.keep(d)
	p.arrived = append(p.arrived, keyOf(i.bundle))
	return nil
}

func (p *pass) keepOurs(existing *fleet.BundleDeployment) {
	if existing != nil && isOf(existing, p.cluster.Namespace) {
		p.keep(existing)
	}
}

func (p *pass) keepAll(intents []intent) {
	for _, i := range intents {
		p.keep(cmp.Or(i.existing, i.wanted))
	}
}

func (p *pass) keep(d *fleet.BundleDeployment) {
	p.kept[d.Name] = true
	p.current = append(p.current, d)
}

// report sums up in the Cluster's status.
func (p *pass) report() {
	var summary fleet.BundleSummary
	var unready []fleet.NonReadyResource
	var resources fleet.ResourceCounts
	for _, d := range p.current {
		state := fleetstatus.BundleState(d.Spec, d.Status)
		tick(&summary, state, 1)
		add(&resources, d.Status.ResourceCounts)
		if state != fleet.Ready {
			unready = append(unready, fleet.NonReadyResource{Name: d.Name, State: state, Message: messageOf(d, state)})
		}
	}
	status := &p.cluster.Status
	summary.NonReadyResources = worstOf(unready)
	status.Summary = summary
	status.ResourceCounts = resources
	status.Display.ReadyBundles = fraction(status.Summary)
	status.Display.State = string(worst(status.Summary))
}

func add(sum *fleet.ResourceCounts, n fleet.ResourceCounts) {
	sum.Ready += n.Ready
	sum.DesiredReady += n.DesiredReady
	sum.WaitApplied += n.WaitApplied
	sum.Modified += n.Modified
	sum.Orphaned += n.Orphaned
	sum.Missing += n.Missing
	sum.Unknown += n.Unknown
	sum.NotReady += n.NotReady
}

func (p *pass) outcome(err error) result.Result {
	var out result.Result
	switch {
	case onlyForeign(err):
		out = result.Stalled(fleet.ReasonNameConflict, err.Error()).In(p.RecheckDelay())
	case err != nil:
		return result.Retry(fleet.ReasonError, err)
	default:
		out = ready("Bundle", p.cluster.Status.Summary)
	}
	out.After = result.Earliest(out.After, p.again)
	return discreet(result.Get(p.cluster.Status.Conditions, fleet.ConditionReady), out)
}
