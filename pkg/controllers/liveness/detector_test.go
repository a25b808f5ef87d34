package liveness

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// patience is long, because the machine may be busy.
const patience = 2 * time.Minute

var member = types.NamespacedName{Namespace: "ns", Name: "member"}

// queue is the work queue of Clusters.
type queue chan types.NamespacedName

func (q queue) EnqueueAfter(namespace, name string, _ time.Duration) {
	q <- types.NamespacedName{Namespace: namespace, Name: name}
}

// detectorTest is a Detector with a fake clock.
type detectorTest struct {
	*Detector
	clock    *clocktesting.FakeClock
	clusters queue
	cluster  *fleet.Cluster
}

func newDetectorTest(t *testing.T, hub config.Hub) *detectorTest {
	t.Helper()
	d := &detectorTest{
		clock: clocktesting.NewFakeClock(noon), clusters: make(queue, 100),
		cluster: &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: member.Namespace, Name: member.Name}},
	}
	d.Detector = newDetector(&app.Context{Clock: d.clock, Metrics: metrics.New(nil), Config: config.NewStore(hub)}, d.clusters, requestAccounts{}, NewAPIReachability(d.clock))
	d.running.Go(d.run)
	t.Cleanup(func() { d.deadlines.ShutDown(); d.Wait() })
	return d
}

// pass observes and reconciles the Cluster once, and writes the condition to its status.
func (d *detectorTest) pass() (corev1.ConditionStatus, *result.Transition) {
	d.RecordAndCopy(d.cluster)
	out := d.Reconcile(context.Background(), d.cluster)
	transition := result.Set(&d.cluster.Status.Conditions, fleet.ConditionConnected, out, d.clock.Now())
	return fleetstatus.Condition(d.cluster.Status.Conditions, fleet.ConditionConnected).Status, transition
}

func (d *detectorTest) status() corev1.ConditionStatus {
	status, _ := d.pass()
	return status
}

func (d *detectorTest) beat() {
	d.cluster.Status.Agent.LastSeen = metav1.NewTime(d.clock.Now().Truncate(time.Second))
}

// requireBack waits until the queue of deadlines enqueues the Cluster. If the queue reads the fake clock just before a step and starts its timer
// just after, the timer ends too late by that step; so the clock is stepped further by ticks.
func (d *detectorTest) requireBack(t *testing.T) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for deadline := time.After(patience); ; {
		select {
		case key := <-d.clusters:
			require.Equal(t, member, key)
			return
		case <-again.C:
			d.clock.Step(tick)
		case <-deadline:
			t.Fatal("the Cluster was not enqueued")
		}
	}
}

// requireQuiet requires that the queue of deadlines enqueues nothing now: it adds a probe that is due at once, and the probe must be the first key
// that comes.
func (d *detectorTest) requireQuiet(t *testing.T) {
	t.Helper()
	probe := types.NamespacedName{Name: "probe"}
	d.mu.Lock()
	d.records[probe] = &agentRecord{byStatus: receivedHeartbeat{lastSeen: metav1.NewTime(noon), at: noon.Add(-1000 * time.Hour)}}
	d.mu.Unlock()
	d.deadlines.Add(probe)
	select {
	case key := <-d.clusters:
		require.Equal(t, probe, key)
	case <-time.After(patience):
		t.Fatal("the queue of deadlines did not enqueue the probe")
	}
}

func TestDetector_gracePeriod(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	assert.Equal(t, unknown, d.status(), "before the first beat")
	d.clock.Step(time.Hour)
	d.beat()
	assert.Equal(t, yes, d.status())

	require.Eventually(t, d.clock.HasWaiters, patience, time.Millisecond)
	d.clock.Step(grace - tick)
	assert.Equal(t, yes, d.status(), "an instant before")
	d.requireQuiet(t)
	d.clock.Step(tick)
	d.requireBack(t)
	assert.Equal(t, no, d.status(), "at that instant")

	d.clock.Step(10 * time.Hour)
	assert.Equal(t, no, d.status())
	d.requireQuiet(t)
	d.beat()
	assert.Equal(t, yes, d.status(), "at the next beat")
}

func TestDetector_heartbeatsExtendTheDeadline(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	d.pass()
	for range 200 {
		d.beat()
		status, transition := d.pass()
		assert.Equal(t, yes, status)
		if d.clock.Now() != noon {
			assert.Nil(t, transition)
		}
		d.clock.Step(15 * time.Minute)
	}
	d.requireQuiet(t)
	d.clock.Step(30*time.Minute - tick)
	d.requireQuiet(t)
	assert.Equal(t, yes, d.status())
	d.clock.Step(tick)
	d.requireBack(t)
	assert.Equal(t, no, d.status())
}

func TestDetector_reinstalledAgent(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	d.pass()
	d.beat()
	assert.Equal(t, yes, d.status())
	d.cluster.Status.Agent = fleet.AgentStatus{}
	d.RecordAndCopy(d.cluster)
	out := d.Reconcile(context.Background(), d.cluster)
	assert.True(t, out.IsWait())
	assert.Equal(t, fleet.ReasonWaitingForAgent, out.Reason)
	d.clock.Step(2 * grace)
	d.requireQuiet(t)
}

func TestDetector_forget(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	d.beat()
	d.pass()
	d.Forget("ns/member")
	assert.Empty(t, d.records)
	d.clock.Step(2 * grace)
	d.requireQuiet(t)
}

func TestDetector_changedConfiguration(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	d.pass()
	d.beat()
	d.pass()
	d.clock.Step(10 * time.Minute)
	before, after := config.Hub{}, config.Hub{AgentCheckinInterval: *duration(time.Minute)}
	d.Config = config.NewStore(after)
	d.onSettings(before, after)
	d.requireBack(t)
	assert.Equal(t, no, d.status())

	d.onSettings(after, config.Hub{AgentCheckinInterval: *duration(time.Minute), APIServerURL: "https://elsewhere"})
	d.requireQuiet(t)
}

func TestDetector_hubWasDown(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	d.cluster.Status.Agent = seen(noon.Add(-3 * time.Hour))
	result.Set(&d.cluster.Status.Conditions, fleet.ConditionConnected, result.Done(fleet.ReasonConnected, "the agent sends a heartbeat every 15m0s"), noon)
	status, transition := d.pass()
	assert.Equal(t, yes, status)
	assert.Nil(t, transition, "nothing to write")
	require.Eventually(t, d.clock.HasWaiters, patience, time.Millisecond)
	d.clock.Step(grace)
	d.requireBack(t)
	assert.Equal(t, no, d.status(), "one grace after the hub's start")
}

func TestDetector_apiServerWasDown(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	d.pass()
	d.beat()
	d.pass()
	d.reachability.watched("leases", false)
	d.clock.Step(grace)
	assert.Equal(t, yes, d.status(), "no heartbeat could arrive")
	d.reachability.watched("leases", true)
	d.clock.Step(grace - tick)
	assert.Equal(t, yes, d.status())
	d.clock.Step(tick)
	d.requireBack(t)
	assert.Equal(t, no, d.status())
}

func TestDetector_countsHeartbeats(t *testing.T) {
	d := newDetectorTest(t, config.Hub{})
	registry := prometheus.NewRegistry()
	d.Metrics = metrics.New(registry)
	interval := d.Config.Get().CheckinInterval()
	requires := func(count uint64, lateness float64) {
		t.Helper()
		d.status()
		families, err := registry.Gather()
		require.NoError(t, err)
		found := map[string]float64{}
		for _, family := range families {
			metric := family.GetMetric()[0]
			found[family.GetName()] = metric.GetCounter().GetValue() + metric.GetHistogram().GetSampleSum()
		}
		for name, value := range map[string]float64{"muster_heartbeats_received_total": float64(count), "muster_heartbeat_lateness_seconds": lateness} {
			require.Contains(t, found, name)
			assert.InDelta(t, value, found[name], 0, name)
		}
	}
	requires(0, 0)
	d.beat()
	requires(1, 0)
	requires(1, 0) // another change of the Cluster
	d.clock.Step(interval + 3*time.Second)
	d.beat()
	requires(2, 3)
	d.clock.Step(interval / 2)
	d.beat()
	requires(3, 3) // an early heartbeat is not late
}
