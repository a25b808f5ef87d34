package bundle

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// lists counts the look-ups of more than one object in the caches of a stage.
type lists struct{ count int }

type countedBundles struct {
	fleetcontrollers.BundleCache
	*lists
}

func (c countedBundles) List(namespace string, s labels.Selector) ([]*fleet.Bundle, error) {
	c.count++
	return c.BundleCache.List(namespace, s)
}

func (c countedBundles) GetByIndex(name, key string) ([]*fleet.Bundle, error) {
	c.count++
	return c.BundleCache.GetByIndex(name, key)
}

type countedClusters struct {
	fleetcontrollers.ClusterCache
	*lists
}

func (c countedClusters) List(namespace string, s labels.Selector) ([]*fleet.Cluster, error) {
	c.count++
	return c.ClusterCache.List(namespace, s)
}

func (c countedClusters) GetByIndex(name, key string) ([]*fleet.Cluster, error) {
	c.count++
	return c.ClusterCache.GetByIndex(name, key)
}

func countLists(s *stage) *lists {
	counted := &lists{}
	s.bundleCache, s.clusterCache = countedBundles{s.bundleCache, counted}, countedClusters{s.clusterCache, counted}
	return counted
}

// selecting returns a Bundle for the Clusters with the label env.
func selecting(name, env string) *fleet.Bundle {
	b := bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterSelector: selector("env", env)}} })
	b.Name = name
	return b
}

func clusterIn(name, env, version string) *fleet.Cluster {
	c := clusterNamed(name)
	c.Labels, c.ResourceVersion = map[string]string{"env": env}, version
	return c
}

// The handlers of the events of one workspace look nothing up. Any number of events enqueues one pass, with the same number of look-ups.
func TestManyEventsOfOneWorkspace(t *testing.T) {
	const events = 10_000
	for name, row := range map[string]struct {
		event func(s *stage, n int)
		want  string // what the pass enqueues
	}{
		"one Cluster gets other labels": {func(s *stage, n int) {
			s.clusterEvents().OnUpdate(clusterIn("alice", fmt.Sprint(n), "1"), clusterIn("alice", fmt.Sprint(n+1), "2"))
		}, "Bundle copying in 1s, Bundle dev in 1s, Bundle prod in 1s"},
		"the labels of one Cluster go back and forth": {func(s *stage, n int) {
			s.clusterEvents().OnUpdate(clusterIn("alice", []string{"prod", "none"}[n%2], "1"), clusterIn("alice", []string{"none", "prod"}[n%2], "2"))
		}, "Bundle copying in 1s, Bundle prod in 1s"},
		"many Clusters get other labels": {func(s *stage, n int) {
			s.clusterEvents().OnUpdate(clusterIn(fmt.Sprint(n), "none", "1"), clusterIn(fmt.Sprint(n), "prod", "2"))
		}, "Bundle copying in 1s, Bundle dev in 1s, Bundle prod in 1s"},
		"one group gets other selectors": {func(s *stage, n int) {
			before, after := group("g", nil, selector("env", fmt.Sprint(n))), group("g", nil, selector("env", fmt.Sprint(n+1)))
			before.Namespace, before.Generation, after.Namespace, after.Generation, after.ResourceVersion = "ws", int64(n), "ws", int64(n+1), "2"
			s.groupEvents().OnUpdate(before, after)
		}, "Cluster alice in 0s, Cluster bob in 0s"},
		"the source of a copy changes": {func(s *stage, _ int) {
			source := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "cred", ResourceVersion: "1"}}
			after := source.DeepCopy()
			after.ResourceVersion = "2"
			s.copyEvents(secretKind).OnUpdate(source, after)
		}, "Cluster alice in 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			copying := copying("secret", "cred")
			copying.Name = "copying"
			s.has(t, clusterIn("alice", "current", "2"), clusterIn("bob", "current", "2"), selecting("prod", "prod"), selecting("dev", "dev"), copying)
			s.has(t, deployed(t, copying))
			counted := countLists(s)
			for n := range events {
				row.event(s, n)
			}
			assert.Zero(t, counted.count)
			assert.Equal(t, []string{"enqueue Bundle * in 0s"}, s.log)
			assert.Equal(t, row.want, strings.ReplaceAll(strings.Join(s.takenByPass(t), ", "), "enqueue ", ""))
			assert.LessOrEqual(t, counted.count, 10)
			assert.Empty(t, s.takenByPass(t), "nothing is noted any more")
		})
	}
}

// The pass also enqueues a Bundle that targeted a Cluster only with labels of an intermediate event: its status may show the Cluster.
func TestDependentsOfEarlierLabels(t *testing.T) {
	s := newStage(t)
	s.has(t, clusterIn("alice", "c", "3"), selecting("a", "a"), selecting("b", "b"), selecting("c", "c"), selecting("d", "d"))
	s.clusterEvents().OnUpdate(clusterIn("alice", "a", "1"), clusterIn("alice", "b", "2"))
	s.clusterEvents().OnUpdate(clusterIn("alice", "b", "2"), clusterIn("alice", "c", "3"))
	assert.Equal(t, []string{"enqueue Bundle a in 1s", "enqueue Bundle b in 1s", "enqueue Bundle c in 1s"}, s.takenByPass(t))
}

// A pass that takes too long enqueues the objects that it has not matched.
func TestDependents_deadline(t *testing.T) {
	s := newStage(t)
	s.has(t, clusterIn("alice", "x", "1"), selecting("a", "a"), copying("secret", "cred"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var c changedObjects
	never := func(_, _ map[string]string) bool { return false }
	c.clusters.Add("alice", map[string]string{"env": "x"}, 1, never)
	s.enqueueDependents(ctx, "ws", c)
	assert.Equal(t, []string{"enqueue Bundle a in 1s", "enqueue Bundle app in 1s"}, s.taken()[:2])

	c = changedObjects{}
	c.groups.Add("g", group("g", nil, selector("env", "y")), 1, isSameGroupVersion)
	s.enqueueDependents(ctx, "ws", c)
	assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, s.taken())
}

// The queue repeats a pass that panicked. The changes for which it has not enqueued the dependents must not be lost.
func TestDependents_panic(t *testing.T) {
	s := newStage(t)
	s.has(t, clusterIn("alice", "x", "1"), selecting("a", "a"), selecting("other", "other"))
	s.clusterEvents().OnUpdate(clusterIn("alice", "a", "1"), clusterIn("alice", "x", "2"))
	clusters := s.clusterCache
	s.clusterCache = nil
	assert.Panics(t, func() { _, _ = s.onBundle("ws/*", nil) })
	s.clusterCache, s.log = clusters, nil
	_, err := s.onBundle("ws/*", nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"enqueue Bundle a in 1s", "enqueue Bundle other in 1s", "enqueue Cluster alice in 0s"}, slices.Compact(s.taken()))
	_, err = s.onBundle("ws/*", nil)
	require.NoError(t, err)
	assert.Empty(t, s.taken())
}

// Matching waits for other passes over the same workspace, and not for passes over another.
func TestMatchingIsLimited(t *testing.T) {
	for name, match := range map[string]func(s *stage, b *fleet.Bundle){
		"the Bundles of a Cluster": func(s *stage, _ *fleet.Bundle) {
			_, _ = s.targetingBundles(context.Background(), clusterNamed("alice"))
		},
		"the Clusters of a Bundle": func(s *stage, b *fleet.Bundle) { s.matching(b) },
		"the partitions of a Bundle": func(s *stage, b *fleet.Bundle) {
			b.Spec.RolloutStrategy = &fleet.RolloutStrategy{Partitions: []fleet.Partition{{Name: "first"}}}
			_, _ = s.rollOut(context.Background(), b, s.plans.of(t.Context(), b), nil, s.groupsOf("ws"))
		},
		"the dependents of Clusters": func(s *stage, _ *fleet.Bundle) {
			s.enqueueDependents(context.Background(), "ws", changedObjects{clusters: enqueue.EarlierVersions[map[string]string]{ByName: map[string][]map[string]string{"alice": nil}}})
		},
		"the dependents of groups": func(s *stage, _ *fleet.Bundle) {
			s.enqueueDependents(context.Background(), "ws", changedObjects{groups: enqueue.EarlierVersions[*fleet.ClusterGroup]{All: true}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				begin := func(workspace string) (end func()) {
					var ends []func()
					for range max(1, runtime.GOMAXPROCS(0)/2) {
						end, err := s.Matching.Begin(t.Context(), workspace)
						require.NoError(t, err)
						ends = append(ends, end)
					}
					return func() {
						for _, end := range ends {
							end()
						}
					}
				}
				defer begin("other")()
				end, done := begin("ws"), false
				go func() {
					match(s, everywhere())
					done = true
				}()
				synctest.Wait()
				assert.False(t, done)
				end()
				synctest.Wait()
				assert.True(t, done)
			})
		})
	}
}
