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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/registration"
)

// patience is no measure of speed: a machine may be very busy.
const patience = 2 * time.Minute

var (
	clusters    = schema.GroupResource{Group: fleet.SchemeGroupVersion.Group, Resource: "clusters"}
	errNotFound = apierrors.NewNotFound(clusters, "member")
	errNoKind   = apierrors.NewGenericServerResponse(404, "get", clusters, "member", "404 page not found", 0, true)
	conflict    = apierrors.NewConflict(clusters, "member", errors.New("UID"))
	member      = owner{kindCluster, "ws", "member"}
)

// world is a hub with one kind of objects and one kind of owners.
type world struct {
	objects      []made
	cached, live error
	removing     error
	needed       bool
	unsure       error // whether it is needed
	asked        int
	removed      []made
	counted      *prometheus.Registry
}

// metric is the sum of all metrics of that name.
func (w *world) metric(t *testing.T, name string) (sum float64) {
	t.Helper()
	families, err := w.counted.Gather()
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

func (w *world) collector(clock *clocktesting.FakeClock) *Collector {
	k := kind{
		name: namespaces,
		made: func() ([]made, error) { return w.objects, nil },
		one: func(name types.NamespacedName) (made, bool) {
			for _, m := range w.objects {
				if m.name == name.Name {
					return m, true
				}
			}
			return made{}, false
		},
		remove: func(m made) error {
			w.removed = append(w.removed, m)
			return w.removing
		},
	}
	way := look{
		cached: func(string, string) error { return w.cached },
		live: func(string, string) error {
			w.asked++
			return w.live
		},
		needed: func(context.Context, string, string) (bool, error) { return w.needed, w.unsure },
	}
	w.counted = prometheus.NewRegistry()
	return newCollector(&app.Context{Clock: clock, Metrics: metrics.New(w.counted)}, []kind{k}, map[string]look{kindCluster: way})
}

func someClock() *clocktesting.FakeClock {
	return clocktesting.NewFakeClock(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
}

func TestOnlyTheAPIServersWordMakesAnOrphan(t *testing.T) {
	for _, row := range []struct {
		name         string
		cached, live error
		removing     error
		asked        int
		removed      int // tried
		collected    float64
		left         int
	}{
		{name: "the cache has the owner"},
		{name: "the cache is behind", cached: errNotFound, asked: 1},
		{name: "the owner is gone", cached: errNotFound, live: errNotFound, asked: 1, removed: 1, collected: 1},
		{name: "the API server does not answer", cached: errNotFound, live: errors.New("refused"), asked: 1, left: 1},
		{name: "it forbids to look", cached: errNotFound, live: apierrors.NewForbidden(clusters, "member", nil), asked: 1, left: 1},
		{name: "it does not know the kind", cached: errNotFound, live: errNoKind, asked: 1, left: 1},
		{name: "it is overloaded", cached: errNotFound, live: apierrors.NewTooManyRequests("later", 1), asked: 1, left: 1},
		{name: "the orphan has gone by itself", cached: errNotFound, live: errNotFound, removing: errNotFound, asked: 1, removed: 1},
		{name: "it is another object by now", cached: errNotFound, live: errNotFound, removing: conflict, asked: 1, removed: 1},
		{name: "it cannot be removed", cached: errNotFound, live: errNotFound, removing: errors.New("forbidden"), asked: 1, removed: 1, left: 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := &world{cached: row.cached, live: row.live, removing: row.removing, objects: []made{{name: "n", uid: "u", owner: member}}}
			c := w.collector(someClock())
			assert.Equal(t, row.left, c.walk(context.Background()))
			assert.Equal(t, row.asked, w.asked)
			assert.Len(t, w.removed, row.removed)
			assert.InDelta(t, row.collected, w.metric(t, "muster_orphans_collected_total"), 0)
			assert.InDelta(t, float64(row.left), w.metric(t, "muster_orphans_left"), 0)
		})
	}
}

func TestWhatAnAgentNeedsForItsFarewellStaysUntilAWalkAfterIt(t *testing.T) {
	w := &world{cached: errNotFound, live: errNotFound, needed: true, objects: []made{{name: "n", uid: "u", owner: member}}}
	c := w.collector(someClock())
	assert.Equal(t, 1, c.walk(t.Context()), "it is looked at again soon")
	w.needed, w.unsure = false, errors.New("refused")
	assert.Equal(t, 1, c.walk(t.Context()), "nobody knows whether it is needed")
	assert.Empty(t, w.removed)
	w.unsure = nil
	assert.Zero(t, c.walk(t.Context()))
	assert.Len(t, w.removed, 1)
}

func TestAnObjectIsRemovedAsItWasSeen(t *testing.T) {
	options := made{uid: "u"}.asSeen()
	require.NotNil(t, options.Preconditions)
	assert.Equal(t, types.UID("u"), *options.Preconditions.UID)
}

func TestAWalkTakesBreath(t *testing.T) {
	w, clock := &world{}, someClock()
	for i := range 2*batch + 1 {
		w.objects = append(w.objects, made{name: fmt.Sprint(i), owner: member})
	}
	c, walked := w.collector(clock), make(chan int)
	go func() { walked <- c.walk(context.Background()) }()
	breaths := 0
	require.Eventually(t, func() bool {
		select {
		case left := <-walked:
			return left == 0
		default:
			breaths++
			clock.Step(breath)
			return false
		}
	}, patience, time.Millisecond)
	assert.GreaterOrEqual(t, breaths, 2)
	assert.Zero(t, w.asked, "a settled hub is asked nothing")
}

func TestAWalkEndsWithTheHub(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	w := &world{cached: errNotFound, live: errNotFound, objects: []made{{name: "n", owner: member}}}
	w.collector(someClock()).walk(ended)
	assert.Empty(t, w.removed)
}

func TestWalksFollowEachOther(t *testing.T) {
	w, clock := &world{cached: errNotFound, live: errors.New("refused"), objects: []made{{name: "n", owner: member}}}, someClock()
	c := w.collector(clock)
	c.do(t.Context(), walk)
	assert.Equal(t, 1, w.asked)
	c.requireNext(t, clock, walkAgain)

	w.live = nil
	c.do(t.Context(), walk)
	c.requireNext(t, clock, walkEvery)
	c.tasks.ShutDown()
}

// requireNext waits until the next walk is due, which is after that time and not much later.
func (c *Collector) requireNext(t *testing.T, clock *clocktesting.FakeClock, after time.Duration) {
	t.Helper()
	require.Eventually(t, clock.HasWaiters, patience, time.Millisecond)
	clock.Step(after - time.Nanosecond)
	assert.Zero(t, c.tasks.Len())
	require.Eventually(t, func() bool { clock.Step(time.Second); return c.tasks.Len() == 1 }, patience, time.Millisecond)
	task, _ := c.tasks.Get()
	assert.Equal(t, walk, task)
	c.tasks.Done(task)
}

func TestTheDeletionOfAClusterIsFollowedUp(t *testing.T) {
	w := &world{cached: errNotFound, live: errNotFound, objects: []made{{name: "other", owner: member}, {
		name: registration.ClusterNamespace("ws", "member"), owner: member,
	}}}
	c := w.collector(someClock())
	c.do(t.Context(), types.NamespacedName{Namespace: "ws", Name: "member"})
	require.Len(t, w.removed, 1)
	assert.Equal(t, registration.ClusterNamespace("ws", "member"), w.removed[0].name)
	c.do(t.Context(), types.NamespacedName{Namespace: "ws", Name: "unknown"})
	assert.Len(t, w.removed, 1)
	c.tasks.ShutDown()
}
