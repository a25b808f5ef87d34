package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// settled returns a Bundle to alice that was handled before noon.
func settled() *fleet.Bundle {
	b := targetingAlice()
	b.ResourceVersion, b.Finalizers, b.CreationTimestamp = "5", []string{fleet.BundleFinalizer}, metav1.NewTime(noon.Add(-time.Hour))
	b.Status.ObservedGeneration = b.Generation
	return b
}

func TestOnBundleOfANewBundle(t *testing.T) {
	s := newStage(t)
	b := settled()
	b.Finalizers, b.Status.ObservedGeneration = nil, 0
	s.has(t, clusterNamed("alice"), clusterNamed("bob"), b)
	_, err := s.onBundle("ws/app", b)
	require.NoError(t, err)
	assert.Equal(t, []string{
		"enqueue Bundle app in 1s", "enqueue Cluster alice in 0s",
		`patch Bundle app [] {"metadata":{"finalizers":["fleet.cattle.io/bundle-finalizer"],"resourceVersion":"5"}}`,
	}, s.taken())
	s.handle(t, b)
	assert.NotContains(t, s.taken(), "enqueue Cluster alice in 0s", "once is enough")
}

func TestOnBundleEnqueuesClusters(t *testing.T) {
	for name, row := range map[string]struct {
		change   func(*fleet.Bundle)
		enqueues bool
	}{
		"no change":                   {func(*fleet.Bundle) {}, false},
		"another status":              {func(b *fleet.Bundle) { b.Status.Display.State = "x" }, false},
		"another annotation":          {func(b *fleet.Bundle) { b.Annotations = map[string]string{"a": "b"} }, false},
		"another spec":                {func(b *fleet.Bundle) { b.Generation++ }, true},
		"another label":               {func(b *fleet.Bundle) { b.Labels = map[string]string{"a": "b"} }, true},
		"it becomes one of an agent":  {func(b *fleet.Bundle) { b.Annotations = manageAgent }, true},
		"another Bundle has its name": {func(b *fleet.Bundle) { b.UID = "other" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			b := settled()
			s.has(t, clusterNamed("alice"), b, deployed(t, b))
			s.handle(t, b)
			assert.NotContains(t, s.taken(), "enqueue Cluster alice in 0s", "at its start the hub enqueues all Clusters")
			row.change(b)
			s.handle(t, b)
			assert.Equal(t, row.enqueues, slices.Contains(s.taken(), "enqueue Cluster alice in 0s"))
		})
	}
}

// The status of alice reports an error about a Bundle of which she has no BundleDeployment, and no event of one says that the Bundle is gone.
func TestOnBundleEnqueuesClustersThatReportAnError(t *testing.T) {
	const enqueuesAlice = "enqueue Cluster alice in 0s"
	deletes := func(t *testing.T, s *stage, b *fleet.Bundle) {
		b.DeletionTimestamp = &metav1.Time{Time: noon}
		s.has(t, b)
		s.handle(t, b)
	}
	elsewhere := []fleet.BundleTarget{{ClusterName: "bob"}}
	for name, change := range map[string]func(*testing.T, *stage, *fleet.Bundle){
		"deleted": deletes,
		"deleted without its finalizer": func(t *testing.T, s *stage, b *fleet.Bundle) {
			s.lost(t, b)
			_, err := s.onBundle("ws/app", nil)
			require.NoError(t, err)
		},
		"other targets": func(t *testing.T, s *stage, b *fleet.Bundle) {
			b.Generation, b.Spec.Targets = 2, elsewhere
			s.has(t, b)
			s.handle(t, b)
		},
		"targets that are invalid": func(t *testing.T, s *stage, b *fleet.Bundle) {
			b.Generation, b.Spec.Targets = 2, []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Foo"}}}}}
			s.has(t, b)
			s.handle(t, b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for cause, prepare := range map[string]func(*testing.T, *stage, *fleet.Bundle){
				"values that cannot be rendered": func(_ *testing.T, _ *stage, b *fleet.Bundle) {
					b.Spec.Helm = withValues("${ .ClusterLabels.none }").Spec.Helm
				},
				"the limit of the workspace": func(_ *testing.T, s *stage, b *fleet.Bundle) {
					s.Config = config.NewStore(config.Hub{Bundles: config.Bundles{WorkspaceLimitMiB: 1}})
					s.hasStored()
					b.Spec.NamespaceAnnotations = map[string]string{"a": strings.Repeat("x", 100<<10)}
				},
				"a BundleDeployment of another owner": func(t *testing.T, s *stage, b *fleet.Bundle) {
					foreign := deployed(t, b)
					foreign.Labels = nil
					s.has(t, foreign)
				},
				"a Content that cannot be created": func(_ *testing.T, s *stage, _ *fleet.Bundle) {
					s.errors = map[string]error{"create Content": errInternal}
				},
			} {
				s, b, alice := newStage(t), settled(), clusterNamed("alice")
				prepare(t, s, b)
				s.has(t, alice, clusterNamed("bob"), b)
				s.handle(t, b)
				cluster, out := s.reconcile(t, alice)
				require.Equal(t, corev1.ConditionFalse, out.Status(), cause)
				s.errors = nil
				s.taken()
				change(t, s, b)
				assert.Contains(t, s.taken(), enqueuesAlice, cause)
				_, out = s.reconcile(t, cluster)
				assert.Equal(t, fleet.ReasonAllReady, out.Reason, cause)
				s.taken()
				s.enqueueRefusing(appKey)
				assert.Empty(t, s.taken(), "the status reports no error any more")
			}
		})
	}
	t.Run("a Bundle without an error: no Cluster is enqueued", func(t *testing.T) {
		s, b, broken, alice := newStage(t), settled(), withValues("${ .ClusterLabels.none }"), clusterNamed("alice")
		broken.Name, b.Spec.Targets = "broken", elsewhere
		s.has(t, alice, b, broken)
		s.reconcile(t, alice)
		s.taken()
		deletes(t, s, b)
		assert.NotContains(t, s.taken(), enqueuesAlice)
		s.Forget("ws/alice")
		assert.Empty(t, s.refusals)
	})
	t.Run("no more Bundles than the message names", func(t *testing.T) {
		s, alice := newStage(t), clusterNamed("alice")
		for i := range 2 * maxErrors {
			broken := withValues("${ .ClusterLabels.none }")
			broken.Name = fmt.Sprintf("broken-%02d", i)
			s.has(t, broken)
		}
		s.has(t, alice)
		s.reconcile(t, alice)
		assert.Len(t, s.refusals[keyOf(alice)], maxErrors)
	})
}

func TestOnBundleUpdatesStatus(t *testing.T) {
	s := newStage(t)
	b := settled()
	d := deployed(t, b)
	s.has(t, clusterNamed("alice"), b, d)
	s.bundleChanged(keyOf(b))
	s.handle(t, b)
	assert.Equal(t, []string{"enqueue Bundle app in 1s", "enqueue Bundle app in 1s"}, s.taken(), "more changes may follow")
	s.clock.Step(s.StatusDelay() / 4)
	s.bundleChanged(keyOf(b))
	s.taken()
	s.handle(t, b)
	assert.Equal(t, []string{"enqueue Bundle app in 750ms"}, s.taken(), "counted from the first change")

	s.clock.Step(s.StatusDelay())
	s.errors = map[string]error{"patch Bundle": errInternal}
	_, err := s.onBundle("ws/app", b)
	require.ErrorIs(t, err, errInternal)
	s.errors = nil
	s.taken()
	s.handle(t, b)
	log := s.taken()
	require.Len(t, log, 1, "retried")
	assert.Contains(t, log[0], `patch Bundle app [status] {"metadata":{"resourceVersion":"5","uid":"uid"}`)
	assert.Contains(t, log[0], `"display":{"readyClusters":"0/1","state":"WaitApplied"}`)
	assert.NotContains(t, log[0], "kind: A", "the resources are not sent")

	t.Run("settled: nothing is written", func(t *testing.T) {
		s := newStage(t)
		b := everywhere()
		b.CreationTimestamp, b.Status.ObservedGeneration = metav1.NewTime(noon), b.Generation
		s.has(t, b)
		s.handle(t, b)
		require.Len(t, s.taken(), 1)
		b.Status = fleet.BundleStatus{ObservedGeneration: 1, ResourcesSHA256Sum: planOf(b).sum, Display: fleet.BundleDisplay{ReadyClusters: "0/0"}}
		b.Status.Conditions = append(b.Status.Conditions, condition(fleet.ConditionReady, corev1.ConditionTrue, "the targets match no Cluster"))
		b.Status.Conditions[0].Reason = fleet.ReasonNoClusters
		s.clock.Step(time.Hour)
		s.handle(t, b)
		assert.Empty(t, s.taken())
		assert.Empty(t, s.events.Events)
	})
	t.Run("a new Bundle without a report: silent for 30 seconds", func(t *testing.T) {
		s := newStage(t)
		b := settled()
		b.Status.ObservedGeneration, b.CreationTimestamp = 0, metav1.NewTime(noon)
		s.has(t, clusterNamed("alice"), b, deployed(t, b))
		s.handle(t, b)
		s.taken()
		s.clock.Step(s.StatusDelay())
		s.handle(t, b)
		assert.Equal(t, []string{"enqueue Bundle app in 29s"}, s.taken())
		s.clock.Step(unreportedStatusDelay)
		s.handle(t, b)
		assert.Len(t, s.taken(), 1)
	})
	t.Run("the clock of the hub is behind", func(t *testing.T) {
		for behind, want := range map[time.Duration]string{20 * time.Second: "enqueue Bundle app in 49s", time.Hour: "patch Bundle app [status]"} {
			s := newStage(t)
			b := settled()
			b.Status.ObservedGeneration, b.CreationTimestamp = 0, metav1.NewTime(noon.Add(behind))
			s.has(t, clusterNamed("alice"), b, deployed(t, b))
			s.handle(t, b)
			s.taken()
			s.clock.Step(s.StatusDelay())
			s.handle(t, b)
			assert.Contains(t, strings.Join(s.taken(), "\n"), want, "it never waits longer than a minute")
		}
	})
	t.Run("the Bundle of an agent without a report: silent", func(t *testing.T) {
		s := newStage(t)
		b := settled()
		b.Name, b.Status.ObservedGeneration, b.Annotations = "fleet-agent-alice", 0, manageAgent
		d := deployed(t, b)
		s.has(t, clusterNamed("alice"), b, d)
		s.handle(t, b)
		s.clock.Step(time.Hour)
		s.taken()
		s.handle(t, b)
		assert.Empty(t, s.taken())
		d = d.DeepCopy()
		d.Status.AppliedDeploymentID = d.Spec.DeploymentID
		s.has(t, d)
		s.handle(t, b)
		assert.Len(t, s.taken(), 1, "the agent has reported")
	})
}

func TestOnBundleFinalizes(t *testing.T) {
	s := newStage(t)
	b := settled()
	b.DeletionTimestamp = &metav1.Time{Time: noon}
	d := deployed(t, b)
	s.has(t, clusterNamed("alice"), b, d)
	s.errors = map[string]error{"delete": errInternal}
	_, err := s.onBundle("ws/app", b)
	require.ErrorIs(t, err, errInternal)
	requests := strings.Join(s.taken(), "\n")
	assert.Contains(t, requests, "patch Bundle app [status]")
	assert.Contains(t, requests, "etcd is unavailable", "condition Ready says why the Bundle stays")
	s.writtenBundles = expectations.New(s.clock) // the cache shows it

	shown := b.DeepCopy()
	result.Set(&shown.Status.Conditions, fleet.ConditionReady, result.Retry(fleet.ReasonError, errors.New(undeleted+": another error")), noon)
	_, err = s.onBundle("ws/app", shown)
	require.ErrorIs(t, err, errInternal)
	assert.NotContains(t, strings.Join(s.taken(), "\n"), "patch Bundle", "each write would enqueue the Bundle without a pause")

	s.errors = nil
	s.handle(t, b)
	assert.Equal(t, []string{"delete " + atHome + " uid-of-app", "enqueue Bundle app in 30s"}, s.taken(),
		"the finalizer stays, and the kind of Bundles was asked for within the last second")
	s.lost(t, d)
	s.handle(t, b)
	assert.Equal(t, []string{`patch Bundle app [] {"metadata":{"finalizers":[],"resourceVersion":"5"}}`}, s.taken())
	b.Finalizers = []string{"other"}
	_, err = s.onBundle("ws/app", b)
	require.NoError(t, err)
	assert.Empty(t, s.taken(), "without the finalizer the Bundle is not the hub's to hold")

	t.Run("the kind of Bundles is deleted: the BundleDeployment stays", func(t *testing.T) {
		s, b := newStage(t), settled()
		b.DeletionTimestamp = &metav1.Time{Time: noon}
		s.has(t, clusterNamed("alice"), b, deployed(t, b))
		for name, definition := range map[string]*metav1.PartialObjectMetadata{
			"it is being deleted": {ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: noon}}}, "it is gone": nil,
			"it was created again": {ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(noon.Add(time.Second))}},
		} {
			s.kinds = map[string]*metav1.PartialObjectMetadata{"bundles.fleet.cattle.io": definition}
			s.clock.Step(time.Second)
			s.handle(t, b)
			want := []string{"kind bundles", `patch Bundle app [] {"metadata":{"finalizers":[],"resourceVersion":"5"}}`}
			assert.Equal(t, want, s.taken(), name)
		}
	})
	t.Run("somebody removed the finalizer: the Clusters are enqueued", func(t *testing.T) {
		s := newStage(t)
		s.has(t, clusterNamed("alice"), deployed(t, targetingAlice()))
		s.seen[appKey], s.changedAt[appKey] = bundleVersion{}, noon
		_, err := s.onBundle("ws/app", nil)
		require.NoError(t, err)
		assert.Equal(t, []string{"enqueue Cluster alice in 0s"}, s.taken())
		assert.Empty(t, s.seen)
		assert.Empty(t, s.changedAt)
	})
	t.Run("finalizers of others keep BundleDeployments", func(t *testing.T) {
		s, b := newStage(t), settled()
		b.DeletionTimestamp = &metav1.Time{Time: noon}
		held := func(cluster string, finalizers ...string) *fleet.BundleDeployment {
			d := deployed(t, b, clusterNamed(cluster))
			d.UID, d.DeletionTimestamp, d.Finalizers = types.UID(cluster), &metav1.Time{Time: noon}, finalizers
			return d
		}
		pass := func() []string {
			_, err := s.onBundle("ws/app", b)
			require.NoError(t, err)
			s.writtenBundles = expectations.New(s.clock) // the cache shows it
			requests := s.taken()
			if _, patch, written := strings.Cut(requests[len(requests)-1], "[status] "); written {
				require.NoError(t, json.Unmarshal([]byte(patch), &struct{ Status *fleet.BundleStatus }{&b.Status}))
			}
			return requests
		}
		s.has(t, held("bob", "example.com/stuck"), held("alice", "z.example.com/last", "example.com/stuck"), held("carol"))
		assert.Equal(t, []string{"enqueue Bundle app in 30s"}, pass(), "most are gone within seconds, and nothing is written about them")
		s.clock.Step(reportHeldAfter)
		requests := pass()
		require.Len(t, requests, 2)
		assert.Contains(t, requests[1], "patch Bundle app [status]")
		ready := fleetstatus.Condition(b.Status.Conditions, fleet.ConditionReady)
		assert.Equal(t, []any{corev1.ConditionFalse, fleet.ReasonBundleDeleting}, []any{ready.Status, ready.Reason})
		assert.Equal(t, "the Bundle cannot be deleted yet: BundleDeployment "+atHome+" is being deleted, and stays because of its finalizers: "+
			"example.com/stuck, z.example.com/last (and 1 other BundleDeployment)", ready.Message)

		s.has(t, held("alice", "example.com/stuck"))
		s.clock.Step(reportHeldAfter - time.Second)
		assert.Equal(t, []string{"enqueue Bundle app in 1s"}, pass(), "the deletions of thousands are not thousands of writes")
		s.clock.Step(time.Second)
		assert.Len(t, pass(), 2, "the cause has changed")
		for range 3 {
			s.clock.Step(reportHeldAfter)
			assert.Equal(t, []string{"enqueue Bundle app in 30s"}, pass(), "the cause is the same")
		}
	})
	t.Run("finalizers of others keep one BundleDeployment, and the deletion of another fails: a write in 30 seconds", func(t *testing.T) {
		s, b := newStage(t), settled()
		b.DeletionTimestamp = &metav1.Time{Time: noon}
		held, undeletable := deployed(t, b), deployed(t, b, clusterNamed("bob"))
		held.DeletionTimestamp, held.Finalizers, undeletable.UID = b.DeletionTimestamp, []string{"example.com/stuck"}, "bob"
		s.has(t, held, undeletable)
		var written []string // the reasons of the reports, with the seconds since noon
		for second := range 100 {
			s.errors = nil
			if second%2 == 1 {
				s.errors = map[string]error{"delete": errInternal}
			}
			_, err := s.onBundle("ws/app", b)
			require.Equal(t, second%2 == 1, err != nil)
			s.writtenBundles, s.deleted = expectations.New(s.clock), expectations.New(s.clock) // somebody creates it again
			for _, request := range s.taken() {
				if _, patch, found := strings.Cut(request, "[status] "); found {
					require.NoError(t, json.Unmarshal([]byte(patch), &struct{ Status *fleet.BundleStatus }{&b.Status}))
					written = append(written, fmt.Sprint(second, " ", fleetstatus.Condition(b.Status.Conditions, fleet.ConditionReady).Reason))
				}
			}
			s.clock.Step(time.Second)
		}
		assert.Equal(t, []string{"1 Error", "32 BundleDeleting", "63 Error", "94 BundleDeleting"}, written)
	})
	t.Run("the clock of the hub is behind: the report is late", func(t *testing.T) {
		s, b := newStage(t), settled()
		b.DeletionTimestamp = &metav1.Time{Time: noon.Add(10 * time.Minute)}
		held := deployed(t, b)
		held.DeletionTimestamp, held.Finalizers = b.DeletionTimestamp, []string{"example.com/stuck"}
		s.has(t, held)
		s.handle(t, b)
		assert.Equal(t, []string{"enqueue Bundle app in 10m30s"}, s.taken())
		s.clock.Step(10*time.Minute + reportHeldAfter)
		s.handle(t, b)
		assert.Contains(t, strings.Join(s.taken(), "\n"), "patch Bundle app [status]")
	})
	for name, row := range map[string]struct {
		change           func(*fleet.Cluster, *fleet.Bundle)
		namespaceDeleted bool
		stays            bool
	}{
		"an agent whose Cluster is deleted: the BundleDeployment stays": {func(*fleet.Cluster, *fleet.Bundle) {}, false, true},
		"an agent whose Cluster is not deleted":                         {func(c *fleet.Cluster, _ *fleet.Bundle) { c.DeletionTimestamp = nil }, false, false},
		"an agent whose namespace is deleted: it stays":                 {func(c *fleet.Cluster, _ *fleet.Bundle) { c.DeletionTimestamp = nil }, true, true},
		"an agent that has uninstalled itself":                          {func(c *fleet.Cluster, _ *fleet.Bundle) { c.Finalizers = nil }, true, false},
		"no agent":                                                      {func(_ *fleet.Cluster, b *fleet.Bundle) { b.Annotations = nil }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, c, b := newStage(t), clusterNamed("alice"), settled()
			deleted := &metav1.Time{Time: noon}
			b.DeletionTimestamp, b.Annotations = deleted, manageAgent
			c.DeletionTimestamp, c.Finalizers = deleted, []string{fleet.ClusterFinalizer}
			row.change(c, b)
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ws"}}
			if row.namespaceDeleted {
				namespace.DeletionTimestamp = deleted
			}
			s.Kubernetes = fake.NewClientset(namespace)
			s.has(t, c, b, deployed(t, b))
			s.handle(t, b)
			want := []string{"delete " + atHome + " uid-of-app", "enqueue Bundle app in 30s", "kind bundles"}
			if row.stays {
				want = []string{"enqueue Bundle app in 10s"}
			}
			assert.Equal(t, want, s.taken(), "the finalizer stays")
		})
	}
}

func TestRemoveFinalizer(t *testing.T) {
	s := newStage(t)
	d := deployed(t, targetingAlice())
	d.Finalizers = []string{"other", fleet.BundleDeploymentFinalizer}
	remove := func() error {
		_, err := s.removeFinalizer("", d)
		return err
	}
	require.NoError(t, remove())
	assert.Empty(t, s.taken(), "it is not being deleted")
	d.DeletionTimestamp = &metav1.Time{Time: noon}
	require.NoError(t, remove())
	assert.Equal(t, []string{"patch " + atHome + ` {"metadata":{"finalizers":["other"],"resourceVersion":"5"}}`}, s.taken())
	s.errors = map[string]error{"patch": errNotFound}
	require.NoError(t, remove(), "it is gone")
	s.errors = map[string]error{"patch": errInternal}
	require.ErrorIs(t, remove(), errInternal)
	d = nil
	require.NoError(t, remove())
}

func TestSummarize(t *testing.T) {
	alice, bob := clusterNamed("alice"), clusterNamed("bob")
	bundle := everywhere()
	outdated := isReady(deployed(t, bundle, alice))
	outdated.Spec.StagedDeploymentID = "s-old:1"
	away, elsewhere, quarantined := clusterNamed("away"), clusterNamed("elsewhere"), clusterNamed("quarantined")
	away.DeletionTimestamp, elsewhere.Labels = &metav1.Time{Time: noon}, map[string]string{fleet.ClusterManagementLabel: "x"}
	quarantined.Spec.Quarantined = true
	foreign := deployed(t, bundle, alice)
	foreign.Labels = nil
	unsupported := everywhere()
	unsupported.Spec.ValuesHash = "x"
	for name, row := range map[string]struct {
		bundle *fleet.Bundle
		has    []metav1.Object
		want   string
	}{
		"no Cluster":                             {bundle, nil, "0/0"},
		"all ready":                              {bundle, []metav1.Object{alice, bob, isReady(deployed(t, bundle, alice)), isReady(deployed(t, bundle, bob))}, "2/2"},
		"no report":                              {bundle, []metav1.Object{alice, bob, isReady(deployed(t, bundle, alice)), deployed(t, bundle, bob)}, "1/2 WaitApplied(1) [Cluster ws/bob]"},
		"no BundleDeployment: Pending":           {bundle, []metav1.Object{alice, bob, isReady(deployed(t, bundle, alice))}, "1/2 Pending(1) [Cluster ws/bob]"},
		"an outdated one: WaitApplied, once":     {bundle, []metav1.Object{alice, outdated}, "0/1 WaitApplied(1) [Cluster ws/alice]"},
		"a foreign one: Pending":                 {bundle, []metav1.Object{alice, foreign}, "0/1 Pending(1) [Cluster ws/alice]"},
		"no longer targeted: counts until gone":  {targetingAlice(), []metav1.Object{bob, isReady(deployed(t, bundle, bob))}, "1/1"},
		"deleted, or managed elsewhere: nothing": {bundle, []metav1.Object{away, elsewhere}, "0/0"},
		"quarantined: nothing is awaited":        {bundle, []metav1.Object{quarantined}, "0/0"},
		"quarantined: what is deployed counts":   {bundle, []metav1.Object{quarantined, outdated, isReady(deployed(t, bundle, quarantined))}, "1/2 OutOfSync(1) [Cluster ws/alice]"},
		"unsupported: what is deployed counts":   {unsupported, []metav1.Object{alice, bob, isReady(deployed(t, bundle, alice))}, "1/1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, row.has...)
			assert.Equal(t, row.want, s.shown(row.bundle))
		})
	}
}

func TestNonReadyListsResources(t *testing.T) {
	d := isReady(deployed(t, targetingAlice()))
	d.Status.Ready, d.Status.NonModified = false, false
	d.Status.ModifiedStatus = []fleet.ModifiedStatus{{Kind: "ConfigMap", Name: "c1", Patch: `{"data":{"a":"1"}}`}}
	d.Status.NonReadyStatus = []fleet.NonReadyStatus{{Kind: "Deployment", Name: "d"}}
	want := []fleet.NonReadyResource{{
		State: fleet.NotReady, Message: "Deployment /d", ModifiedStatus: d.Status.ModifiedStatus, NonReadyStatus: d.Status.NonReadyStatus,
	}}
	s := newStage(t)
	s.has(t, clusterNamed("alice"), targetingAlice(), d)
	counts, err := s.summarize(t.Context(), targetingAlice(), planOf(targetingAlice()), s.matching(targetingAlice()), nil)
	require.NoError(t, err)
	want[0].Name = "ws/alice"
	assert.Equal(t, want, counts.summary.NonReadyResources, "of a Bundle")
	cluster, _ := s.reconcile(t, clusterNamed("alice"))
	want[0].Name = "app"
	want[0].ModifiedStatus = []fleet.ModifiedStatus{{Kind: "ConfigMap", Name: "c1"}} // without values of the Bundle
	assert.Equal(t, want, cluster.Status.Summary.NonReadyResources, "of a Cluster")

	after := d.DeepCopy()
	after.ResourceVersion, after.Status.ModifiedStatus[0].Patch = "6", `{"data":{"a":"2"}}`
	s.has(t, targetingAlice())
	s.deploymentEvents().OnUpdate(d, after)
	assert.Contains(t, s.taken(), "enqueue Bundle app in 1s", "the list has changed")
}

// The only target of a Bundle is quarantined before anything is deployed to it.
func TestUpdateStatusNamesQuarantine(t *testing.T) {
	s := newStage(t)
	quarantined := clusterNamed("alice")
	quarantined.Spec.Quarantined = true
	b := settled()
	s.has(t, quarantined, b)
	s.handle(t, b)
	log := s.taken()
	require.Len(t, log, 1)
	assert.Contains(t, log[0], `"message":"every Cluster that the targets match is quarantined (1); nothing is deployed to it until the quarantine is lifted (muster release)"`)
	assert.Contains(t, log[0], `"reason":"NoClusters"`)
}

func TestBundleResult(t *testing.T) {
	none := bundleResult(nil, clusterCounts{})
	assert.Equal(t, []string{fleet.ReasonNoClusters, "the targets match no Cluster"}, []string{none.Reason, none.Message})
	assert.Equal(t, fleet.ReasonAllReady, bundleResult(nil, clusterCounts{summary: fleet.BundleSummary{Ready: 1, DesiredReady: 1}}).Reason)
	out := bundleResult(&problem{fleet.ReasonBundleInvalid, "why"}, clusterCounts{summary: fleet.BundleSummary{Ready: 1, DesiredReady: 1}})
	assert.Equal(t, fleet.ReasonBundleInvalid, out.Reason)
	assert.True(t, out.IsStalled())
}

// The status of a Bundle is computed at most twice a second, for all its Clusters.
func BenchmarkSummarize(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprint(n, " Clusters"), func(b *testing.B) {
			s, bundle := newStage(b), everywhere()
			for i := range n {
				c := clusterNamed(fmt.Sprint("c", i))
				s.has(b, c, isReady(deployed(b, bundle, c)))
			}
			p := s.plans.of(b.Context(), bundle)
			for b.Loop() {
				s.summarize(b.Context(), bundle, p, s.matching(bundle), nil)
			}
		})
	}
}
