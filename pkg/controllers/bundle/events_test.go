package bundle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

func TestDeploymentEvents(t *testing.T) {
	both := []string{"enqueue Bundle app in 1s", "enqueue Bundle app in 1s", "enqueue Cluster alice in 1s"}
	for name, row := range map[string]struct {
		change func(*fleet.BundleDeployment)
		want   []string
	}{
		"another version":                       {func(*fleet.BundleDeployment) {}, nil},
		"a list that no status shows":           {func(d *fleet.BundleDeployment) { d.Status.Resources = []fleet.BundleDeploymentResource{{Name: "x"}} }, nil},
		"another state":                         {func(d *fleet.BundleDeployment) { d.Status.AppliedDeploymentID = d.Spec.DeploymentID }, both},
		"another version to deploy":             {func(d *fleet.BundleDeployment) { d.Spec.DeploymentID = "s-2:2" }, both},
		"another count":                         {func(d *fleet.BundleDeployment) { d.Status.ResourceCounts.Ready = 3 }, both},
		"another spec: the Cluster repairs it":  {func(d *fleet.BundleDeployment) { d.Generation++ }, []string{"enqueue Cluster alice in 1s"}},
		"another label: the Cluster repairs it": {func(d *fleet.BundleDeployment) { d.Labels["a"] = "b" }, []string{"enqueue Cluster alice in 1s"}},
		"it is not managed any more":            {func(d *fleet.BundleDeployment) { d.Labels[fleet.ManagedLabel] = "" }, both[1:]},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			before := deployed(t, targetingAlice())
			s.has(t, clusterNamed("alice"), settled(), before)
			after := before.DeepCopy()
			after.ResourceVersion = "6"
			row.change(after)
			s.deploymentEvents().OnUpdate(before, after)
			assert.Equal(t, row.want, s.taken())
		})
	}
	t.Run("added", func(t *testing.T) {
		s := newStage(t)
		s.has(t, clusterNamed("alice"), settled())
		d := deployed(t, targetingAlice())
		s.deploymentEvents().OnAdd(d, true)
		assert.Empty(t, s.taken(), "at its start the hub enqueues all Bundles and Clusters")
		s.deploymentEvents().OnAdd(d, false)
		assert.Equal(t, both[1:], s.taken())
		s.deploymentEvents().OnUpdate(d, d)
		s.deploymentEvents().OnUpdate("no object", d)
		s.deploymentEvents().OnAdd("no object", false)
		assert.Empty(t, s.taken(), "the informer lists again")
	})
	t.Run("deleted", func(t *testing.T) {
		s := newStage(t)
		b := settled()
		b.DeletionTimestamp = &b.CreationTimestamp
		d := deployed(t, b)
		s.has(t, clusterNamed("alice"), b)
		s.written.Expect(atHome)
		s.deploymentEvents().OnDelete(cache.DeletedFinalStateUnknown{Key: atHome, Obj: d})
		assert.Equal(t, []string{"enqueue Bundle app in 0s", "enqueue Cluster alice in 1s"}, s.taken(), "the deleted Bundle waits for it")
		assert.False(t, s.written.IsExpected(atHome))
		assert.Eventually(t, func() bool { return s.clock.HasWaiters() }, 2*time.Minute, time.Millisecond)
		s.clock.Step(contentGrace)
		name, _ := s.contents.queue.Get()
		assert.Equal(t, d.Labels[fleet.ContentNameLabel], name, "its Content is checked")
	})
}

var unprocessed = fleetstatus.Conditions{condition(fleet.ConditionProcessed, "False", "rename the Cluster")}

func TestClusterEvents(t *testing.T) {
	enqueued := []string{"enqueue Bundle app in 1s"}
	for name, row := range map[string]struct {
		change func(*fleet.Cluster)
		want   bool
	}{
		"a heartbeat":             {func(c *fleet.Cluster) { c.Status.Agent.LastSeen = metav1.NewTime(noon) }, false},
		"it is quarantined":       {func(c *fleet.Cluster) { c.Spec.Quarantined = true }, true},
		"it is paused":            {func(c *fleet.Cluster) { c.Spec.Paused = true }, true},
		"it has no namespace":     {func(c *fleet.Cluster) { c.Status.Conditions = unprocessed }, true},
		"it is deleted":           {func(c *fleet.Cluster) { c.DeletionTimestamp = &metav1.Time{Time: noon} }, true},
		"it is not targeted more": {func(c *fleet.Cluster) { c.Labels = nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			b, other := settled(), settled()
			b.Spec.Targets = []fleet.BundleTarget{{ClusterSelector: selector("env", "prod")}}
			other.Name, other.Spec.Targets = "other", []fleet.BundleTarget{{ClusterSelector: selector("env", "dev")}}
			s.has(t, b, other)
			before := clusterNamed("alice")
			before.Labels = map[string]string{"env": "prod"}
			after := before.DeepCopy()
			after.ResourceVersion = "6"
			row.change(after)
			s.has(t, after)
			s.clusterEvents().OnUpdate(before, after)
			s.takenByPass(t)
			assert.Equal(t, row.want, len(s.changedAt) == 1)
			s.lost(t, after)
			s.clusterEvents().OnDelete(before)
			assert.Equal(t, enqueued, s.takenByPass(t))
			s.has(t, after)
			s.clusterEvents().OnAdd(after, true)
			assert.Empty(t, s.taken(), "at its start the hub enqueues all Bundles")
			s.clusterEvents().OnAdd(after, false)
			assert.Equal(t, after.Spec.Quarantined, len(s.takenByPass(t)) == 1, "for others the new BundleDeployment enqueues the Bundle")
		})
	}
}

func TestContentEvents(t *testing.T) {
	s := newStage(t)
	d := deployed(t, targetingAlice())
	s.has(t, clusterNamed("alice"), d)
	name := contentsOf(d)[0]
	s.contents.made.Expect(name)
	s.contentEvents().OnDelete(cache.DeletedFinalStateUnknown{Obj: contentMeta(name, "true")})
	assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, s.taken(), "it is created again")
	assert.False(t, s.contents.made.IsExpected(name))
	s.contentEvents().OnDelete("no object")
	assert.Empty(t, s.taken())
	s.contents.made.Expect(name)
	s.contentEvents().OnAdd(contentMeta(name, "true"), true)
	assert.False(t, s.contents.made.IsExpected(name))
}

func TestGroupEvents(t *testing.T) {
	s := newStage(t)
	prod, dev := clusterNamed("prod"), clusterNamed("dev")
	prod.Labels, dev.Labels = map[string]string{"env": "prod"}, map[string]string{"env": "dev"}
	s.has(t, prod, dev, clusterNamed("none"))
	version := func(generation int64, version, env string) *fleet.ClusterGroup {
		g := group("g", nil, selector("env", env))
		g.Namespace, g.ResourceVersion, g.Generation = "ws", version, generation
		s.has(t, g)
		return g
	}
	groups := s.groupEvents()
	groups.OnAdd(version(1, "1", "prod"), true)
	assert.Empty(t, s.takenByPass(t), "at its start the hub enqueues all Clusters")
	groups.OnAdd(version(1, "1", "prod"), false)
	assert.Equal(t, []string{"enqueue Cluster prod in 0s"}, s.takenByPass(t))
	groups.OnUpdate(version(1, "1", "prod"), version(2, "2", "dev"))
	assert.Equal(t, []string{"enqueue Cluster dev in 0s", "enqueue Cluster prod in 0s"}, s.takenByPass(t))
	reported := version(2, "3", "dev")
	reported.Status.ClusterCount = 1
	groups.OnUpdate(version(2, "2", "dev"), reported)
	assert.Empty(t, s.takenByPass(t), "only its status has changed")
	labelled := version(2, "4", "dev")
	labelled.Labels = map[string]string{"a": "b"}
	groups.OnUpdate(reported, labelled)
	assert.Equal(t, []string{"enqueue Cluster dev in 0s"}, s.takenByPass(t))
	wider := labelled.DeepCopy()
	wider.Generation, wider.Spec.Selector = 3, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "env", Operator: metav1.LabelSelectorOpIn, Values: []string{"dev", "stage"}},
	}}
	s.has(t, wider)
	groups.OnUpdate(labelled, wider)
	assert.Empty(t, s.takenByPass(t), "the group selects the same Clusters")
	s.has(t, labelled)
	groups.OnUpdate(labelled, version(4, "5", "prod"))
	s.has(t, labelled)
	groups.OnUpdate(version(4, "5", "prod"), labelled)
	s.has(t, labelled)
	assert.Equal(t, []string{"enqueue Cluster dev in 0s", "enqueue Cluster prod in 0s"}, s.takenByPass(t), "a pass may have seen the version between")
	s.lost(t, labelled)
	groups.OnDelete(labelled)
	assert.Equal(t, []string{"enqueue Cluster dev in 0s"}, s.takenByPass(t))

	for name, p := range map[string]fleet.Partition{
		"label": {ClusterSelector: selector("env", "prod")}, "group": {ClusterGroup: "g"}, "groups": {ClusterGroupSelector: selector("a", "b")},
	} {
		b := settled()
		b.Name, b.Spec.RolloutStrategy = name, &fleet.RolloutStrategy{Partitions: []fleet.Partition{{}, p}}
		s.has(t, b)
	}
	groups.OnDelete(labelled)
	assert.Equal(t, []string{"enqueue Bundle group in 1s", "enqueue Bundle groups in 1s", "enqueue Cluster dev in 0s"}, s.takenByPass(t),
		"the Clusters may be in other partitions")
}
