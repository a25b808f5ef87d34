package bundle

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func number(text string) *intstr.IntOrString { return ptr.To(intstr.Parse(text)) }

// The text of a Cluster has a letter for its state, and the name of its partition. o: it has the old version and is ready, b: the old
// version is broken or there is none, n: it has the new version and is ready, x: the new version is not ready (yet), d: it was
// allowed to get the new version, and the cache does not show that yet, i: the new version cannot be rendered for it, h: it is held and
// has no BundleDeployment, u: it is held and not ready, H: it is held, and was allowed to get its first deployment.
func TestDecide(t *testing.T) {
	canaryFirst := []fleet.Partition{{Name: "canary", ClusterSelector: selector("part", "c")}, {Name: "rest", ClusterSelector: selector("part", "r")}}
	limited := func(limits ...string) []fleet.Partition {
		all := append([]fleet.Partition{}, canaryFirst...)
		for i, limit := range limits {
			all[i].MaxUnavailable = number(limit)
		}
		return all
	}
	for _, row := range []struct {
		name     string
		strategy fleet.RolloutStrategy
		clusters string
		want     string // the positions of the Clusters to update
		shown    string // unavailable Clusters and limit of each partition, then the partitions that are not done
	}{
		{"partitions are updated one after the other", fleet.RolloutStrategy{Partitions: canaryFirst}, "or oc or oc", "1 3", "canary 2/2 rest 0/2, 2 of 0"},
		{"a partition waits for the one before", fleet.RolloutStrategy{Partitions: canaryFirst}, "or nc or xc", "", "canary 1/2 rest 0/2, 2 of 0"},
		{"a partition begins after the one before", fleet.RolloutStrategy{Partitions: canaryFirst}, "or nc or nc", "0 2", "canary 0/2 rest 2/2, 1 of 0"},
		{"all is done", fleet.RolloutStrategy{Partitions: canaryFirst}, "nr nc nr nc", "", "canary 0/2 rest 0/2, 0 of 0"},
		{"a partition without Clusters is done", fleet.RolloutStrategy{Partitions: canaryFirst}, "or or", "0 1", "canary 0/1 rest 2/2, 1 of 0"},
		{"a first deployment is in steps as well", fleet.RolloutStrategy{Partitions: limited("1", "1")}, "bc bc br br", "0 1", "canary 2/1 rest 2/1, 2 of 0"},
		{"partitions may overlap", fleet.RolloutStrategy{Partitions: limited("0"), MaxUnavailablePartitions: number("1")}, "or xc", "0", "canary 1/1 rest 1/1, 2 of 1"},
		{"a percentage of partitions", fleet.RolloutStrategy{Partitions: canaryFirst, MaxUnavailablePartitions: number("50%")}, "or xc", "0", "canary 1/1 rest 1/1, 2 of 1"},
		{"a few Clusters at a time", fleet.RolloutStrategy{MaxUnavailable: number("2")}, "or or or or", "0 1", "All 2/2, 1 of 0"},
		{"a place for each that is ready", fleet.RolloutStrategy{MaxUnavailable: number("2")}, "nr xr or or", "2", "All 2/2, 1 of 0"},
		{"no place", fleet.RolloutStrategy{MaxUnavailable: number("2")}, "xr xr or or", "", "All 2/2, 1 of 0"},
		{"a broken Cluster has nothing to lose", fleet.RolloutStrategy{MaxUnavailable: number("1")}, "xr br br or", "1 2", "All 3/1, 1 of 0"},
		{"Clusters without an agent get the new version, and leave no place", fleet.RolloutStrategy{MaxUnavailable: number("1")}, "or br br", "1 2", "All 2/1, 1 of 0"},
		{"a correction reaches all that a bad version has broken", fleet.RolloutStrategy{Partitions: limited("0", "0")}, "bc br br", "0", "canary 1/1 rest 2/1, 2 of 0"},
		{"a percentage, rounded down", fleet.RolloutStrategy{MaxUnavailable: number("50%")}, "or or or", "0", "All 1/1, 1 of 0"},
		{"zero still progresses", fleet.RolloutStrategy{MaxUnavailable: number("0")}, "or or", "0", "All 1/1, 1 of 0"},
		{"zero tolerates none", fleet.RolloutStrategy{Partitions: limited("0")}, "xc or", "", "canary 1/1 rest 0/1, 2 of 0"},
		{"the limit of a partition tolerates that many", fleet.RolloutStrategy{Partitions: limited("1")}, "xc nc or", "2", "canary 1/1 rest 1/1, 1 of 0"},
		{"the limit of a partition goes before the one of all", fleet.RolloutStrategy{MaxUnavailable: number("3"), Partitions: limited("1")}, "oc oc or", "0", "canary 1/1 rest 0/3, 2 of 0"},
		{"the limit of all counts over the partitions", fleet.RolloutStrategy{
			MaxUnavailable: number("2"), MaxUnavailablePartitions: number("1"), Partitions: limited("1", "2"),
		}, "oc oc or or", "0 2", "canary 1/1 rest 1/2, 2 of 1"},
		{"what is unavailable in a later partition does not count in all", fleet.RolloutStrategy{MaxUnavailable: number("1"), Partitions: limited("0")}, "oc br br", "0", "canary 1/1 rest 2/1, 2 of 0"},
		{"when its partition begins, it counts in all", fleet.RolloutStrategy{
			MaxUnavailable: number("2"), MaxUnavailablePartitions: number("1"), Partitions: limited("1", "4"),
		}, "xc or br or", "2", "canary 1/1 rest 1/4, 1 of 1"},
		{"it counts before those that are ready", fleet.RolloutStrategy{MaxUnavailable: number("1"), Partitions: limited("2")}, "oc bc", "1", "canary 1/2 rest 0/1, 1 of 0"},
		{"what has the new version in a later partition counts in all", fleet.RolloutStrategy{MaxUnavailable: number("1"), Partitions: canaryFirst}, "oc xr or", "", "canary 0/1 rest 1/1, 2 of 0"},
		{"what was decided in a later partition counts in all", fleet.RolloutStrategy{MaxUnavailable: number("1"), Partitions: canaryFirst}, "oc dr or", "", "canary 0/1 rest 1/1, 2 of 0"},
		{"what was decided counts once", fleet.RolloutStrategy{MaxUnavailable: number("2")}, "dr or or", "0 1", "All 2/2, 1 of 0"},
		{"a later partition has a Cluster for which the version is invalid", fleet.RolloutStrategy{MaxUnavailable: number("1"), Partitions: canaryFirst}, "oc ir or", "0", "canary 1/1 rest 1/1, 1 of 0"},
		{"the first partition has one", fleet.RolloutStrategy{MaxUnavailable: number("1"), Partitions: limited("0")}, "ic oc or", "", "canary 1/1 rest 0/1, 2 of 0"},
		{"it counts in all when its partition begins", fleet.RolloutStrategy{MaxUnavailable: number("1"), Partitions: limited("0", "9")}, "nc ir or", "", "canary 0/1 rest 1/9, 1 of 0"},
		{"a new Cluster that is held takes no place", fleet.RolloutStrategy{MaxUnavailable: number("1")}, "h- o-", "1", "All 1/1, 1 of 0"},
		{"the next partition waits for it", fleet.RolloutStrategy{Partitions: canaryFirst}, "hc oc or", "1", "canary 1/2 rest 0/1, 2 of 0"},
		{"it takes no place in a later partition", fleet.RolloutStrategy{MaxUnavailable: number("1"), Partitions: canaryFirst}, "nc hr or", "2", "canary 0/1 rest 1/1, 1 of 0"},
		{"a held Cluster that is not ready takes its place", fleet.RolloutStrategy{MaxUnavailable: number("1")}, "u- o-", "", "All 1/1, 1 of 0"},
		{"a held Cluster that may be deployed to takes its place", fleet.RolloutStrategy{MaxUnavailable: number("1")}, "H- o-", "", "All 1/1, 1 of 0"},
		{"others follow", fleet.RolloutStrategy{Partitions: canaryFirst}, "nc o- o-", "1 2", "canary 0/1 rest 0/1 All 2/2, 1 of 0"},
		{"others in partitions of a size", fleet.RolloutStrategy{AutoPartitionSize: number("2")}, "o- o- o- o- o-", "0 1", "Partition 1 2/2 Partition 2 0/2 Partition 3 0/1, 3 of 0"},
		{"others in partitions of a percentage", fleet.RolloutStrategy{AutoPartitionSize: number("50%"), Partitions: canaryFirst[:1]}, "n- n- o- o- nc", "2 3", "canary 0/1 Partition 2 0/2 Partition 3 2/2, 1 of 0"},
		{"a size of zero", fleet.RolloutStrategy{AutoPartitionSize: number("0")}, "o- o-", "0", "Partition 1 1/1 Partition 2 0/1, 2 of 0"},
		{"no Clusters", fleet.RolloutStrategy{MaxUnavailable: number("1")}, "", "", ", 0 of 0"},
		{"by default a tenth may be unavailable", fleet.RolloutStrategy{Partitions: canaryFirst}, strings.Repeat("nc ", 9) + "xc or", "10", "canary 1/10 rest 1/1, 1 of 0"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, err := newStrategy(&row.strategy)
			require.NoError(t, err)
			var targets []*rolloutTarget
			for _, text := range strings.Fields(row.clusters) {
				targets = append(targets, &rolloutTarget{
					candidate: candidate{labels: labels.Set{"part": text[1:]}}, state: fleet.Ready,
					isSkipped: strings.ContainsRune("nxi", rune(text[0])), isInvalid: text[0] == 'i', unavailable: strings.ContainsRune("bxdihuH", rune(text[0])),
					isUnderWay: strings.ContainsRune("dH", rune(text[0])), isHeld: strings.ContainsRune("huH", rune(text[0])), exists: !strings.ContainsRune("hH", rune(text[0])),
				})
			}
			status := s.decide(targets)
			var updated, shown []string
			for i, target := range targets {
				if target.mayUpdate {
					updated = append(updated, fmt.Sprint(i))
				}
			}
			for _, p := range status.partitions {
				shown = append(shown, fmt.Sprintf("%s %d/%d", p.Name, p.Unavailable, p.MaxUnavailable))
				assert.Equal(t, p.Count, p.Summary.DesiredReady)
			}
			assert.Equal(t, row.want, strings.Join(updated, " "))
			assert.Equal(t, row.shown, fmt.Sprintf("%s, %d of %d", strings.Join(shown, " "), status.unavailablePartitions, status.maxUnavailablePartitions))
		})
	}
}

func TestDecideLimitsTheStatus(t *testing.T) {
	given := fleet.RolloutStrategy{AutoPartitionSize: number("1"), Partitions: []fleet.Partition{{Name: strings.Repeat("ä", 100)}}}
	s, err := newStrategy(&given)
	require.NoError(t, err)
	of := func(clusters int) (counts []int, status rolloutStatus) {
		targets := make([]*rolloutTarget, clusters)
		for i := range targets {
			targets[i] = &rolloutTarget{}
		}
		for _, p := range s.divide(targets) {
			counts = append(counts, len(p.targets))
		}
		return counts, s.decide(targets)
	}
	counts, _ := of(100)
	assert.Equal(t, append([]int{0}, slices.Repeat([]int{1}, 100)...), counts)
	counts, status := of(9_950)
	assert.Equal(t, append(append([]int{0}, slices.Repeat([]int{100}, 99)...), 50), counts, "the partitions are larger")
	assert.Len(t, status.partitions, 100, "one less than there are")
	assert.Equal(t, 100, status.unavailablePartitions, "all but the empty one")
	assert.Equal(t, strings.Repeat("ä", 31), status.partitions[0].Name)
}

// oneAtATime returns a Bundle that is deployed to one Cluster after the other.
func oneAtATime(version string) *fleet.Bundle {
	b := bundleWith(func(s *fleet.BundleSpec) {
		s.Targets = []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
		s.RolloutStrategy = &fleet.RolloutStrategy{MaxUnavailable: number("1")}
		s.Helm = values(map[string]any{"version": version})
		s.DependsOn = []fleet.BundleRef{{Name: "of-" + version}}
	})
	b.Generation = int64(len(version))
	return b
}

func TestRollOut(t *testing.T) {
	s := newStage(t)
	before, after := oneAtATime("1"), oneAtATime("22")
	alice, bob := clusterNamed("alice"), clusterNamed("bob")
	atAlice, atBob := isReady(deployed(t, before, alice)), isReady(deployed(t, before, bob))
	atBob.UID = "uid-at-bob"
	s.has(t, alice, bob, after, atAlice, atBob)
	wanted, err := s.plans.of(t.Context(), after).variant(t.Context(), []int{0}, alice)
	require.NoError(t, err)

	s.reconcile(t, bob)
	assert.Contains(t, s.taken(), "enqueue Bundle app in 1s", "nothing is decided yet")
	s.handle(t, after)
	assert.Contains(t, s.taken(), "enqueue Cluster alice in 0s")
	s.clock.Step(s.StatusDelay())
	s.handle(t, after)
	log := s.taken()
	assert.Empty(t, onlyClusters(log), "once is enough")
	assert.Contains(t, strings.Join(log, "\n"), `"partitions":[{"count":2,"maxUnavailable":1,"name":"All"`)

	t.Run("one that waits gets the staged fields only", func(t *testing.T) {
		held := desired(after, wanted, helmValues{current: []byte("old"), staged: wanted.values}, true, bob, atBob)
		assert.Equal(t, wanted.deploymentID, held.Spec.StagedDeploymentID)
		held.Status = atBob.Status
		s.has(t, held.DeepCopy())
		assert.Equal(t, "0/2 WaitApplied(1) [Cluster ws/alice]; OutOfSync(1) [Cluster ws/bob: waits for the rollout strategy of the Bundle]", s.shown(after))
		held.Spec.StagedDeploymentID, held.Spec.StagedOptions, held.Spec.ValuesHash = atBob.Spec.StagedDeploymentID, atBob.Spec.StagedOptions, atBob.Spec.ValuesHash
		assert.Equal(t, atBob.Spec, held.Spec)

		s.reconcile(t, bob)
		assert.NotContains(t, strings.Join(s.taken(), "\n"), `"/spec/deploymentID","value":"`+wanted.deploymentID)
	})
	t.Run("one that may is updated", func(t *testing.T) {
		s.reconcile(t, alice)
		assert.Contains(t, strings.Join(s.taken(), "\n"), `"/spec/deploymentID","value":"`+wanted.deploymentID)
	})
	t.Run("what is not in the cache yet counts", func(t *testing.T) {
		s.handle(t, after)
		assert.NotContains(t, s.taken(), "enqueue Cluster bob in 0s")
	})
	t.Run("what is not ready yet counts", func(t *testing.T) {
		atAlice = deployed(t, after, alice)
		s.has(t, atAlice)
		s.handle(t, after)
		assert.NotContains(t, s.taken(), "enqueue Cluster bob in 0s")
	})
	t.Run("a paused Cluster holds nobody up", func(t *testing.T) {
		carol := clusterNamed("carol")
		carol.Spec.Paused = true
		s.has(t, carol, isReady(deployed(t, before, carol)), isReady(atAlice))
		s.handle(t, after)
		assert.Equal(t, []string{"enqueue Cluster bob in 0s"}, onlyClusters(s.taken()))
	})
	t.Run("the next one is updated", func(t *testing.T) {
		s.reconcile(t, bob)
		assert.Contains(t, strings.Join(s.taken(), "\n"), `"/spec/deploymentID","value":"`+wanted.deploymentID)
	})
	t.Run("a new Cluster waits, and says so", func(t *testing.T) {
		dave := clusterNamed("dave")
		second := oneAtATime("333")
		second.Spec.RolloutStrategy = &fleet.RolloutStrategy{Partitions: []fleet.Partition{{ClusterName: "alice"}, {ClusterName: "dave"}}}
		s.has(t, dave, second)
		s.reconcile(t, dave)
		assert.Equal(t, []string{"enqueue Bundle app in 1s"}, s.taken(), "nothing is decided yet, and nothing is written")
		s.handle(t, second)
		assert.Contains(t, s.taken(), "enqueue Cluster dave in 0s")
		assert.Contains(t, s.shown(second), "Cluster ws/dave: waits for the rollout strategy of the Bundle")
		s.reconcile(t, dave)
		assert.Contains(t, s.taken(), "create "+registration.ClusterNamespace("ws", "dave")+"/app")

		v, err := s.plans.of(t.Context(), second).variant(t.Context(), []int{0}, dave)
		require.NoError(t, err)
		waits := desired(second, v, helmValues{staged: v.values}, true, dave, nil)
		waits.Status.Conditions = []genericcondition.GenericCondition{condition("Ready", "False", "of the agent")}
		s.has(t, waits)
		assert.Contains(t, s.shown(second), "NotReady(1) [Cluster ws/dave: waits for the rollout strategy of the Bundle]")
		s.handle(t, second)
		assert.NotContains(t, s.taken(), "enqueue Cluster dave in 0s", "once is enough")
	})
	t.Run("without a strategy everybody is updated", func(t *testing.T) {
		last := oneAtATime("4444")
		last.Spec.RolloutStrategy = nil
		s.has(t, last)
		s.handle(t, last)
		assert.Empty(t, s.rollouts)
		s.taken()
		s.reconcile(t, bob)
		assert.Contains(t, strings.Join(s.taken(), "\n"), `"/spec/deploymentID","value":"`)
	})
}

// Nothing is deployed to alice yet. The next one is bob.
func TestRollOut_clustersThatCannotBeUpdated(t *testing.T) {
	for name, row := range map[string]struct {
		cannot func(*fleet.Bundle, *fleet.Cluster)
		shown  string
		goesOn bool
	}{
		"paused":       {func(_ *fleet.Bundle, c *fleet.Cluster) { c.Spec.Paused = true }, "first 0, second 1", true},
		"no namespace": {func(_ *fleet.Bundle, c *fleet.Cluster) { c.Status.Conditions = unprocessed }, "first 0, second 1", true},
		"the namespace of an earlier Cluster is being deleted": {func(_ *fleet.Bundle, c *fleet.Cluster) { c.Status.Namespace = "" }, "first 0, second 1", true},
		"quarantined": {func(_ *fleet.Bundle, c *fleet.Cluster) { c.Spec.Quarantined = true }, "first 0, second 1", true},
		"no values: the version is wrong for it": {func(b *fleet.Bundle, _ *fleet.Cluster) {
			b.Spec.Helm = values(map[string]any{"env": "${ .ClusterLabels.env }"})
		}, "first 1, second 0", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			before, after := oneAtATime("1"), oneAtATime("22")
			after.Spec.RolloutStrategy.Partitions = []fleet.Partition{{Name: "first", ClusterName: "alice"}, {Name: "second", ClusterName: "bob"}}
			after.Spec.RolloutStrategy.Partitions[0].MaxUnavailable = number("0")
			alice, bob := clusterNamed("alice"), clusterNamed("bob")
			bob.Labels = map[string]string{"env": "prod"}
			row.cannot(after, alice)
			s.has(t, alice, bob, after, isReady(deployed(t, before, bob)))
			status, err := s.rollOut(t.Context(), after, s.plans.of(t.Context(), after), s.matching(after), s.groupsOf("ws"))
			require.NoError(t, err)
			var shown []string
			for _, p := range status.partitions {
				shown = append(shown, fmt.Sprint(p.Name, " ", p.Unavailable))
			}
			assert.Equal(t, row.shown, strings.Join(shown, ", "))
			assert.Equal(t, row.goesOn, slices.Contains(s.taken(), "enqueue Cluster bob in 0s"))
		})
	}
}

func onlyClusters(log []string) (clusters []string) {
	for _, line := range log {
		if strings.HasPrefix(line, "enqueue Cluster") {
			clusters = append(clusters, line)
		}
	}
	return clusters
}

// inTwoSteps returns a Bundle that is deployed to alice and then to bob, with values from an annotation of the Cluster.
func inTwoSteps(version string) *fleet.Bundle {
	b := oneAtATime(version)
	b.Spec.RolloutStrategy.Partitions = []fleet.Partition{{Name: "first", ClusterName: "alice"}, {Name: "second", ClusterName: "bob"}}
	b.Spec.RolloutStrategy.Partitions[0].MaxUnavailable = number("0")
	b.Spec.Helm = values(map[string]any{"version": version, "env": "${ .ClusterAnnotations.env }"})
	return b
}

// hasInTwoSteps puts a Bundle of two steps into the caches, of which alice has the new version and bob the one before.
func (s *stage) hasInTwoSteps(t *testing.T) (b *fleet.Bundle, alice *fleet.Cluster) {
	t.Helper()
	b, alice = inTwoSteps("22"), clusterNamed("alice")
	b.Status.ObservedGeneration = b.Generation
	bob := clusterNamed("bob")
	alice.Annotations, bob.Annotations = map[string]string{"env": "test"}, map[string]string{"env": "test"}
	s.has(t, alice, bob, b)
	for version, cluster := range map[string]*fleet.Cluster{"1": bob, "22": alice} {
		v, err := planOf(inTwoSteps(version)).variant(t.Context(), []int{0}, cluster)
		require.NoError(t, err)
		deployment := desired(inTwoSteps(version), v, helmValues{current: v.values, staged: v.values}, false, cluster, nil)
		deployment.UID, deployment.ResourceVersion, deployment.Generation = "uid-of-app", "5", 1
		s.has(t, isReady(deployment))
	}
	s.reconcile(t, alice)
	s.taken()
	return b, alice
}

// No BundleDeployment is written when a template begins or ceases to fail for a Cluster, so that no event of one enqueues the Bundle.
func TestReconcile_templateBeginsAndCeasesToFail(t *testing.T) {
	s := newStage(t)
	b, alice := s.hasInTwoSteps(t)
	without := alice.DeepCopy()
	without.Annotations = nil
	s.has(t, without)
	_, out := s.reconcile(t, without)
	assert.Equal(t, fleet.ReasonBundleInvalid, out.Reason)
	assert.Equal(t, []string{"enqueue Bundle app in 1s"}, s.taken(), "its status reports the error")
	s.handle(t, b)
	assert.NotContains(t, s.taken(), "enqueue Cluster bob in 0s", "it waits for alice")
	s.reconcile(t, without)
	assert.Empty(t, s.taken(), "nothing has changed")

	s.has(t, alice)
	s.reconcile(t, alice)
	assert.Equal(t, []string{"enqueue Bundle app in 1s"}, s.taken(), "the rollout goes on")
	s.handle(t, b)
	assert.Contains(t, s.taken(), "enqueue Cluster bob in 0s")
	s.reconcile(t, alice)
	assert.NotContains(t, s.taken(), "enqueue Bundle app in 1s", "nothing has changed")

	s.has(t, without)
	s.reconcile(t, without)
	s.Forget("ws/alice")
	assert.Empty(t, s.renderErrors)
}

// The decision to update a Cluster counts as carried out until the Bundle has another pass.
func TestReconcile_withdrawnDecision(t *testing.T) {
	s := newStage(t)
	b, alice := s.hasInTwoSteps(t)
	changed := alice.DeepCopy()
	changed.Annotations = map[string]string{"env": "prod"}
	s.has(t, changed)
	s.handle(t, b)
	assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, onlyClusters(s.taken()))
	s.has(t, alice)
	s.reconcile(t, alice)
	assert.Equal(t, []string{"enqueue Bundle app in 1s"}, s.taken())
	s.handle(t, b)
	assert.Contains(t, s.taken(), "enqueue Bundle app in 1s", "the cache may be late")
	s.handle(t, b)
	assert.Equal(t, []string{"enqueue Cluster bob in 0s"}, onlyClusters(s.taken()))
	s.reconcile(t, alice)
	assert.NotContains(t, s.taken(), "enqueue Bundle app in 1s")
}
