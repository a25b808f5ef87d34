package bundle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// withQueue lets a test see which Contents are looked at when their grace has ended.
func (s *stage) withQueue(t *testing.T) {
	t.Helper()
	s.contents.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Clock: s.clock})
	t.Cleanup(s.contents.queue.ShutDown)
}

func TestEventsOfBundleDeploymentsBringWhatTheyConcern(t *testing.T) {
	both := []string{"bring Bundle app in 1s", "bring Cluster alice in 1s"}
	for _, row := range []struct {
		name   string
		change func(*fleet.BundleDeployment)
		want   []string
	}{
		{"only its version", func(*fleet.BundleDeployment) {}, nil},
		{"a list nobody shows", func(d *fleet.BundleDeployment) {
			d.Status.Resources = []fleet.BundleDeploymentResource{{Name: "x"}}
		}, nil},
		{"its state", func(d *fleet.BundleDeployment) { d.Status.AppliedDeploymentID = d.Spec.DeploymentID }, both},
		{"its spec", func(d *fleet.BundleDeployment) { d.Generation++ }, []string{"bring Cluster alice in 1s"}},
		{"a label", func(d *fleet.BundleDeployment) { d.Labels["a"] = "b" }, []string{"bring Cluster alice in 1s"}},
		{"it is not ours any more", func(d *fleet.BundleDeployment) { d.Labels[fleet.ManagedLabel] = "" }, both},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStage(t)
			s.withQueue(t)
			before := deployed(t, toAlice())
			s.has(t, someCluster(), settled(), before)
			after := before.DeepCopy()
			after.ResourceVersion = "6"
			row.change(after)
			s.deployments().OnUpdate(before, after)
			assert.Equal(t, row.want, s.log.take())
		})
	}
}

// deployments are the handlers as they are registered.
func (s *stage) deployments() typed[*fleet.BundleDeployment] {
	return typed[*fleet.BundleDeployment]{added: s.deploymentAdded, changed: s.deploymentChanged, gone: s.deploymentGone}
}

func TestWhatIsThereAtTheStartIsOnlyCounted(t *testing.T) {
	s := newStage(t)
	s.has(t, someCluster(), settled())
	d := deployed(t, toAlice())
	s.deployments().OnAdd(d, true)
	assert.Empty(t, s.log.take())
	assert.Equal(t, "0/1 WaitApplied(1) [Cluster ws/alice]", shown(s.tally, appKey))
	again := deployed(t, toAlice())
	again.Namespace = "other"
	s.deployments().OnAdd(again, false)
	assert.Equal(t, []string{"bring Bundle app in 1s"}, s.log.take(), "no Cluster has that namespace")
	s.deployments().OnUpdate(d, d) // the informer was away
	s.deployments().OnUpdate("no object", d)
	s.deployments().OnAdd("no object", false)
	assert.Empty(t, s.log.take())
}

func TestABundleThatIsDeletedHearsAtOnceThatSomethingOfItIsGone(t *testing.T) {
	s := newStage(t)
	s.withQueue(t)
	b := settled()
	b.DeletionTimestamp = &b.CreationTimestamp
	d := deployed(t, b)
	s.has(t, someCluster(), b, d)
	s.created.Expect(atHome)
	s.deployments().OnDelete(cache.DeletedFinalStateUnknown{Key: atHome, Obj: d})
	assert.Equal(t, []string{"bring Bundle app in 0s", "bring Cluster alice in 1s"}, s.log.take())
	assert.False(t, s.created.IsExpected(atHome))
	assert.Equal(t, "0/0 ", shown(s.tally, appKey))
	assert.Eventually(t, func() bool { return s.clock.HasWaiters() }, 2*time.Minute, time.Millisecond)
	s.clock.Step(contentGrace)
	name, _ := s.contents.queue.Get()
	assert.Equal(t, d.Labels[fleet.ContentNameLabel], name, "its Content may not be needed any more")
}

func TestAContentThatIsGoneIsMissedByThoseWhoNeedIt(t *testing.T) {
	s := newStage(t)
	d := deployed(t, toAlice())
	s.has(t, someCluster(), d)
	s.contents.cached.users = []*fleet.BundleDeployment{d}
	s.contents.made.Expect("c")
	s.contentGone(cache.DeletedFinalStateUnknown{Obj: contentMeta("c", "true")})
	assert.Equal(t, []string{"bring Cluster alice in 0s"}, s.log.take())
	assert.False(t, s.contents.made.IsExpected("c"))
	s.contentGone("no object")
	assert.Empty(t, s.log.take())
}

func TestAGroupBringsTheClustersItHasOrHad(t *testing.T) {
	s := newStage(t)
	prod, dev, none := someCluster(), someCluster(), someCluster()
	prod.Name, prod.Labels = "prod", map[string]string{"env": "prod"}
	dev.Name, dev.Labels = "dev", map[string]string{"env": "dev"}
	s.has(t, prod, dev, none)
	made := func(version, env string) *fleet.ClusterGroup {
		g := group("g", nil, selector("env", env))
		g.Namespace, g.ResourceVersion = "ws", version
		return g
	}
	groups := typed[*fleet.ClusterGroup]{added: s.groupAdded, changed: s.groupChanged, gone: s.groupGone}
	groups.OnAdd(made("1", "prod"), true)
	assert.Empty(t, s.log.take(), "a hub that starts looks at every Cluster anyway")
	groups.OnAdd(made("1", "prod"), false)
	assert.Equal(t, []string{"bring Cluster prod in 0s"}, s.log.take())
	groups.OnUpdate(made("1", "prod"), made("2", "dev"))
	assert.Equal(t, []string{"bring Cluster dev in 0s", "bring Cluster prod in 0s"}, s.log.take())
	summed := made("3", "dev")
	summed.Status.ClusterCount = 1
	groups.OnUpdate(made("2", "dev"), summed)
	assert.Empty(t, s.log.take(), "its status is nobody's business")
	named := made("4", "dev")
	named.Labels = map[string]string{"a": "b"}
	groups.OnUpdate(summed, named)
	assert.Equal(t, []string{"bring Cluster dev in 0s"}, s.log.take())
	groups.OnDelete(named)
	assert.Equal(t, []string{"bring Cluster dev in 0s"}, s.log.take())
}
