package clusternet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fakeclients "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	clusternetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/clusters.clusternet.io/v1beta1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func handlerAt(clock *clocktesting.FakeClock) *handler {
	return &handler{Context: &app.Context{Clock: clock}, writtenMembers: expectations.Expectations{Clock: clock}}
}

// An answer, which has a credential, stays until the agent has read it, and for forty minutes at most.
func TestUntilRead(t *testing.T) {
	for name, row := range map[string]struct {
		heartbeat time.Duration // after the answer; 0 for none
		now       time.Duration
		removed   bool
		again     time.Duration
	}{
		"at once":                           {0, 0, false, unreadLifetime},
		"after a heartbeat":                 {10 * time.Second, 10 * time.Second, false, 5 * time.Second},
		"long enough after the answer":      {10 * time.Second, 15 * time.Second, true, 0},
		"an earlier heartbeat says nothing": {-time.Second, time.Minute, false, 39 * time.Minute},
		"nobody has read it in 39 minutes":  {0, 39 * time.Minute, false, time.Minute},
		"nobody has read it in 40 minutes":  {0, 40 * time.Minute, true, 0},
		"a late heartbeat":                  {39 * time.Minute, 39 * time.Minute, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(noon)
			h := handlerAt(clock)
			request := &v1beta1.ClusterRegistrationRequest{ObjectMeta: metav1.ObjectMeta{UID: "request"}}
			h.answered.Store(request.Name, approvalTime{request.UID, noon})
			cluster := &fleet.Cluster{}
			if row.heartbeat != 0 {
				cluster.Status.Agent.LastSeen = metav1.NewTime(noon.Add(row.heartbeat))
			}
			clock.Step(row.now)
			d := h.untilRead(request, cluster)
			assert.Equal(t, row.removed, d.remove)
			assert.Equal(t, row.again, d.after)
		})
	}
}

// A hub that has just started does not know when an answer was given. It counts from then.
func TestUntilReadAfterARestart(t *testing.T) {
	clock := clocktesting.NewFakeClock(noon)
	h, request := handlerAt(clock), &v1beta1.ClusterRegistrationRequest{ObjectMeta: metav1.ObjectMeta{UID: "request"}}
	assert.False(t, h.untilRead(request, &fleet.Cluster{}).remove)
	clock.Step(unreadLifetime - time.Second)
	assert.False(t, h.untilRead(request, &fleet.Cluster{}).remove)
	clock.Step(time.Second)
	assert.True(t, h.untilRead(request, &fleet.Cluster{}).remove)
}

type memberCache struct {
	clusternetcontrollers.ManagedClusterCache
	member *v1beta1.ManagedCluster
}

func (c memberCache) Get(string, string) (*v1beta1.ManagedCluster, error) { return c.member, nil }

// Each write of the hub to a ManagedCluster costs the agent a conflict: it writes once for each time that the agent is disconnected.
func TestReportDisconnected(t *testing.T) {
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "edge"}, Spec: fleet.ClusterSpec{ClientID: "id"}}
	member := &v1beta1.ManagedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: registration.ClusterNamespace("clusters", "edge"), Name: memberNameOf("id"), ResourceVersion: "1"},
		Status: v1beta1.ManagedClusterStatus{Conditions: []metav1.Condition{{
			Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue, Reason: "ManagedClusterReady", LastTransitionTime: metav1.NewTime(noon),
		}}},
	}
	clients := fakeclients.NewSimpleClientset(member)
	clock := clocktesting.NewFakeClock(noon)
	h := handlerAt(clock)
	h.ClusternetClient, h.members = clients.ClustersV1beta1(), memberCache{member: member}
	writes := func(status string) int {
		t.Helper()
		clients.ClearActions()
		cluster.Status.Conditions = fleetstatus.Conditions{{Type: fleet.ConditionConnected, Status: "True"}}
		if status != "" {
			cluster.Status.Conditions[0].Status = "False"
		}
		for range 3 {
			require.NoError(t, h.reportDisconnected(t.Context(), cluster))
			latest, err := clients.ClustersV1beta1().ManagedClusters(member.Namespace).Get(t.Context(), member.Name, metav1.GetOptions{})
			require.NoError(t, err)
			h.members = memberCache{member: latest}
			clock.Step(time.Hour)
		}
		count := 0
		for _, action := range clients.Actions() {
			if action.GetVerb() != "get" {
				count++
			}
		}
		return count
	}
	assert.Zero(t, writes(""), "while the agent is connected")
	assert.Equal(t, 1, writes("disconnected"))
	assert.Zero(t, writes("disconnected"))
}

// An earlier request of the same name has left the right to read it. The hub may not delete ClusterRoles.
func TestEnsureReader_ofEarlierRequest(t *testing.T) {
	clients := kubernetesfake.NewClientset()
	h := handlerAt(clocktesting.NewFakeClock(noon))
	h.Kubernetes = clients
	for _, uid := range []types.UID{"earlier", "later", "later"} {
		request := &v1beta1.ClusterRegistrationRequest{ObjectMeta: metav1.ObjectMeta{Name: "request", UID: uid}}
		require.NoError(t, h.ensureReader(t.Context(), request, "reader-of-"+string(uid)))
	}
	name := registration.ClusternetReaderName("request")
	role, err := clients.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, types.UID("later"), role.OwnerReferences[0].UID)
	binding, err := clients.RbacV1().ClusterRoleBindings().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, types.UID("later"), binding.OwnerReferences[0].UID)
	assert.Equal(t, "reader-of-later", binding.Subjects[0].Name)
	for _, action := range clients.Actions() {
		assert.False(t, action.Matches("delete", "clusterroles"))
	}
}

type clusterCache struct {
	fleetcontrollers.ClusterCache
	cluster *fleet.Cluster
}

func (c clusterCache) Get(string, string) (*fleet.Cluster, error) { return c.cluster, nil }

type registrationCache struct {
	fleetcontrollers.ClusterRegistrationCache
	granted *fleet.ClusterRegistration
}

func (c registrationCache) GetByIndex(string, string) ([]*fleet.ClusterRegistration, error) {
	return []*fleet.ClusterRegistration{c.granted}, nil
}

// delays are the delays with which ManagedClusters are enqueued.
type delays []time.Duration

func (d *delays) EnqueueAfter(_, _ string, after time.Duration) { *d = append(*d, after) }

// The thief of an agent's token sends another heartbeat with each request.
func TestOnManagedCluster_manyHeartbeats(t *testing.T) {
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "edge"}, Spec: fleet.ClusterSpec{ClientID: "id"}}
	member := &v1beta1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: registration.ClusterNamespace("clusters", "edge"), Name: memberNameOf("id"),
		Annotations: map[string]string{fleet.WorkspaceAnnotation: "clusters", fleet.ClusterAnnotation: "edge"},
	}}
	clock, clients, again := clocktesting.NewFakeClock(noon), fakeclients.NewSimpleClientset(cluster), &delays{}
	h := handlerAt(clock)
	h.Passes, h.HubUser, h.heartbeatQueue = app.NewPasses(t.Context()), "hub", again
	h.FleetClient, h.clusters = clients.FleetV1alpha1(), clusterCache{cluster: cluster}
	h.registrations = registrationCache{granted: &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Annotations: map[string]string{fleet.CreatorAnnotation: "hub", fleet.RequesterAnnotation: "agent"}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "id"},
		Status:     fleet.ClusterRegistrationStatus{Granted: true},
	}}
	beat := func(i int) {
		sent := member.DeepCopy()
		sent.Status.LastObservedTime = metav1.NewTime(noon.Add(time.Duration(i) * time.Hour))
		_, err := h.onManagedCluster("key", sent)
		require.NoError(t, err)
	}
	beat(0)
	assert.Len(t, clients.Actions(), 1, "the first one is copied at once")
	for i := range 100 {
		beat(i + 1)
		clock.Step(heartbeatInterval / 100)
	}
	assert.Equal(t, heartbeatInterval, (*again)[0])
	assert.Len(t, clients.Actions(), 1)
	beat(100)
	assert.Len(t, clients.Actions(), 2, "the last one is copied when the time has come")
}
