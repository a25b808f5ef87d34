package clustergroup

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// TestSum computes the recorded groups of Fleet's own hub from its recorded Clusters.
func TestSum(t *testing.T) {
	data, err := os.ReadFile("../internal/rollup/testdata/23-cluster-status.yaml")
	require.NoError(t, err)
	data = regexp.MustCompile(`\bTIME-\d+\b`).ReplaceAll(data, []byte("2026-01-02T12:00:00Z"))
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		var stage struct {
			Stage         string
			Clusters      []*fleet.Cluster
			ClusterGroups []fleet.ClusterGroup
		}
		require.NoError(t, yaml.Unmarshal(document, &stage))
		for _, group := range stage.ClusterGroups {
			t.Run(stage.Stage, func(t *testing.T) {
				selector, err := metav1.LabelSelectorAsSelector(group.Spec.Selector)
				require.NoError(t, err)
				var selected []*fleet.Cluster
				for _, cluster := range stage.Clusters {
					if selector.Matches(labels.Set(cluster.Labels)) {
						selected = append(selected, cluster)
					}
				}
				got := fleet.ClusterGroupStatus{Conditions: group.Status.Conditions}
				ready := sum(&got, selected)
				assert.Equal(t, group.Status, got)
				for _, c := range group.Status.Conditions {
					if c.Type == fleet.ConditionReady {
						assert.Equal(t, c.Status, ready.Status())
						assert.Equal(t, c.Message, ready.Message)
					}
				}
			})
		}
	}
}

// scene is a handler whose caches the test fills. It notes what is enqueued, and counts the lists of groups.
type scene struct {
	*handler
	groupIndexer, clusterIndexer cache.Indexer
	enqueued                     []string
	lists                        int
}

func newScene(t *testing.T, groups ...*fleet.ClusterGroup) *scene {
	t.Helper()
	indexer := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	s := &scene{groupIndexer: indexer(), clusterIndexer: indexer()}
	s.handler = &handler{
		Context: &app.Context{Passes: app.NewPasses(t.Context())}, selectors: &Selectors{}, queue: s, changes: &enqueue.Changes[changedClusters]{Queue: s},
		groups:   countedGroups{generic.NewCache[*fleet.ClusterGroup](s.groupIndexer, schema.GroupResource{}), &s.lists},
		clusters: generic.NewCache[*fleet.Cluster](s.clusterIndexer, schema.GroupResource{}),
	}
	for _, group := range groups {
		require.NoError(t, s.groupIndexer.Add(group))
	}
	return s
}

type countedGroups struct {
	fleetcontrollers.ClusterGroupCache
	lists *int
}

func (c countedGroups) List(namespace string, selector labels.Selector) ([]*fleet.ClusterGroup, error) {
	*c.lists++
	return c.ClusterGroupCache.List(namespace, selector)
}

func (s *scene) EnqueueAfter(namespace, name string, delay time.Duration) {
	s.enqueued = append(s.enqueued, fmt.Sprintf("%s/%s in %s", namespace, name, delay))
}

// takePass runs the pass over the workspace, and returns what was enqueued since the last call.
func (s *scene) takePass(t *testing.T) (enqueued []string) {
	t.Helper()
	_, err := s.onChange("ws/*", nil)
	require.NoError(t, err)
	enqueued, s.enqueued = s.enqueued, nil
	return enqueued
}

func named(name string, group *fleet.ClusterGroup) *fleet.ClusterGroup {
	group.Name = name
	return group
}

func clusterIn(env string) *fleet.Cluster {
	return &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "c", Labels: map[string]string{"env": env}}}
}

func TestClusterEvents(t *testing.T) {
	const pass = "ws/* in 0s"
	dev, test, prod := "ws/dev in 1s", "ws/test in 1s", "ws/prod in 1s"
	ready := func(env string) *fleet.Cluster {
		c := clusterIn(env)
		c.Status.Summary.Ready = 1
		return c
	}
	for name, row := range map[string]struct {
		versions []*fleet.Cluster // nil: it does not exist
		want     []string
	}{
		"it is created":                           {[]*fleet.Cluster{nil, clusterIn("dev")}, []string{pass, dev}},
		"it is deleted":                           {[]*fleet.Cluster{clusterIn("dev"), nil}, []string{pass, dev}},
		"other labels":                            {[]*fleet.Cluster{clusterIn("dev"), clusterIn("test")}, []string{pass, dev, test}},
		"another summary":                         {[]*fleet.Cluster{clusterIn("dev"), ready("dev")}, []string{pass, dev}},
		"nothing that a group shows":              {[]*fleet.Cluster{clusterIn("dev"), clusterIn("dev")}, nil},
		"other labels twice before the next pass": {[]*fleet.Cluster{clusterIn("dev"), clusterIn("test"), clusterIn("prod")}, []string{pass, dev, prod, test}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, named("dev", groupOf(0, "dev")), named("test", groupOf(0, "test")), named("prod", groupOf(0, "prod")), named("bad", groupOf(0)))
			for n, after := range row.versions[1:] {
				if after != nil {
					require.NoError(t, s.clusterIndexer.Update(after))
				}
				s.noteCluster(row.versions[n], after)
			}
			assert.ElementsMatch(t, row.want, s.takePass(t))
			assert.Empty(t, s.takePass(t))
		})
	}
}

// The number of lists and of passes does not grow with the number of events.
func TestClusterEvents_many(t *testing.T) {
	s := newScene(t, named("dev", groupOf(0, "dev")), named("test", groupOf(0, "test")))
	const events = 10_000
	for n := range events {
		s.noteCluster(clusterIn(fmt.Sprint("v", n)), clusterIn(fmt.Sprint("v", n+1)))
	}
	assert.Zero(t, s.lists)
	assert.Equal(t, []string{"ws/* in 0s"}, s.enqueued)
	assert.ElementsMatch(t, []string{"ws/* in 0s", "ws/dev in 1s", "ws/test in 1s"}, s.takePass(t), "too many versions: each group may have selected one")
	assert.Equal(t, 1, s.lists)
}

// A hundred groups of one Cluster are written ten times a second, not a hundred times.
func TestEnqueueGroups_manyGroups(t *testing.T) {
	var groups []*fleet.ClusterGroup
	for n := range 100 {
		groups = append(groups, named(fmt.Sprint("dev-", n), groupOf(0, "dev")), named(fmt.Sprint("test-", n), groupOf(0, "test")))
	}
	s := newScene(t, groups...)
	require.NoError(t, s.clusterIndexer.Add(clusterIn("dev")))
	s.noteCluster(nil, clusterIn("dev"))
	enqueued := s.takePass(t)
	require.Len(t, enqueued, 1+100)
	assert.Contains(t, enqueued, "ws/dev-0 in 10s")
}

// The work for a change of a Cluster does not grow with the selectors of the groups.
func TestEnqueueGroups_largeSelector(t *testing.T) {
	s := newScene(t, groupOf(0, manyValues(5000)...))
	require.NoError(t, s.clusterIndexer.Add(clusterIn("v1")))
	var changed changedClusters
	changed.Add("c", clusterIn("other").Labels, 1, func(_, _ map[string]string) bool { return false })
	s.enqueueGroups(t.Context(), "ws", changed)
	require.Len(t, s.enqueued, 1)
	assert.Less(t, testing.AllocsPerRun(10, func() { s.enqueueGroups(t.Context(), "ws", changed) }), 100.0)
}

func TestEnqueueGroups_deadline(t *testing.T) {
	s := newScene(t, groupOf(0, "dev"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var changed changedClusters
	changed.Add("c", clusterIn("other").Labels, 1, func(_, _ map[string]string) bool { return false })
	s.enqueueGroups(ctx, "ws", changed)
	assert.Len(t, s.enqueued, 1, "it may have selected the Cluster")
}

// groupOf returns a ClusterGroup that selects the Clusters whose label "env" has one of these values and that have ownLabels further labels.
func groupOf(ownLabels int, values ...string) *fleet.ClusterGroup {
	selector := &metav1.LabelSelector{
		MatchLabels:      map[string]string{},
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpIn, Values: values}},
	}
	for n := range ownLabels {
		selector.MatchLabels[fmt.Sprint("label-", n)] = "x"
	}
	return &fleet.ClusterGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "g", UID: "1", Generation: 1}, Spec: fleet.ClusterGroupSpec{Selector: selector},
	}
}

func manyValues(n int) (values []string) {
	for i := range n {
		values = append(values, fmt.Sprint("v", i))
	}
	return values
}

func TestCompile_size(t *testing.T) {
	for name, row := range map[string]struct {
		group *fleet.ClusterGroup
		fits  bool
	}{
		"values: as many as allowed":            {groupOf(0, manyValues(MaxSelector-1)...), true},
		"values: one more":                      {groupOf(0, manyValues(MaxSelector)...), false},
		"labels and values: as many as allowed": {groupOf(5000, manyValues(MaxSelector-5001)...), true},
		"labels and values: one more":           {groupOf(5000, manyValues(MaxSelector-5000)...), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(row.group)
			reduced, errReduce := Reduce(row.group.DeepCopy())
			require.NoError(t, errReduce)
			kept := reduced.(*fleet.ClusterGroup)
			_, errReduced := Compile(kept)
			if row.fits {
				require.NoError(t, err)
				require.NoError(t, errReduced)
				assert.Equal(t, row.group, kept)
				return
			}
			require.ErrorContains(t, err, "spec.selector has more than 10000 labels, expressions and values")
			assert.Equal(t, err, errReduced, "what the cache keeps counts as too large")
			assert.Same(t, tooLarge, kept.Spec.Selector)
		})
	}
}

func TestSelectors(t *testing.T) {
	var s Selectors
	selects := func(group *fleet.ClusterGroup, env string) bool {
		selector, err := s.Of(group)
		require.NoError(t, err)
		return selector.Matches(labels.Set{"env": env})
	}
	group := groupOf(0, "prod")
	assert.True(t, selects(group, "prod"))

	group.Spec = groupOf(0, "dev").Spec
	assert.True(t, selects(group, "prod"), "a generation is compiled once")
	group.Generation++
	assert.True(t, selects(group, "dev"), "another generation")

	group = groupOf(0, "test")
	group.Generation, group.UID = 2, "2"
	assert.True(t, selects(group, "test"), "another group of the name")

	s.Forget("ws", "g")
	assert.Empty(t, s.byKey)
	_, err := s.Of(groupOf(0))
	require.ErrorContains(t, err, "spec.selector: ")
}

func TestSelectors_noSelector(t *testing.T) {
	var s Selectors
	selector, err := s.Of(&fleet.ClusterGroup{})
	require.NoError(t, err)
	assert.False(t, selector.Matches(labels.Set{}))
}

// Compiling a large selector takes milliseconds. The selectors of other groups can be used meanwhile.
func TestSelectors_ofOthers(t *testing.T) {
	other := groupOf(0, "prod")
	other.Name = "other"
	var s Selectors
	_, _ = s.Of(groupOf(0, "prod"))
	key := types.NamespacedName{Namespace: "ws", Name: "g"}
	compiling := s.byKey[key]
	compiling.compile = func() (labels.Selector, error) { return s.Of(other) }
	s.byKey[key] = compiling
	selector, err := s.Of(groupOf(0, "prod"))
	require.NoError(t, err)
	assert.True(t, selector.Matches(labels.Set{"env": "prod"}))
}

// A change of the labels does not change metadata.generation, and Selectors keeps a compiled selector for each generation.
func TestSelectors_metadataTooLarge(t *testing.T) {
	var s Selectors
	group := groupOf(1, "prod")
	_, err := s.Of(group)
	require.NoError(t, err)
	large := group.DeepCopy()
	large.Spec.MetadataTooLarge = true
	_, err = s.Of(large)
	require.ErrorContains(t, err, "metadata.labels takes more than 32 KiB")
	_, err = s.Of(group)
	require.NoError(t, err)
}
