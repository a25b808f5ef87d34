package orphans

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/registration"
)

// patience is long, because a machine may be very busy.
const patience = 2 * time.Minute

var (
	clusters    = schema.GroupResource{Group: fleet.SchemeGroupVersion.Group, Resource: "clusters"}
	errNotFound = apierrors.NewNotFound(clusters, "member")
	errNoKind   = apierrors.NewGenericServerResponse(404, "get", clusters, "member", "404 page not found", 0, true)
	errConflict = apierrors.NewConflict(clusters, "member", errors.New("UID"))
	errRefused  = errors.New("refused")
)

// world is a Collector of Namespaces, whose caches and API server a test controls.
type world struct {
	*Collector
	clock   *clocktesting.FakeClock
	metrics *prometheus.Registry

	owner                ownerKey // of all Namespaces
	live, deletion       error    // the answers to the look-up of an owner, and to a deletion
	kind                 error    // the answer about the kind of the owner
	kindCreated          time.Time
	asked                int // look-ups
	deleted, deletedUIDs []string
}

// newWorld returns a hub with these Namespaces, whose owner is not in the cache.
func newWorld(t *testing.T, namespaces ...string) *world {
	t.Helper()
	w := &world{
		clock: clocktesting.NewFakeClock(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)), metrics: prometheus.NewRegistry(),
		owner: ownerKey{kindCluster, "ws", "member"},
	}
	client := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if a, ok := action.(clienttesting.DeleteActionImpl); ok {
			assert.Equal(t, "namespaces", a.Resource.Resource)
			w.deleted, w.deletedUIDs = append(w.deleted, a.Name), append(w.deletedUIDs, string(*a.DeleteOptions.Preconditions.UID))
			return true, nil, w.deletion
		}
		if action.GetResource().Resource == "customresourcedefinitions" {
			return true, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(w.kindCreated)}}, w.kind
		}
		assert.Equal(t, "ws/member", action.GetNamespace()+"/"+action.(clienttesting.GetAction).GetName())
		w.asked++
		return true, &metav1.PartialObjectMetadata{}, w.live
	})
	w.Collector = newCollector(&app.Context{Clock: w.clock, Metrics: metrics.New(w.metrics), Metadata: client})
	t.Cleanup(w.tasks.ShutDown)
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	for _, name := range namespaces {
		require.NoError(t, store.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name)}}))
	}
	w.kinds = []ownedKind{{namespaceKind, corev1.SchemeGroupVersion.WithResource("namespaces"), store, func(any) ownerKey { return w.owner }}}
	w.owners = map[string]ownerKind{
		kindCluster: {fleet.SchemeGroupVersion.WithResource("clusters"), cache.NewStore(cache.MetaNamespaceKeyFunc)},
		kindRequest: {fleet.SchemeGroupVersion.WithResource("clusterregistrations"), cache.NewStore(cache.MetaNamespaceKeyFunc)},
	}
	return w
}

func (w *world) cacheOwner(t *testing.T) {
	t.Helper()
	require.NoError(t, w.owners[kindCluster].cache.Add(&fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "member"}}))
}

// metric returns the sum of all series of a metric.
func (w *world) metric(t *testing.T, name string) (sum float64) {
	t.Helper()
	families, err := w.metrics.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func TestCheckAll(t *testing.T) {
	for name, row := range map[string]struct {
		cached         bool // the owner
		live, deletion error
		asked, deleted int
		collected      float64
		left           int
	}{
		"the owner is in the cache":                       {cached: true},
		"the owner exists and is not in the cache":        {asked: 1},
		"the owner does not exist: deleted":               {live: errNotFound, asked: 1, deleted: 1, collected: 1},
		"the API server does not answer: kept":            {live: errRefused, asked: 1, left: 1},
		"the API server forbids the look-up: kept":        {live: apierrors.NewForbidden(clusters, "member", nil), asked: 1, left: 1},
		"something else says that nothing is there: kept": {live: errNoKind, asked: 1, left: 1},
		"the API server is overloaded: kept":              {live: apierrors.NewTooManyRequests("later", 1), asked: 1, left: 1},
		"the orphan is gone already":                      {live: errNotFound, deletion: errNotFound, asked: 1, deleted: 1},
		"another object has the name of the orphan":       {live: errNotFound, deletion: errConflict, asked: 1, deleted: 1},
		"the orphan cannot be deleted":                    {live: errNotFound, deletion: errRefused, asked: 1, deleted: 1, left: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "n")
			if row.cached {
				w.cacheOwner(t)
			}
			w.live, w.deletion = row.live, row.deletion
			assert.Equal(t, row.left, w.checkAll(t.Context()))
			assert.Equal(t, row.asked, w.asked)
			assert.Len(t, w.deleted, row.deleted)
			if row.deleted > 0 {
				assert.Equal(t, []string{"uid-of-n"}, w.deletedUIDs)
			}
			assert.InDelta(t, row.collected, w.metric(t, "muster_orphans_collected_total"), 0)
			assert.InDelta(t, float64(row.left), w.metric(t, "muster_orphans_left"), 0)
		})
	}
	t.Run("what an agent needs to uninstall itself: kept until it has", func(t *testing.T) {
		w := newWorld(t, "n")
		w.owner, w.live = ownerKey{kindRequest, "ws", "member"}, errNotFound
		answer := func(needed finalizing.IdentityNeed, err error) {
			w.isNeeded = func(context.Context, string, string) (finalizing.IdentityNeed, error) { return needed, err }
		}
		answer(finalizing.IdentityUninstalling, nil)
		assert.Equal(t, 1, w.checkAll(t.Context()), "checked again soon")
		answer(finalizing.IdentityUnused, errRefused)
		assert.Equal(t, 1, w.checkAll(t.Context()), "it is not known")
		assert.Empty(t, w.deleted)
		answer(finalizing.IdentityKept, nil)
		assert.Zero(t, w.checkAll(t.Context()), "the kind of requests was deleted: it stays, and the next walk is not sooner")
		assert.Empty(t, w.deleted)
		answer(finalizing.IdentityUnused, nil)
		w.live, w.kind = errNoKind, errNotFound
		assert.Zero(t, w.checkAll(t.Context()), "the kind of requests is gone")
		assert.Equal(t, 1, w.kept)
		assert.Empty(t, w.deleted)
		w.live, w.kind = errNotFound, nil
		assert.Zero(t, w.checkAll(t.Context()))
		assert.Len(t, w.deleted, 1)
	})
	t.Run("the kind of the owner was deleted: kept", func(t *testing.T) {
		w := newWorld(t, "n")
		w.live, w.kindCreated = errNotFound, w.clock.Now()
		assert.Zero(t, w.checkAll(t.Context()))
		w.clock.Step(time.Second)
		w.kind = errRefused
		assert.Equal(t, 1, w.checkAll(t.Context()), "it is not known")
		assert.Empty(t, w.deleted)
	})
	t.Run("the kind of the owner is gone: kept", func(t *testing.T) {
		w := newWorld(t, "n")
		w.live, w.kind = errNoKind, errNotFound
		assert.Zero(t, w.checkAll(t.Context()), "the next walk is not sooner")
		assert.Equal(t, 1, w.kept)
		assert.Empty(t, w.deleted)
	})
	t.Run("many objects: it pauses after each batch", func(t *testing.T) {
		var names []string
		for i := range 2*batch + 1 {
			names = append(names, fmt.Sprint(i))
		}
		w, walked := newWorld(t, names...), make(chan int)
		w.cacheOwner(t)
		go func() { walked <- w.checkAll(context.Background()) }()
		steps := 0
		require.Eventually(t, func() bool {
			select {
			case left := <-walked:
				return left == 0
			default:
				steps++
				w.clock.Step(pause)
				return false
			}
		}, patience, time.Millisecond)
		assert.GreaterOrEqual(t, steps, 2)
		assert.Zero(t, w.asked, "nothing is asked about a settled hub")
	})
	t.Run("the hub stops: nothing is deleted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w := newWorld(t, "n")
		w.live = errNotFound
		w.checkAll(ctx)
		assert.Empty(t, w.deleted)
	})
}

func TestWalksFollowEachOther(t *testing.T) {
	w := newWorld(t, "n")
	w.live = errRefused
	w.do(t.Context(), walk)
	assert.Equal(t, 1, w.asked)
	w.requireNext(t, retryInterval)

	w.live = nil
	w.do(t.Context(), walk)
	w.requireNext(t, walkInterval)
}

// requireNext requires that the next walk is due after that time and not much later.
func (w *world) requireNext(t *testing.T, after time.Duration) {
	t.Helper()
	require.Eventually(t, w.clock.HasWaiters, patience, time.Millisecond)
	w.clock.Step(after - time.Nanosecond)
	assert.Zero(t, w.tasks.Len())
	require.Eventually(t, func() bool { w.clock.Step(time.Second); return w.tasks.Len() == 1 }, patience, time.Millisecond)
	task, _ := w.tasks.Get()
	assert.Equal(t, walk, task)
	w.tasks.Done(task)
}

func TestCheckCluster(t *testing.T) {
	w := newWorld(t, "other", registration.ClusterNamespace("ws", "member"))
	w.live = errNotFound
	w.do(t.Context(), types.NamespacedName{Namespace: "ws", Name: "member"})
	assert.Equal(t, []string{registration.ClusterNamespace("ws", "member")}, w.deleted)
	w.do(t.Context(), types.NamespacedName{Namespace: "ws", Name: "unknown"})
	assert.Len(t, w.deleted, 1)
}
