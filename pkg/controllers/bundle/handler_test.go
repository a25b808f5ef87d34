package bundle

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// settled is a Bundle that was looked at before, as of noon.
func settled() *fleet.Bundle {
	b := toAlice()
	b.ResourceVersion, b.Finalizers, b.CreationTimestamp = "5", []string{fleet.BundleFinalizer}, metav1.NewTime(noon.Add(-time.Hour))
	b.Status.ObservedGeneration = b.Generation
	return b
}

func TestABundleGetsItsFinalizerAndItsClustersAreBrought(t *testing.T) {
	s := newStage(t)
	b := settled()
	b.Finalizers, b.Status.ObservedGeneration = nil, 0
	bob := someCluster()
	bob.Name = "bob"
	s.has(t, someCluster(), bob, b)
	_, err := s.onBundle("ws/app", b)
	require.NoError(t, err)
	assert.Equal(t, []string{
		"bring Bundle app in 1s", "bring Cluster alice in 0s",
		`patch Bundle app [] {"metadata":{"finalizers":["fleet.cattle.io/bundle-finalizer"],"resourceVersion":"5"}}`,
	}, s.log.take())
	s.onSettled(t, b)
	assert.NotContains(t, s.log.take(), "bring Cluster alice in 0s", "once is enough")
}

// onSettled is an event of a Bundle that has its finalizer.
func (s *stage) onSettled(t *testing.T, b *fleet.Bundle) {
	t.Helper()
	b = b.DeepCopy()
	b.Finalizers = []string{fleet.BundleFinalizer}
	_, err := s.onBundle("ws/app", b)
	require.NoError(t, err)
}

func TestClustersAreBroughtWhenTheBundleChangesForThem(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*fleet.Bundle)
		brings bool
	}{
		{"nothing changes", func(*fleet.Bundle) {}, false},
		{"the status changes", func(b *fleet.Bundle) { b.Status.Display.State = "x" }, false},
		{"an annotation changes", func(b *fleet.Bundle) { b.Annotations = map[string]string{"a": "b"} }, false},
		{"the spec changes", func(b *fleet.Bundle) { b.Generation++ }, true},
		{"a label changes", func(b *fleet.Bundle) { b.Labels = map[string]string{"a": "b"} }, true},
		{"it becomes one of an agent", func(b *fleet.Bundle) {
			b.Annotations = map[string]string{"objectset.rio.cattle.io/id": "fleet-manage-agent"}
		}, true},
		{"another one has its name", func(b *fleet.Bundle) { b.UID = "other" }, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStage(t)
			b := settled()
			s.has(t, someCluster(), b, deployed(t, b))
			s.onSettled(t, b)
			assert.NotContains(t, s.log.take(), "bring Cluster alice in 0s", "a hub that starts looks at every Cluster anyway")
			row.change(b)
			s.onSettled(t, b)
			assert.Equal(t, row.brings, slices.Contains(s.log.take(), "bring Cluster alice in 0s"))
		})
	}
}

func TestClustersThatAreAwayAreNotExpected(t *testing.T) {
	deleted, elsewhere := someCluster(), someCluster()
	deleted.Name, deleted.DeletionTimestamp = "deleted", &metav1.Time{Time: noon}
	elsewhere.Name, elsewhere.Labels = "elsewhere", map[string]string{fleet.ClusterManagementLabel: "x"}
	named := someCluster()
	named.Name, named.Labels = "carol", map[string]string{fleet.ClusterDisplayNameLabel: "alice"}
	s := newStage(t)
	s.has(t, someCluster(), deleted, elsewhere, named)
	names := func(b *fleet.Bundle) (names []string) {
		for _, c := range s.targeted(b) {
			names = append(names, c.Name)
		}
		return names
	}
	assert.ElementsMatch(t, []string{"alice", "carol"}, names(bundleWith(func(spec *fleet.BundleSpec) {
		spec.Targets = []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}
	})))
	assert.ElementsMatch(t, []string{"alice", "carol"}, names(toAlice()))
}

func TestTheStatusIsWrittenOnceAndWhenThereIsSomethingToSay(t *testing.T) {
	s := newStage(t)
	b := settled()
	s.has(t, someCluster(), b, deployed(t, b))
	s.onSettled(t, b)
	assert.Equal(t, []string{"bring Bundle app in 1s"}, s.log.take(), "more may come")
	s.clock.Step(settle)
	s.onSettled(t, b)
	sent := s.log.take()
	require.Len(t, sent, 1)
	assert.Contains(t, sent[0], `patch Bundle app [status] {"metadata":{"resourceVersion":"5","uid":"uid"}`)
	assert.Contains(t, sent[0], `"display":{"readyClusters":"0/1","state":"WaitApplied"}`)
	assert.NotContains(t, sent[0], "kind: A", "the resources are not its business")
}

func TestASettledStatusIsNotWritten(t *testing.T) {
	s := newStage(t)
	b := settled()
	s.has(t, someCluster(), b, deployed(t, b))
	s.clock.Step(settle)
	summary, _ := s.tally.summary(keyOf(b))
	s.setStatus(b, newPlan(b), summary)
	s.clock.Step(time.Hour)
	s.onSettled(t, b)
	assert.Empty(t, s.log.take())
	assert.Empty(t, s.events.Events)
}

func TestANewBundleOfWhichNobodyHasReportedIsGivenAMoment(t *testing.T) {
	s := newStage(t)
	b := settled()
	b.Status.ObservedGeneration, b.CreationTimestamp = 0, metav1.NewTime(noon)
	s.has(t, someCluster(), b, deployed(t, b))
	s.onSettled(t, b)
	s.log.take()
	s.clock.Step(settle)
	s.onSettled(t, b)
	assert.Equal(t, []string{"bring Bundle app in 29s"}, s.log.take())
	s.clock.Step(patience)
	s.onSettled(t, b)
	assert.Len(t, s.log.take(), 1, "then it is told")
}

func TestTheBundleOfAnAgentThatIsAwaitedSaysNothing(t *testing.T) {
	s := newStage(t)
	b := settled()
	b.Status.ObservedGeneration, b.Annotations = 0, map[string]string{"objectset.rio.cattle.io/id": "fleet-manage-agent"}
	d := deployed(t, b)
	s.has(t, someCluster(), b, d)
	s.onSettled(t, b)
	s.clock.Step(time.Hour)
	s.log.take()
	s.onSettled(t, b)
	assert.Empty(t, s.log.take(), "its Cluster does")
	d = d.DeepCopy()
	d.Status.AppliedDeploymentID = d.Spec.DeploymentID
	s.has(t, d)
	s.clock.Step(settle)
	s.onSettled(t, b)
	assert.Len(t, s.log.take(), 1, "now there is something to say")
}

func TestAStatusThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	s := newStage(t)
	b := settled()
	s.has(t, someCluster(), b, deployed(t, b))
	s.clock.Step(settle)
	s.log.errors = map[string]error{"patch Bundle": errBadDay}
	_, err := s.onBundle("ws/app", b)
	require.ErrorIs(t, err, errBadDay)
	s.log.errors = nil
	s.log.take()
	s.onSettled(t, b)
	assert.Len(t, s.log.take(), 1)
}

func TestADeletedBundleGoesWhenAllOfItIsGone(t *testing.T) {
	s := newStage(t)
	b := settled()
	b.DeletionTimestamp = &metav1.Time{Time: noon}
	d := deployed(t, b)
	s.has(t, someCluster(), b, d)
	s.log.errors = map[string]error{"delete": errBadDay}
	_, err := s.onBundle("ws/app", b)
	require.ErrorIs(t, err, errBadDay)
	s.log.errors = nil
	s.log.take()
	_, err = s.onBundle("ws/app", b)
	require.NoError(t, err)
	assert.Equal(t, []string{"delete " + atHome + " uid-of-app"}, s.log.take(), "the finalizer stays")
	s.lost(t, d)
	_, err = s.onBundle("ws/app", b)
	require.NoError(t, err)
	assert.Equal(t, []string{`patch Bundle app [] {"metadata":{"finalizers":[],"resourceVersion":"5"}}`}, s.log.take())
	b.Finalizers = []string{"other"}
	_, err = s.onBundle("ws/app", b)
	require.NoError(t, err)
	assert.Empty(t, s.log.take(), "it is not ours to keep")
}

func TestTheBundleDeploymentOfAnAgentThatIsToLeaveStays(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*fleet.Cluster, *fleet.Bundle)
		goes   bool // their namespace
		stays  bool
	}{
		{"its Cluster is deleted", func(*fleet.Cluster, *fleet.Bundle) {}, false, true},
		{"its Cluster is not", func(c *fleet.Cluster, _ *fleet.Bundle) { c.DeletionTimestamp = nil }, false, false},
		{"its Cluster is about to be, with the namespace", func(c *fleet.Cluster, _ *fleet.Bundle) { c.DeletionTimestamp = nil }, true, true},
		{"the farewell is over", func(c *fleet.Cluster, _ *fleet.Bundle) { c.Finalizers = nil }, true, false},
		{"it is of no agent", func(_ *fleet.Cluster, b *fleet.Bundle) { b.Annotations = nil }, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, c, b := newStage(t), someCluster(), settled()
			deleted := &metav1.Time{Time: noon}
			b.DeletionTimestamp, b.Annotations = deleted, map[string]string{"objectset.rio.cattle.io/id": "fleet-manage-agent"}
			c.DeletionTimestamp, c.Finalizers = deleted, []string{fleet.ClusterFinalizer}
			row.change(c, b)
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ws"}}
			if row.goes {
				namespace.DeletionTimestamp = deleted
			}
			s.Kubernetes = fake.NewClientset(namespace)
			s.has(t, c, b, deployed(t, b))
			s.onSettled(t, b)
			want := "delete " + atHome + " uid-of-app"
			if row.stays {
				want = "bring Bundle app in 10s"
			}
			assert.Equal(t, []string{want}, s.log.take(), "the finalizer stays")
		})
	}
}

func TestABundleWhoseFinalizerSomebodyTookIsCleanedUpByItsClusters(t *testing.T) {
	s := newStage(t)
	s.has(t, someCluster(), deployed(t, toAlice()))
	_, err := s.onBundle("ws/app", nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"bring Cluster alice in 0s"}, s.log.take())
	assert.Empty(t, s.announced)
}

func TestAClusterThatIsGoneIsNotWaitedFor(t *testing.T) {
	s := newStage(t)
	b := settled()
	s.has(t, b)
	s.tally.expect(keyOf(b), map[string]key{home: {Namespace: "ws", Name: "alice"}}, noon)
	s.Forget("ws/alice")
	assert.Equal(t, []string{"bring Bundle app in 1s"}, s.log.take())
	assert.Equal(t, "0/0 ", shown(s.tally, keyOf(b)))
}
