package bundle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/rollup"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// defaultTolerated limits the unavailable Clusters of a partition when the next partition begins, if nothing sets maxUnavailable.
var defaultTolerated = intstr.FromString("10%")

// Limits of the partitions, so that the status of a Bundle stays small. A name is limited in bytes.
const (
	maxPartitions    = 100 // of the Clusters that no partition selects, and in the status
	maxPartitionName = 63
)

// strategy is the rollout strategy of a Bundle. Each number is a number or a percentage, nil if it is not set.
type strategy struct {
	maxUnavailable, maxUnavailablePartitions, autoPartitionSize *intstr.IntOrString
	partitions                                                  []rolloutPartition
}

// rolloutPartition selects Clusters that are updated before those of the next partition.
type rolloutPartition struct {
	criteria
	name           string
	maxUnavailable *intstr.IntOrString
}

// newStrategy reads a rollout strategy. It returns nil for one that limits nothing.
func newStrategy(s *fleet.RolloutStrategy) (*strategy, error) {
	if s == nil || s.MaxUnavailable == nil && s.MaxUnavailablePartitions == nil && s.AutoPartitionSize == nil && len(s.Partitions) == 0 {
		return nil, nil
	}
	var invalid []error
	check := func(field string, number *intstr.IntOrString) *intstr.IntOrString {
		if number == nil {
			return nil
		}
		if n, err := intstr.GetScaledValueFromIntOrPercent(number, 100, false); err != nil || n < 0 {
			invalid = append(invalid, fmt.Errorf("spec.rolloutStrategy.%s is %q; it must be a number or a percentage, such as 2 or 10%%", field, number))
		}
		return number
	}
	read := &strategy{
		maxUnavailable:           check("maxUnavailable", s.MaxUnavailable),
		maxUnavailablePartitions: check("maxUnavailablePartitions", s.MaxUnavailablePartitions),
		autoPartitionSize:        check("autoPartitionSize", s.AutoPartitionSize),
	}
	for i, p := range s.Partitions {
		field := fmt.Sprintf("partitions[%d].", i)
		c, err := newCriteria(p.ClusterName, p.ClusterSelector, p.ClusterGroup, p.ClusterGroupSelector)
		if err != nil {
			invalid = append(invalid, fmt.Errorf("spec.rolloutStrategy.%s%w", field, err))
		}
		read.partitions = append(read.partitions, rolloutPartition{criteria: c, name: p.Name, maxUnavailable: check(field+"maxUnavailable", p.MaxUnavailable)})
	}
	return read, errors.Join(invalid...)
}

// scaled returns a number, or a percentage of a total, rounded down.
func scaled(number *intstr.IntOrString, total int) int {
	n, _ := intstr.GetScaledValueFromIntOrPercent(number, total, false) // newStrategy has checked it
	return n
}

// rolloutTarget is a Cluster in the rollout of a Bundle.
type rolloutTarget struct {
	candidate
	key          key
	deploymentID string // the one that the Cluster is to get
	state        fleet.BundleState
	isSkipped    bool // this step does not update it, and it still counts: it has that deployment ID, is paused, is not processed, or isInvalid
	isInvalid    bool // the new version cannot be rendered for it
	exists       bool // it has a BundleDeployment
	isHeld       bool // it is not known which targets apply to it, or whether it belongs to its partition or to a later one
	unavailable  bool // it is without a deployment, or what is deployed is not ready; never if it is paused or not processed
	isUnderWay   bool // it was allowed to get a deployment ID that the cache does not show yet
	mayUpdate    bool // the result: it may be updated now
}

// hasBegun reports whether the Cluster has the new version, was allowed to get it, or is paused or not processed.
func (t *rolloutTarget) hasBegun() bool { return t.isUnderWay || t.isSkipped && !t.isInvalid }

// partitioned is a partition with its Clusters.
type partitioned struct {
	rolloutPartition
	targets []*rolloutTarget
}

// divide assigns each Cluster to the first partition that selects it, or of which that is not known: such a Cluster is held. The others form further
// partitions in their order. These are larger than autoPartitionSize if there would be too many.
func (s *strategy) divide(targets []*rolloutTarget) (all []partitioned) {
	for _, p := range s.partitions {
		all = append(all, partitioned{rolloutPartition: p})
	}
	var others []*rolloutTarget
	for _, t := range targets {
		to := &others
		for i, p := range s.partitions {
			if matches, isKnown := p.match(t.candidate); matches || !isKnown {
				to, t.isHeld = &all[i].targets, t.isHeld || !isKnown
				break
			}
		}
		*to = append(*to, t)
	}
	switch {
	case len(others) == 0:
	case s.autoPartitionSize == nil:
		all = append(all, partitioned{rolloutPartition{name: "All"}, others})
	default:
		size := max(scaled(s.autoPartitionSize, len(others)), (len(others)+maxPartitions-1)/maxPartitions)
		for chunk := range slices.Chunk(others, size) {
			all = append(all, partitioned{rolloutPartition{name: fmt.Sprintf("Partition %d", len(all)+1)}, chunk})
		}
	}
	return all
}

// decide marks the Clusters that may be updated now, and returns the state of the partitions.
//
// The partitions are updated in their order. One is done when each of its Clusters is skipped or was allowed to be updated, none is held, and no more of
// them are unavailable than its maxUnavailable says. A Cluster that was allowed just now counts as unavailable, so with a maxUnavailable of 100 % the next
// partition begins at once. The next one begins when no more than maxUnavailablePartitions are not done.
//
// To update a Cluster that is available makes it unavailable. It may be updated while fewer Clusters than maxUnavailable are unavailable,
// in its partition and in the whole rollout, or if none is unavailable, so that a rollout progresses. In the whole rollout, only Clusters count that
// have the new version or whose partition has begun: unavailable Clusters of later partitions must not stop the rollout that would correct them, nor
// must those for which the new version cannot be rendered. A Cluster that is unavailable anyway is updated when its partition begins. So a correction
// reaches all Clusters that a bad version has broken. A held Cluster that never had a deployment does not count as unavailable: it may stay held for long, and
// its partition is not done until then.
func (s *strategy) decide(targets []*rolloutTarget) (status rolloutStatus) {
	all := s.divide(targets)
	for _, t := range targets {
		if t.isHeld && !t.exists && !t.isUnderWay && !t.isInvalid {
			t.unavailable = false
		}
	}
	room := len(targets)
	if s.maxUnavailable != nil {
		room = max(1, scaled(s.maxUnavailable, len(targets)))
	}
	status.maxUnavailable = max(1, room)
	for _, t := range targets {
		if t.hasBegun() && t.unavailable {
			room--
		}
	}
	if s.maxUnavailablePartitions != nil {
		status.maxUnavailablePartitions = scaled(s.maxUnavailablePartitions, len(all))
	}

	for _, p := range all {
		limit, tolerated := len(p.targets), scaled(&defaultTolerated, len(p.targets))
		for _, set := range []*intstr.IntOrString{s.maxUnavailable, p.maxUnavailable} {
			if set != nil {
				limit, tolerated = scaled(set, len(p.targets)), scaled(set, len(p.targets))
			}
		}
		limit = max(1, limit)
		begins := status.unavailablePartitions <= status.maxUnavailablePartitions
		var unavailable, waiting int
		var summary fleet.BundleSummary
		for _, t := range p.targets {
			rollup.Count(&summary, t.state, 1)
			if t.unavailable {
				unavailable++
			}
			if begins && t.unavailable && !t.hasBegun() {
				room--
			}
		}
		for _, t := range p.targets {
			switch {
			case t.isSkipped:
			case t.isHeld:
				waiting++
				status.isHeld = true
			case begins && t.unavailable:
				t.mayUpdate = true
			case begins && unavailable < limit && room > 0:
				t.mayUpdate = true
				unavailable++
				room--
			default:
				waiting++
			}
		}
		if waiting > 0 || unavailable > tolerated {
			status.unavailablePartitions++
		}
		if len(status.partitions) < maxPartitions {
			status.partitions = append(status.partitions, fleet.PartitionStatus{
				Name:  strings.ToValidUTF8(p.name[:min(len(p.name), maxPartitionName)], ""),
				Count: len(p.targets), MaxUnavailable: limit, Unavailable: unavailable, Summary: summary,
			})
		}
	}
	return status
}

// rolloutStatus is the part of the status of a Bundle that shows its rollout.
type rolloutStatus struct {
	maxUnavailable, maxUnavailablePartitions, unavailablePartitions int
	partitions                                                      []fleet.PartitionStatus
	isHeld                                                          bool // a Cluster is
}

// rolloutStep is the last decision about a Cluster that is not updated yet.
type rolloutStep struct {
	deploymentID string
	mayUpdate    bool
}

// hasRollout reports whether the Clusters of a Bundle are updated in steps. The Bundle of an agent is only for one Cluster.
func hasRollout(b *fleet.Bundle, p *plan) bool {
	return p.strategy != nil && p.problem == nil && !agentspec.IsAgentBundle(b)
}

// isUnprocessed reports whether a Cluster has no cluster namespace, for example while the namespace of an earlier Cluster is being deleted. Condition
// Processed says why. Nothing is deployed to it.
func isUnprocessed(cluster *fleet.Cluster) bool {
	return cluster.Status.Namespace == "" || fleetstatus.IsFalse(cluster.Status.Conditions, fleet.ConditionProcessed)
}

// isUnavailable reports whether the version in the spec is not deployed, or not ready. Drift does not make a Cluster unavailable.
func isUnavailable(deployment *fleet.BundleDeployment) bool {
	return deployment.Spec.DeploymentID != deployment.Status.AppliedDeploymentID || !deployment.Status.Ready
}

// rollOut decides which Clusters of a Bundle are updated now. If the decision about a Cluster has changed, it enqueues the Cluster if it may be updated,
// or if it has no BundleDeployment: it then gets one without a deployment ID. The queue calls it for one Bundle at a time. A decision that the cache does
// not show yet counts as carried out, so that no more Clusters are unavailable than allowed. A Cluster that is paused or has no namespace yet delays no
// other, whatever its state; one for which the new version cannot be rendered counts as unavailable in its partition and, when that begins, in the whole
// rollout. A Cluster whose targets are not known is held, unless it has what they are according to the ClusterGroups that exist: its partition is not done,
// it counts as unavailable if what is deployed is not ready, and an earlier decision about it stays.
func (d *Deployer) rollOut(ctx context.Context, b *fleet.Bundle, p *plan, matches []match, groups *workspaceGroups) (status rolloutStatus, err error) {
	k := keyOf(b)
	if !hasRollout(b, p) {
		d.mu.Lock()
		delete(d.rollouts, k)
		d.mu.Unlock()
		return status, nil
	}
	d.mu.Lock()
	before := d.rollouts[k]
	d.mu.Unlock()

	deployments := d.deploymentsOf(b)
	var targets []*rolloutTarget
	for _, m := range matches {
		if m.cluster.Spec.Quarantined {
			continue // nothing is written to it
		}
		deployment := deployments[registration.ClusterNamespace(m.cluster.Namespace, m.cluster.Name)]
		if deployment == nil && len(m.targets) == 0 {
			continue // most of these Clusters were never targeted, and must not delay the others until it is known what the groups select
		}
		t := &rolloutTarget{candidate: candidateOf(m.cluster, groups), key: keyOf(m.cluster), state: fleet.Pending, unavailable: true, isHeld: !m.isKnown}
		t.missing = groups.missing
		targets = append(targets, t)
		if t.exists = deployment != nil; t.exists {
			t.state = fleetstatus.BundleState(deployment.Spec, deployment.Status)
			t.unavailable = isUnavailable(deployment)
		}
		if isPaused(b, m.cluster) || isUnprocessed(m.cluster) {
			t.isSkipped, t.unavailable = true, false
			continue
		}
		if len(m.targets) > 0 {
			v, err := p.variant(ctx, m.targets, m.cluster)
			if ctx.Err() != nil { // the pass has ended, and err says nothing about the Bundle
				return status, ctx.Err()
			}
			if err != nil { // the new version cannot be rendered for this Cluster: count it as one that its agent could not deploy
				t.state, t.isSkipped, t.isInvalid, t.unavailable = fleet.ErrApplied, m.isKnown, true, true
				continue
			}
			t.deploymentID = v.deploymentID
			t.isSkipped = deployment != nil && deployment.Spec.DeploymentID == v.deploymentID
		}
		if step := before[t.key]; step.mayUpdate && (deployment == nil || deployment.Spec.DeploymentID != step.deploymentID) {
			t.unavailable, t.isUnderWay = true, true
			if t.isSkipped { // the decision is withdrawn: it counts in this pass, because the cache may be late, and not in the next one
				d.bundleChanged(k)
			}
		}
	}
	slices.SortFunc(targets, func(x, y *rolloutTarget) int { return strings.Compare(x.key.Name, y.key.Name) })
	if status, err = d.decideRollout(ctx, b, p, targets); err != nil {
		return status, err
	}

	steps := map[key]rolloutStep{}
	for _, t := range targets {
		switch {
		case t.isSkipped:
		case t.isHeld && t.isUnderWay: // the cache may be late, so that it still counts
			steps[t.key] = before[t.key]
		default:
			steps[t.key] = rolloutStep{t.deploymentID, t.mayUpdate}
		}
	}
	d.mu.Lock()
	d.rollouts[k] = steps
	d.mu.Unlock()
	for _, t := range targets {
		if (t.mayUpdate || !t.exists) && steps[t.key] != before[t.key] {
			d.clusters.EnqueueAfter(t.key.Namespace, t.key.Name, 0)
		}
	}
	return status, nil
}

func (d *Deployer) decideRollout(ctx context.Context, b *fleet.Bundle, p *plan, targets []*rolloutTarget) (rolloutStatus, error) {
	end, err := d.Matching.Begin(ctx, b.Namespace)
	if err != nil {
		return rolloutStatus{}, err
	}
	defer end()
	return p.strategy.decide(targets), nil
}

// deploymentsOf returns the BundleDeployments of a Bundle by their namespaces.
func (d *Deployer) deploymentsOf(b *fleet.Bundle) map[string]*fleet.BundleDeployment {
	deployed, _ := d.deploymentsOfBundle(keyOf(b))
	byNamespace := make(map[string]*fleet.BundleDeployment, len(deployed))
	for _, deployment := range deployed {
		byNamespace[deployment.Namespace] = deployment
	}
	return byNamespace
}

// mayUpdate reports whether a Cluster may get a deployment ID of a Bundle. If that is not decided yet, or if the last decision is about an ID that the
// Cluster does not need any more, because it has the ID of its earlier labels and annotations again, it enqueues the Bundle.
func (d *Deployer) mayUpdate(
	b *fleet.Bundle, p *plan, cluster key, existing *fleet.BundleDeployment, deploymentID string,
) (mayUpdate, isDecided bool) {
	if !hasRollout(b, p) {
		return true, true
	}
	d.mu.Lock()
	step, isKnown := d.rollouts[keyOf(b)][cluster]
	d.mu.Unlock()
	if existing != nil && existing.Spec.DeploymentID == deploymentID {
		if isKnown && step.deploymentID != deploymentID {
			d.bundleChanged(keyOf(b))
		}
		return true, true
	}
	if step.deploymentID != deploymentID {
		d.bundleChanged(keyOf(b))
		return false, false
	}
	return step.mayUpdate, true
}

// postponedByRollout returns a message for each Cluster that gets the new version of a Bundle later.
func (d *Deployer) postponedByRollout(bundle key) map[key]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	messages := map[key]string{}
	for cluster, step := range d.rollouts[bundle] {
		if !step.mayUpdate {
			messages[cluster] = "waits for the rollout strategy of the Bundle"
		}
	}
	return messages
}
