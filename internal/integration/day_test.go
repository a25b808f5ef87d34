package integration

import (
	"encoding/json"
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
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// fleetDay is a day in the life of some clusters, of which the test plays the agents and holds the clock.
type fleetDay struct {
	*stage
	clock    *clocktesting.FakeClock
	clusters []string
	heard    heard
}

// heard is what the hub's cache has said of heartbeats.
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

func newFleetDay(t *testing.T, r *recorder, size int) *fleetDay {
	t.Helper()
	hub, member := clusters(t)
	hub.Configure(t, hub.Reachable())
	d := &fleetDay{clock: clocktesting.NewFakeClock(time.Now()), heard: heard{last: map[string]string{}}}
	d.stage = &stage{hub: hub, member: member, namespace: hub.Namespace(t)}
	d.Running = hub.Hub(t, r.wrap, func(o *controllers.Options) {
		o.Clock = d.clock
		factory, err := controller.NewSharedControllerFactoryFromConfig(o.RESTConfig, nil)
		require.NoError(t, err)
		fleetcontrollers.New(factory).Cluster().OnChange(t.Context(), "heard", d.heard.note)
		o.SharedControllerFactory = factory
	})
	values := d.token(t, "tok")
	for i := range size {
		registered := d.register(t, values, fmt.Sprintf("day-%d", i), "random")
		d.clusters = append(d.clusters, registered.request.Status.ClusterName)
	}
	return d
}

// beat is a heartbeat of each of the clusters that the hub has seen when it returns.
func (d *fleetDay) beat(t *testing.T, clusters ...string) {
	t.Helper()
	now := d.clock.Now().UTC().Format(time.RFC3339)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"agent": map[string]any{
		"lastSeen": now, "namespace": systemNamespace, "checkinInterval": checkin.String(),
	}}})
	require.NoError(t, err)
	for _, name := range clusters {
		_, err := d.hub.Fleet.Clusters(d.namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		require.NoError(t, err)
	}
	testenv.Eventually(t, func() (bool, string) {
		late := slices.DeleteFunc(slices.Clone(clusters), func(name string) bool { return d.heard.of(d.namespace, name) == now })
		return len(late) == 0, fmt.Sprintf("the hub has not heard of %v", late)
	})
}

func (d *fleetDay) requireConnected(t *testing.T, cluster, want string) {
	t.Helper()
	d.hub.ClusterCondition(t, d.namespace, cluster, fleet.ConditionConnected, want)
}

func (d *fleetDay) hours(t *testing.T, hours int, beating ...string) {
	t.Helper()
	for range hours * int(time.Hour/checkin) {
		d.clock.Step(checkin)
		d.beat(t, beating...)
	}
}

func TestADayOfHeartbeatsCostsTheHubItsTransitions(t *testing.T) {
	r := &recorder{}
	d := newFleetDay(t, r, 5)
	silent, others := d.clusters[0], d.clusters[1:]
	d.requireConnected(t, silent, "Unknown WaitingForAgent")
	d.beat(t, d.clusters...)
	for _, cluster := range d.clusters {
		d.requireConnected(t, cluster, "True Connected: the agent checks in every 15m0s")
	}
	r.settle(t)
	d.hours(t, 1, d.clusters...) // what the hub puts off until its clock goes on, such as the status of Bundles
	r.settle(t)

	d.hours(t, 10, d.clusters...)
	assert.Empty(t, r.settle(t), "all that beats is as it was")

	lastSeen := d.clock.Now().UTC().Format(time.RFC3339)
	d.hours(t, 2, others...)
	d.requireConnected(t, silent, "False Disconnected: no check-in since "+lastSeen)
	d.hours(t, 1, others...)
	d.hours(t, 1, d.clusters...)
	d.requireConnected(t, silent, "True Connected")
	d.hours(t, 9, d.clusters...)

	cost := r.settle(t)
	bill := bill(cost)
	t.Logf("a day of %d clusters, one of which was silent for three hours: %v", len(d.clusters), bill)
	assert.Equal(t, 2, bill["PATCH clusters/status 2xx"], "gone and back")
	maps.DeleteFunc(bill, func(line string, _ int) bool {
		return line == "PATCH clusters/status 2xx" || strings.Contains(line, " events ")
	})
	assert.Empty(t, bill, "nothing else is written, and nothing is read: %v", cost)
	assert.Equal(t, 1, d.hub.EventCount(t, d.namespace, silent, fleet.ReasonDisconnected))
	for _, cluster := range others {
		assert.Zero(t, d.hub.EventCount(t, d.namespace, cluster, fleet.ReasonDisconnected))
	}
}
