package cluster

import (
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// requests answers for the cache of ClusterRegistrations.
type requests struct {
	fleetcontrollers.ClusterRegistrationCache
	all []*fleet.ClusterRegistration
}

func (r requests) GetByIndex(_, key string) (found []*fleet.ClusterRegistration, err error) {
	for _, request := range r.all {
		if request.Namespace+"/"+request.Spec.ClientID == key {
			found = append(found, request)
		}
	}
	return found, nil
}

func request(name string, age time.Duration, status corev1.ConditionStatus, reason string) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-age))},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "id"},
		Status: fleet.ClusterRegistrationStatus{
			Granted:    status == corev1.ConditionTrue,
			Conditions: []genericcondition.GenericCondition{{Type: "Granted", Status: status, Reason: reason, Message: "of " + name}},
		},
	}
}

func TestRegisteredTellsHowFarTheAgentHasCome(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	refused := func(name string, age time.Duration) *fleet.ClusterRegistration {
		return request(name, age, no, fleet.ReasonTokenNotFound)
	}
	for _, row := range []struct {
		name     string
		clientID string
		lastSeen time.Time
		requests []*fleet.ClusterRegistration
		status   corev1.ConditionStatus
		reason   string
		says     string
	}{
		{name: "nobody has asked", clientID: "id", status: unknown, reason: fleet.ReasonWaitingForAgent},
		{name: "a Cluster without identity has no requests", status: unknown, reason: fleet.ReasonWaitingForAgent, requests: []*fleet.ClusterRegistration{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}}},
		{name: "the agent was heard of", clientID: "id", lastSeen: noon, status: yes, reason: fleet.ReasonRegistered},
		{
			name: "it was heard of, whatever was refused since", clientID: "id", lastSeen: noon, status: yes, reason: fleet.ReasonRegistered,
			requests: []*fleet.ClusterRegistration{refused("a", 0)},
		},
		{
			name: "a request waits", clientID: "id", status: unknown, reason: fleet.ReasonWaitingForAgent,
			requests: []*fleet.ClusterRegistration{request("a", 0, unknown, "W")},
		},
		{
			name: "a request was refused", clientID: "id", status: no, reason: fleet.ReasonTokenNotFound, says: "a registration was refused: of a",
			requests: []*fleet.ClusterRegistration{refused("a", 0)},
		},
		{
			name: "an error that passes is no refusal", clientID: "id", status: unknown, reason: fleet.ReasonWaitingForAgent,
			requests: []*fleet.ClusterRegistration{request("a", 0, no, fleet.ReasonError)},
		},
		{
			name: "the newest refusal counts", clientID: "id", status: no, reason: fleet.ReasonTokenNotFound, says: "of b",
			requests: []*fleet.ClusterRegistration{refused("b", time.Second), refused("a", time.Minute), refused("c", time.Hour)},
		},
		{
			name: "of two of one second always the same", clientID: "id", status: no, reason: fleet.ReasonTokenNotFound, says: "of b",
			requests: []*fleet.ClusterRegistration{refused("b", 0), refused("a", 0)},
		},
		{
			name: "one that was granted outweighs all refusals", clientID: "id", status: unknown, reason: fleet.ReasonWaitingForAgent,
			requests: []*fleet.ClusterRegistration{refused("a", 0), request("b", time.Hour, yes, fleet.ReasonGranted), refused("c", time.Minute)},
		},
		{name: "requests of others", clientID: "other", status: unknown, reason: fleet.ReasonWaitingForAgent, requests: []*fleet.ClusterRegistration{refused("a", 0)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: fleet.ClusterSpec{ClientID: row.clientID}}
			c.Status.Agent.LastSeen = metav1.NewTime(row.lastSeen)
			out := registeredStep{&handler{Context: atNoon(), requests: requests{all: row.requests}}}.Reconcile(t.Context(), c)
			assert.Equal(t, row.status, out.Status())
			assert.Equal(t, row.reason, out.Reason)
			assert.Contains(t, out.Message, row.says)
			assert.NoError(t, out.Err)
		})
	}
}

func TestDisplaySaysWhetherTheAgentWasHeardOf(t *testing.T) {
	for _, row := range []struct {
		name         string
		lastSeen     time.Time
		before, want fleet.ClusterDisplay
	}{
		{"never", time.Time{}, fleet.ClusterDisplay{}, fleet.ClusterDisplay{State: "WaitCheckIn", ReadyBundles: "0/0"}},
		{"never, whatever was shown", time.Time{}, fleet.ClusterDisplay{State: "NotReady", ReadyBundles: "1/2"}, fleet.ClusterDisplay{State: "WaitCheckIn", ReadyBundles: "1/2"}},
		{"for the first time", noon, fleet.ClusterDisplay{State: "WaitCheckIn"}, fleet.ClusterDisplay{ReadyBundles: "0/0"}},
		{"again, and another component's state stays", noon, fleet.ClusterDisplay{State: "NotReady", ReadyBundles: "1/2"}, fleet.ClusterDisplay{State: "NotReady", ReadyBundles: "1/2"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{Status: fleet.ClusterStatus{Display: row.before}}
			c.Status.Agent.LastSeen = metav1.NewTime(row.lastSeen)
			display(c)
			assert.Equal(t, row.want, c.Status.Display)
		})
	}
}

func TestNamespaceBelongsToTheClusterItNames(t *testing.T) {
	c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	named := func(namespace, name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			"fleet.cattle.io/cluster-namespace": namespace, "fleet.cattle.io/cluster": name,
		}}}
	}
	assert.True(t, isFor(named("ns", "c"), c))
	assert.False(t, isFor(named("other", "c"), c))
	assert.False(t, isFor(named("ns", "other"), c))
	assert.False(t, isFor(&corev1.Namespace{}, c), "one somebody made by hand is not taken over")

	assert.Equal(t, []types.NamespacedName{{Namespace: "ns", Name: "c"}}, clusterOfNamespace(named("ns", "c")))
	assert.Empty(t, clusterOfNamespace(&corev1.Namespace{}))
	assert.Equal(t, []types.NamespacedName{{Namespace: "ns", Name: "c"}}, Keys([]*fleet.Cluster{c}))
}
