package costs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rancher/lasso/pkg/controller"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// fleetDay simulates a day of some clusters. The test acts as their agents and sets the clock.
type fleetDay struct {
	*stage
	clock    *clocktesting.FakeClock
	clusters []string
	heard    heard
}

// heard records the heartbeats that the hub's cache has received.
type heard struct {
	mu   sync.Mutex
	last map[string]string
}

func (h *heard) note(_ string, c *fleet.Cluster) (*fleet.Cluster, error) {
	if c != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.last[c.Namespace+"/"+c.Name] = c.Status.Agent.LastSeen.UTC().Format(time.RFC3339)
	}
	return c, nil
}

func (h *heard) of(namespace, name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last[namespace+"/"+name]
}

const checkin = 15 * time.Minute

func newFleetDay(t *testing.T, r *testenv.Recorder, size int) *fleetDay {
	t.Helper()
	d := &fleetDay{clock: clocktesting.NewFakeClock(time.Now()), heard: heard{last: map[string]string{}}, stage: &stage{testenv.EmptyStage(t)}}
	d.Running = d.Hub.Hub(t, r.Wrap, func(o *muster.Options) {
		o.Clock = d.clock
		factory, err := controller.NewSharedControllerFactoryFromConfig(o.RESTConfig, nil)
		require.NoError(t, err)
		fleetcontrollers.New(factory).Cluster().OnChange(t.Context(), "heard", d.heard.note)
		o.SharedControllerFactory = factory
	})
	values := d.Token(t, "tok")
	for i := range size {
		registered := d.Register(t, values, fmt.Sprintf("day-%d", i), "random")
		d.clusters = append(d.clusters, registered.Request.Status.ClusterName)
	}
	return d
}

// beat sends a heartbeat of each cluster and returns when the hub has received all of them.
func (d *fleetDay) beat(t *testing.T, clusters ...string) {
	t.Helper()
	now := d.clock.Now().UTC().Format(time.RFC3339)
	report := fleet.AgentStatus{LastSeen: metav1.NewTime(d.clock.Now()), Namespace: testenv.SystemNamespace, CheckinInterval: &metav1.Duration{Duration: checkin}}
	for _, name := range clusters {
		d.Beat(t, name, report)
	}
	testenv.Eventually(t, func() (bool, string) {
		late := slices.DeleteFunc(slices.Clone(clusters), func(name string) bool { return d.heard.of(d.Namespace, name) == now })
		return len(late) == 0, fmt.Sprintf("the hub has not heard of %v", late)
	})
}

func (d *fleetDay) requireConnected(t *testing.T, cluster, want string) {
	t.Helper()
	d.Hub.ClusterCondition(t, d.Namespace, cluster, fleet.ConditionConnected, want)
}

func (d *fleetDay) hours(t *testing.T, hours int, beating ...string) {
	t.Helper()
	for range hours * int(time.Hour/checkin) {
		d.clock.Step(checkin)
		d.beat(t, beating...)
	}
}

func TestDayOfHeartbeats(t *testing.T) {
	sample.Long(t)
	r := &testenv.Recorder{}
	d := newFleetDay(t, r, 3)
	silent, others := d.clusters[0], d.clusters[1:]
	d.beat(t, d.clusters...)
	for _, cluster := range d.clusters {
		d.requireConnected(t, cluster, "True Connected: the agent sends a heartbeat every 15m0s")
	}
	r.Settle(t)
	d.hours(t, 1, d.clusters...) // for writes that the hub delays, such as the status of Bundles
	r.Settle(t)

	d.hours(t, 10, d.clusters...)
	assert.Empty(t, r.Settle(t), "heartbeats change nothing")

	lastSeen := d.clock.Now().UTC().Format(time.RFC3339)
	d.hours(t, 2, others...)
	d.requireConnected(t, silent, "False Disconnected: no heartbeat since "+lastSeen)
	d.hours(t, 1, others...)
	d.hours(t, 1, d.clusters...)
	d.requireConnected(t, silent, "True Connected")
	d.hours(t, 9, d.clusters...)

	cost := r.Settle(t)
	bill := testenv.Bill(cost)
	t.Logf("a day of %d clusters, one of which was silent for three hours: %v", len(d.clusters), bill)
	assert.Equal(t, 2, bill["PATCH clusters/status 2xx"], "disconnected, and connected again")
	maps.DeleteFunc(bill, func(line string, _ int) bool {
		return line == "PATCH clusters/status 2xx" || strings.Contains(line, " events ")
	})
	assert.Empty(t, bill, "nothing else is written, and nothing is read: %v", cost)
	assert.Equal(t, 1, d.Hub.EventCount(t, d.Namespace, silent, fleet.ReasonDisconnected))
	for _, cluster := range others {
		assert.Zero(t, d.Hub.EventCount(t, d.Namespace, cluster, fleet.ReasonDisconnected))
	}
}
