package bundle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
)

// unknown are changes of a ClusterGroup after which the hub does not know which Clusters it selects.
var unknown = map[string]func(*fleet.ClusterGroup){
	"no value":         func(g *fleet.ClusterGroup) { g.Spec.Selector = expression("env", metav1.LabelSelectorOpIn) },
	"no such operator": func(g *fleet.ClusterGroup) { g.Spec.Selector = expression("env", "Inn", "prod") },
	"too many values":  func(g *fleet.ClusterGroup) { g.Spec.Selector = notInMany(clustergroup.MaxSelector) },
	"not in memory":    func(g *fleet.ClusterGroup) { g.Labels, g.Spec.Selector, g.Spec.MetadataTooLarge = nil, nil, true },
}

func expression(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

// groupProd returns a version of the ClusterGroup prod that selects all Clusters until a change.
func groupProd(generation int64, changes ...func(*fleet.ClusterGroup)) *fleet.ClusterGroup {
	g := group("prod", map[string]string{"tier": "gold"}, &metav1.LabelSelector{})
	g.Namespace, g.UID, g.Generation, g.ResourceVersion = "ws", "uid-of-prod", generation, strings.Repeat("1", int(generation))
	for _, change := range changes {
		change(g)
	}
	return g
}

func withTargets(targets ...fleet.BundleTarget) *fleet.Bundle {
	return bundleWith(func(s *fleet.BundleSpec) { s.Targets = targets })
}

var (
	toProd   = fleet.BundleTarget{ClusterGroup: "prod"}
	toGold   = fleet.BundleTarget{ClusterGroupSelector: selector("tier", "gold")}
	toOthers = fleet.BundleTarget{ClusterSelector: &metav1.LabelSelector{}, BundleDeploymentOptions: fleet.BundleDeploymentOptions{TargetNamespace: "other"}}
	notProd  = fleet.BundleTarget{ClusterGroup: "prod", DoNotDeploy: true}
	notGold  = fleet.BundleTarget{ClusterGroupSelector: selector("tier", "gold"), DoNotDeploy: true}
)

// A ClusterGroup that cannot be read selects neither all Clusters nor none.
func TestReconcile_unknownGroup(t *testing.T) {
	restricted := withTargets(toOthers)
	restricted.Spec.TargetRestrictions = []fleet.BundleTargetRestriction{{ClusterGroup: "prod"}}
	for reason, spoil := range unknown {
		for name, row := range map[string]struct {
			bundle     *fleet.Bundle
			isDeployed bool
			then       string // the first request when the group selects all Clusters again
		}{
			"the only target":                  {withTargets(toProd), true, ""},
			"the only target, by label":        {withTargets(toGold), true, ""},
			"the only target, of a new Bundle": {withTargets(toProd), false, "create " + atHome},
			"before another target":            {withTargets(toProd, toOthers), true, ""},
			"before another target, by label":  {withTargets(toGold, toOthers), true, ""},
			"excluded":                         {withTargets(notProd, toOthers), false, ""},
			"the only restriction":             {restricted, true, ""},
		} {
			t.Run(reason+"/"+name, func(t *testing.T) {
				s := newStage(t)
				s.has(t, clusterNamed("alice"), row.bundle, groupProd(1, spoil))
				if row.isDeployed {
					s.has(t, isReady(deployed(t, row.bundle)))
				}
				cluster, out := s.reconcile(t, clusterNamed("alice"))
				assert.Empty(t, s.taken(), "neither a write nor a request")
				assert.True(t, out.IsDone(), "the status of the Bundle names the group")
				assert.Zero(t, out.After)
				if row.isDeployed {
					assert.Equal(t, "1/1", cluster.Status.Display.ReadyBundles)
				}

				s.has(t, groupProd(2))
				s.reconcile(t, clusterNamed("alice"))
				assert.Contains(t, strings.Join(s.taken(), "\n")+"\n", row.then)
			})
		}
	}
}

// Other targets decide about the Cluster, whatever the group selects.
func TestReconcile_unknownGroupOfOtherClusters(t *testing.T) {
	byName, elsewhere := fleet.BundleTarget{ClusterName: "alice"}, fleet.BundleTarget{ClusterName: "bob", ClusterGroup: "prod"}
	for name, row := range map[string]struct {
		targets []fleet.BundleTarget
		created bool
	}{
		"an earlier target":           {[]fleet.BundleTarget{byName, toProd}, true},
		"a target of another Cluster": {[]fleet.BundleTarget{elsewhere, byName}, true},
		"another group":               {[]fleet.BundleTarget{{ClusterGroup: "dev"}, byName}, true},
		"other labels of groups":      {[]fleet.BundleTarget{{ClusterGroupSelector: selector("tier", "tin")}, byName}, true},
		"nothing else":                {[]fleet.BundleTarget{notProd}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, clusterNamed("alice"), withTargets(row.targets...), groupProd(1, unknown["no value"]))
			s.reconcile(t, clusterNamed("alice"))
			assert.Equal(t, row.created, slices.Contains(s.taken(), "create "+atHome))
		})
	}
}

// A BundleDeployment that no target requires is deleted, although a group of other targets cannot be read.
func TestReconcile_unknownGroupBesideADeletion(t *testing.T) {
	for reason, spoil := range unknown {
		t.Run(reason, func(t *testing.T) {
			s := newStage(t)
			dev := group("dev", nil, selector("env", "dev"))
			dev.Namespace = "ws"
			s.has(t, clusterNamed("alice"), withTargets(fleet.BundleTarget{ClusterGroup: "dev"}), dev, groupProd(1, spoil), isReady(deployed(t, targetingAlice())))
			labelled := groupProd(1)
			labelled.Labels["more"] = "in the API server"
			if reason == "not in memory" {
				s.uncached = []metav1.Object{labelled}
			}
			s.reconcile(t, clusterNamed("alice"))
			assert.Contains(t, s.taken(), "delete "+atHome+" uid-of-app")
		})
	}
}

func TestOnBundle_unknownGroup(t *testing.T) {
	for name, b := range map[string]*fleet.Bundle{
		"target": withTargets(toProd),
		"labels": withTargets(toGold),
		"restriction": bundleWith(func(s *fleet.BundleSpec) {
			s.TargetRestrictions = []fleet.BundleTargetRestriction{{ClusterGroup: "prod"}}
		}),
		"partition": bundleWith(func(s *fleet.BundleSpec) {
			s.RolloutStrategy = &fleet.RolloutStrategy{Partitions: []fleet.Partition{{ClusterGroup: "prod"}}}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			b.Status.ObservedGeneration = b.Generation
			s.has(t, clusterNamed("alice"), b, groupProd(1, unknown["no value"]), isReady(deployed(t, targetingAlice())))
			s.handle(t, b)
			log := strings.Join(s.taken(), "\n")
			assert.Contains(t, log, `"reason":"BundleInvalid","status":"False","type":"Ready"`)
			assert.Contains(t, log, `ClusterGroup prod: spec.selector: values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty; until that is corrected, `)
			assert.Contains(t, log, `"ready":1`, "what is deployed is still counted")

			s.has(t, groupProd(2))
			s.clock.Step(s.StatusDelay())
			s.handle(t, b)
			log = strings.Join(s.taken(), "\n")
			assert.Contains(t, log, "patch Bundle app [status]")
			assert.NotContains(t, log, "BundleInvalid")
		})
	}
}

// The message is the same in each pass, whatever the order of the groups in the cache.
func TestOnBundle_manyUnknownGroups(t *testing.T) {
	messages := map[string]bool{}
	for range 5 {
		s := newStage(t)
		b := withTargets(fleet.BundleTarget{ClusterGroupSelector: &metav1.LabelSelector{}})
		b.Status.ObservedGeneration = b.Generation
		s.has(t, b)
		for _, name := range strings.Split("lkjihgfedcba", "") {
			g := groupProd(1, unknown["no such operator"])
			g.Name = name
			s.has(t, g)
		}
		s.handle(t, b)
		messages[strings.Join(s.taken(), "\n")] = true
	}
	require.Len(t, messages, 1)
	for message := range messages {
		assert.Contains(t, message, "ClusterGroup a: ")
		assert.Contains(t, message, "and 2 more")
	}
}

// Nothing is written to a Bundle whose Clusters wait for the group, so that no other event enqueues it.
func TestGroupEvents_unknown(t *testing.T) {
	for reason, spoil := range unknown {
		t.Run(reason, func(t *testing.T) {
			s := newStage(t)
			named := func(name string, b *fleet.Bundle) *fleet.Bundle {
				b.Name = name
				return b
			}
			right, wrong, again := groupProd(1), groupProd(2, spoil), groupProd(3)
			if reason == "not in memory" { // the group itself has not changed
				wrong.Generation, wrong.Labels, again.Generation = 1, right.Labels, 1
			}
			s.has(t, clusterNamed("alice"), named("group", withTargets(toProd)), named("labels", withTargets(toGold)), named("others", withTargets(toOthers)))
			all := []string{"enqueue Bundle group in 1s", "enqueue Bundle labels in 1s", "enqueue Cluster alice in 0s"}
			s.has(t, wrong)
			s.groupEvents().OnUpdate(right, wrong)
			assert.Equal(t, all, s.takenByPass(t))
			s.has(t, again)
			s.groupEvents().OnUpdate(wrong, again)
			assert.Equal(t, all, s.takenByPass(t))

			s.groupEvents().OnUpdate(right, wrong)
			s.groupEvents().OnUpdate(wrong, again)
			assert.Equal(t, all, s.takenByPass(t), "a pass over another object may have seen the version between")
		})
	}
}

// The status of the Bundle says which groups are missing, while a Cluster waits for them.
func TestOnBundle_missingGroup(t *testing.T) {
	restricted := withTargets(toOthers)
	restricted.Spec.TargetRestrictions = []fleet.BundleTargetRestriction{{ClusterGroup: "prod"}}
	partitions := withTargets(toOthers)
	partitions.Spec.RolloutStrategy = &fleet.RolloutStrategy{Partitions: []fleet.Partition{{ClusterGroup: "prod"}}}
	const prod, gold = "ClusterGroup prod", `ClusterGroups with the labels \"tier=gold\"`
	for name, row := range map[string]struct {
		bundle, deployed *fleet.Bundle
		missing          string // "" if no Cluster waits
	}{
		"its BundleDeployment stays":                 {withTargets(toProd), targetingAlice(), prod},
		"its BundleDeployment does not change":       {withTargets(toGold, toOthers), targetingAlice(), gold},
		"it gets none":                               {withTargets(notProd, notGold, toOthers), nil, prod + "; " + gold},
		"it may not be allowed":                      {restricted, targetingAlice(), prod},
		"it may be in the partition":                 {partitions, nil, prod},
		"it was never targeted":                      {withTargets(toGold), nil, ""},
		"its BundleDeployment is as it would be":     {withTargets(toGold, toOthers), withTargets(toOthers), ""},
		"an earlier target decides":                  {withTargets(toOthers, toGold), targetingAlice(), ""},
		"it has the version, whatever the partition": {partitions, withTargets(toOthers), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.kinds = map[string]*metav1.PartialObjectMetadata{"clustergroups.fleet.cattle.io": kindSince(noon.Add(-time.Hour))}
			b := row.bundle
			b.Status.ObservedGeneration, b.CreationTimestamp = b.Generation, metav1.NewTime(noon.Add(-48*time.Hour))
			s.has(t, clusterNamed("alice"), b)
			if row.deployed != nil {
				s.has(t, isReady(deployed(t, row.deployed)))
			}
			s.handle(t, b)
			log := strings.Join(s.taken(), "\n")
			assert.Contains(t, log, "kind clustergroups")
			if row.missing == "" {
				assert.NotContains(t, log, "KindDeleted")
				return
			}
			assert.Contains(t, log, `"reason":"KindDeleted","status":"False","type":"Ready"`)
			assert.Contains(t, log, "was deleted, and these may be missing: "+row.missing+"; create them again. ")
			assert.Contains(t, log, fmt.Sprintf("enqueue Bundle app in %s", s.RecheckDelay()))

			s.clock.Step(24 * time.Hour)
			s.handle(t, b)
			assert.NotContains(t, strings.Join(s.taken(), "\n"), "KindDeleted")
		})
	}
}

// notKnown are states in which it is not known which Clusters the group prod selects, until the group is there.
var notKnown = map[string]func(*testing.T, *stage){
	"unreadable": func(t *testing.T, s *stage) { s.has(t, groupProd(2, unknown["no value"])) },
	"missing": func(t *testing.T, s *stage) {
		other := groupProd(1, func(g *fleet.ClusterGroup) { g.Name, g.Spec.Selector = "other", selector("env", "dev") })
		s.has(t, other)
		s.kinds = map[string]*metav1.PartialObjectMetadata{"clustergroups.fleet.cattle.io": kindSince(noon.Add(-time.Hour))}
	},
}

// The Clusters of a partition that is not known may be in an earlier one than the selectors of the others say.
func TestRollOut_unknownPartition(t *testing.T) {
	for reason, spoil := range notKnown {
		for name, partition := range map[string]fleet.Partition{"name": {ClusterGroup: "prod"}, "labels": {ClusterGroupSelector: selector("tier", "gold")}} {
			t.Run(reason+"/"+name, func(t *testing.T) {
				s := newStage(t)
				before, after := oneAtATime("1"), oneAtATime("22")
				partitions := []fleet.Partition{{Name: "first", ClusterName: "alice"}, partition, {Name: "last", ClusterSelector: &metav1.LabelSelector{}}}
				after.Spec.RolloutStrategy = &fleet.RolloutStrategy{Partitions: partitions, MaxUnavailablePartitions: number("1")}
				alice, bob := clusterNamed("alice"), clusterNamed("bob")
				s.has(t, alice, bob, after, isReady(deployed(t, before, alice)), isReady(deployed(t, before, bob)))
				spoil(t, s)
				s.handle(t, after)
				assert.Contains(t, onlyClusters(s.taken()), "enqueue Cluster alice in 0s", "it is in the first partition")
				s.reconcile(t, bob)
				assert.NotContains(t, strings.Join(s.taken(), "\n"), `"/spec/deploymentID"`, "bob waits")

				s.has(t, groupProd(3))
				s.handle(t, after)
				assert.Equal(t, []string{"enqueue Cluster bob in 0s"}, onlyClusters(s.taken()))
				s.reconcile(t, bob)
				assert.Contains(t, strings.Join(s.taken(), "\n"), `"/spec/deploymentID"`)
			})
		}
	}
}

// A pass does nothing for a Cluster that the Bundle was not deployed to while it is not known whether the Bundle targets it.
func TestOnBundle_unknownTargetOfANewCluster(t *testing.T) {
	for reason, spoil := range notKnown {
		t.Run(reason, func(t *testing.T) {
			s := newStage(t)
			b := withValues("${ .ClusterName }")
			b.Spec.Targets = []fleet.BundleTarget{{ClusterName: "bob"}, {ClusterGroup: "prod"}}
			alice, bob := clusterNamed("alice"), clusterNamed("bob")
			s.has(t, alice, bob, b)
			spoil(t, s)
			s.handle(t, b) // notes the change
			s.clock.Step(s.StatusDelay())
			assert.Equal(t, []string{"enqueue Cluster bob in 0s"}, onlyClusters(s.taken()))
			s.handle(t, b)
			rendered := s.plans.of(t.Context(), b).cache.rendered
			assert.Contains(t, rendered, keyOf(bob))
			assert.NotContains(t, rendered, keyOf(alice))
		})
	}
}

// The first partition has a Cluster whose targets are not known. The next one waits for it.
func TestRollOut_unknownTarget(t *testing.T) {
	for reason, spoil := range notKnown {
		t.Run(reason, func(t *testing.T) {
			s := newStage(t)
			before, after := oneAtATime("1"), oneAtATime("22")
			after.Spec.Targets = []fleet.BundleTarget{{ClusterName: "bob"}, {ClusterGroup: "prod"}}
			after.Status.ObservedGeneration = after.Generation
			after.Spec.RolloutStrategy = &fleet.RolloutStrategy{Partitions: []fleet.Partition{{ClusterName: "alice"}, {ClusterSelector: &metav1.LabelSelector{}}}}
			alice, bob := clusterNamed("alice"), clusterNamed("bob")
			s.has(t, alice, bob, after, isReady(deployed(t, before, alice)), isReady(deployed(t, before, bob)))
			spoil(t, s)
			s.handle(t, after)
			assert.NotContains(t, onlyClusters(s.taken()), "enqueue Cluster alice in 0s")
			for _, cluster := range []*fleet.Cluster{alice, bob} {
				s.reconcile(t, cluster)
				assert.NotContains(t, strings.Join(s.taken(), "\n"), `"/spec/deploymentID"`)
			}

			s.has(t, groupProd(3))
			s.handle(t, after)
			assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, onlyClusters(s.taken()))
			s.reconcile(t, alice)
			assert.Contains(t, strings.Join(s.taken(), "\n"), `"/spec/deploymentID"`)
		})
	}
}

// alice has no BundleDeployment, and it is not known whether the Bundle targets it. bob does not wait for it, in the same partition or in the next one.
func TestRollOut_unknownTargetOfANewCluster(t *testing.T) {
	for reason, spoil := range notKnown {
		for name, partitions := range map[string][]fleet.Partition{
			"one partition": nil, "the next partition": {{ClusterName: "alice"}, {ClusterSelector: &metav1.LabelSelector{}}},
		} {
			t.Run(reason+"/"+name, func(t *testing.T) {
				s := newStage(t)
				before, after := oneAtATime("1"), oneAtATime("22")
				after.Spec.Targets = []fleet.BundleTarget{{ClusterName: "bob"}, {ClusterGroup: "prod"}}
				after.Status.ObservedGeneration = after.Generation
				after.Spec.RolloutStrategy.Partitions = partitions
				alice, bob := clusterNamed("alice"), clusterNamed("bob")
				s.has(t, alice, bob, after, isReady(deployed(t, before, bob)))
				spoil(t, s)
				s.handle(t, after)
				assert.Equal(t, []string{"enqueue Cluster bob in 0s"}, onlyClusters(s.taken()))

				s.has(t, groupProd(3))
				s.handle(t, after)
				assert.Contains(t, onlyClusters(s.taken()), "enqueue Cluster alice in 0s", "it is targeted")
			})
		}
	}
}

// alice has no BundleDeployment. It is targeted, and it is not known to which partition it belongs or whether another target applies to it.
func TestRollOut_newClusterIsHeld(t *testing.T) {
	for name, row := range map[string]struct {
		first      fleet.BundleTarget
		partitions []fleet.Partition
		next       string
	}{
		"another target may apply": {fleet.BundleTarget{ClusterName: "alice", ClusterGroup: "prod"}, nil, "bob"}, // the target is not that of the BundleDeployment
		"its partition":            {toOthers, []fleet.Partition{{ClusterName: "bob"}, {ClusterName: "alice", ClusterGroup: "prod"}, {ClusterName: "carol"}}, "carol"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			before, after := oneAtATime("1"), oneAtATime("22")
			after.Spec.Targets = []fleet.BundleTarget{row.first, toOthers}
			after.Spec.RolloutStrategy.Partitions, after.Spec.RolloutStrategy.MaxUnavailablePartitions = row.partitions, number("2")
			after.Status.ObservedGeneration = after.Generation
			alice, bob, carol := clusterNamed("alice"), clusterNamed("bob"), clusterNamed("carol")
			s.has(t, alice, bob, carol, after, isReady(deployed(t, after, bob)), isReady(deployed(t, before, carol)))
			notKnown["missing"](t, s)
			s.handle(t, after)
			assert.Contains(t, onlyClusters(s.taken()), "enqueue Cluster "+row.next+" in 0s")
			assert.False(t, s.rollouts[keyOf(after)][keyOf(alice)].mayUpdate)
		})
	}
}

// alice is unavailable while its target is not known, or may be: no other Cluster takes its place.
func TestRollOut_unknownTargetTakesItsPlace(t *testing.T) {
	for reason, spoil := range notKnown {
		for name, isWritten := range map[string]bool{"it is not ready": true, "the cache is late": false} {
			t.Run(reason+"/"+name, func(t *testing.T) {
				s := newStage(t)
				before, after := oneAtATime("1"), oneAtATime("22")
				after.Spec.Targets = []fleet.BundleTarget{{ClusterName: "alice", ClusterGroup: "prod"}, {ClusterName: "bob"}}
				after.Status.ObservedGeneration = after.Generation
				alice, bob := clusterNamed("alice"), clusterNamed("bob")
				right := groupProd(1)
				s.has(t, alice, bob, after, right, isReady(deployed(t, before, alice)), isReady(deployed(t, before, bob)))
				s.handle(t, after)
				assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, onlyClusters(s.taken()))
				if isWritten {
					s.has(t, deployed(t, after, alice))
				}
				s.lost(t, right)
				spoil(t, s)
				for range 3 {
					s.clock.Step(s.StatusDelay())
					s.handle(t, after)
					assert.Empty(t, onlyClusters(s.taken()))
				}
				if isWritten {
					s.has(t, isReady(deployed(t, after, alice)))
					s.handle(t, after)
					assert.Equal(t, []string{"enqueue Cluster bob in 0s"}, onlyClusters(s.taken()), "the agent of alice has reported")
				}
			})
		}
	}
}
