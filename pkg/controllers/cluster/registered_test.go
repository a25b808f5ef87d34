package cluster

import (
	"cmp"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// requests is a cache of ClusterRegistrations.
type requests struct {
	fleetcontrollers.ClusterRegistrationCache
	all []*fleet.ClusterRegistration
}

func (r requests) GetByIndex(indexName, key string) (found []*fleet.ClusterRegistration, err error) {
	for _, request := range r.all { // a bucketed index compares the keys itself
		if indexName != index.ByToken || index.Key(request.Namespace, request.Labels[fleet.RegistrationTokenLabel]) == key {
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

func TestRegistered(t *testing.T) {
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
		{name: "no request", clientID: "id", status: unknown, reason: fleet.ReasonWaitingForAgent},
		{name: "no clientID", status: unknown, reason: fleet.ReasonWaitingForAgent, requests: []*fleet.ClusterRegistration{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}}},
		{name: "agent has checked in", clientID: "id", lastSeen: noon, status: yes, reason: fleet.ReasonRegistered},
		{
			name: "agent has checked in, later request denied", clientID: "id", lastSeen: noon, status: yes, reason: fleet.ReasonRegistered,
			requests: []*fleet.ClusterRegistration{refused("a", 0)},
		},
		{
			name: "request waits", clientID: "id", status: unknown, reason: fleet.ReasonWaitingForAgent,
			requests: []*fleet.ClusterRegistration{request("a", 0, unknown, "W")},
		},
		{
			name: "request denied", clientID: "id", status: no, reason: fleet.ReasonTokenNotFound, says: "a registration was refused: of a",
			requests: []*fleet.ClusterRegistration{refused("a", 0)},
		},
		{
			name: "an error is not a refusal", clientID: "id", status: unknown, reason: fleet.ReasonWaitingForAgent,
			requests: []*fleet.ClusterRegistration{request("a", 0, no, fleet.ReasonError)},
		},
		{
			name: "newest refusal counts", clientID: "id", status: no, reason: fleet.ReasonTokenNotFound, says: "of b",
			requests: []*fleet.ClusterRegistration{refused("b", time.Second), refused("a", time.Minute), refused("c", time.Hour)},
		},
		{
			name: "denials of the same second: sorted by name", clientID: "id", status: no, reason: fleet.ReasonTokenNotFound, says: "of b",
			requests: []*fleet.ClusterRegistration{refused("b", 0), refused("a", 0)},
		},
		{
			name: "a granted request overrides denials", clientID: "id", status: unknown, reason: fleet.ReasonWaitingForAgent,
			requests: []*fleet.ClusterRegistration{refused("a", 0), request("b", time.Hour, yes, fleet.ReasonGranted), refused("c", time.Minute)},
		},
		{name: "requests of another clientID", clientID: "other", status: unknown, reason: fleet.ReasonWaitingForAgent, requests: []*fleet.ClusterRegistration{refused("a", 0)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: fleet.ClusterSpec{ClientID: row.clientID}}
			c.Status.Agent.LastSeen = metav1.NewTime(row.lastSeen)
			out := registeredAtNoon(c, requests{all: row.requests}, false)
			assert.Equal(t, row.status, out.Status())
			assert.Equal(t, row.reason, out.Reason)
			assert.Contains(t, out.Message, row.says)
			assert.NoError(t, out.Err)
		})
	}
}

func TestRegistered_anotherClientIDWithTheTokenOfTheImport(t *testing.T) {
	const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	foreign := func(name string, age time.Duration, status corev1.ConditionStatus, reason string) *fleet.ClusterRegistration {
		r := request(name, age, status, reason)
		r.Spec.ClientID, r.Labels = "other", map[string]string{fleet.RegistrationTokenLabel: "import-token-prod"}
		return r
	}
	const waits = "waiting for the agent to register and send its first heartbeat"
	for _, row := range []struct {
		name       string
		kubeconfig string
		requests   []*fleet.ClusterRegistration
		status     corev1.ConditionStatus
		message    string
	}{
		{"none", "k", nil, unknown, waits},
		{"not imported", "", []*fleet.ClusterRegistration{foreign("a", 0, no, fleet.ReasonDenied)}, unknown, waits},
		{
			"refused", "k",
			[]*fleet.ClusterRegistration{foreign("a", 0, no, fleet.ReasonDenied), foreign("b", time.Hour, yes, fleet.ReasonGranted)},
			unknown,
			waits + "; ClusterRegistration a names the token of this import, but has another clientID than this Cluster, and was refused (Denied: of a)",
		},
		{"granted", "k", []*fleet.ClusterRegistration{foreign("a", 0, yes, fleet.ReasonGranted)}, unknown, waits},
		{"not decided", "k", []*fleet.ClusterRegistration{foreign("a", 0, unknown, "W")}, unknown, waits},
		{
			"the refusal of the agent's own request comes first", "k",
			[]*fleet.ClusterRegistration{foreign("a", 0, no, fleet.ReasonDenied), request("b", time.Hour, no, fleet.ReasonTokenNotFound)},
			no,
			"a registration was refused: of b",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "prod"}, Spec: fleet.ClusterSpec{ClientID: "id", KubeConfigSecret: row.kubeconfig}}
			out := registeredAtNoon(c, requests{all: row.requests}, false)
			assert.Equal(t, row.status, out.Status(), "whoever may create requests cannot make the Cluster look broken")
			assert.Equal(t, row.message, out.Message)
		})
	}
}

func TestSetDisplay(t *testing.T) {
	for _, row := range []struct {
		name         string
		lastSeen     time.Time
		before, want fleet.ClusterDisplay
	}{
		{"never", time.Time{}, fleet.ClusterDisplay{}, fleet.ClusterDisplay{State: "WaitCheckIn", ReadyBundles: "0/0"}},
		{"never, other state", time.Time{}, fleet.ClusterDisplay{State: "NotReady", ReadyBundles: "1/2"}, fleet.ClusterDisplay{State: "WaitCheckIn", ReadyBundles: "1/2"}},
		{"first check-in", noon, fleet.ClusterDisplay{State: "WaitCheckIn"}, fleet.ClusterDisplay{ReadyBundles: "0/0"}},
		{"the state of another component stays", noon, fleet.ClusterDisplay{State: "NotReady", ReadyBundles: "1/2"}, fleet.ClusterDisplay{State: "NotReady", ReadyBundles: "1/2"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{Status: fleet.ClusterStatus{Display: row.before}}
			c.Status.Agent.LastSeen = metav1.NewTime(row.lastSeen)
			setDisplay(c)
			assert.Equal(t, row.want, c.Status.Display)
		})
	}
}

func registeredAtNoon(cluster *fleet.Cluster, known requests, clones bool) result.Result {
	h := &handler{Context: &app.Context{Clock: clocktesting.NewFakeClock(noon)}, requests: known, subReconcilers: SubReconcilers{Liveness: &liveness{clones: clones, names: []string{"pod-a_1", "pod-b_2"}}}}
	setDisplay(cluster)
	return h.registeredResult(cluster)
}

func TestRegistered_expiredCredential(t *testing.T) {
	for _, row := range []struct {
		name       string
		end        time.Time
		kubeconfig string
		reason     string
		after      time.Duration
		says       []string
	}{
		{"agent that registered itself", noon.Add(-time.Hour), "", fleet.ReasonCredentialExpired, 0, []string{
			"expired at 2026-01-02T11:00:00Z", "`muster -n ns token create --cluster c --usage-limit 1 --ttl 1h -o values | muster join - --kubeconfig MEMBER`",
		}},
		{"imported agent", noon.Add(-time.Hour), "k", fleet.ReasonCredentialExpired, 0, []string{"the hub installs the agent again"}},
		{"not yet expired", noon.Add(time.Hour), "", fleet.ReasonRegistered, time.Hour + time.Minute, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
			c.Spec.ClientID, c.Spec.KubeConfigSecret = "id", row.kubeconfig
			c.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: corev1.ConditionFalse}}
			c.Status.Agent.LastSeen, c.Status.Agent.CredentialExpires = metav1.NewTime(noon.Add(-day)), &metav1.Time{Time: row.end}
			granted := request("a", day, corev1.ConditionTrue, fleet.ReasonGranted)
			out := registeredAtNoon(c, requests{all: []*fleet.ClusterRegistration{granted}}, false)
			assert.Equal(t, row.reason, out.Reason)
			assert.Equal(t, row.after, out.After, "the Cluster is enqueued when it expires")
			for _, part := range row.says {
				assert.Contains(t, out.Message, part)
			}
		})
	}
}

const day = 24 * time.Hour

func TestRegistered_quarantineAndClones(t *testing.T) {
	for _, row := range []struct {
		name                string
		quarantined, clones bool
		reason              string
		says                []string
	}{
		{"neither", false, false, fleet.ReasonRegistered, nil},
		{"quarantined", true, false, fleet.ReasonQuarantined, []string{"quarantined (alice: lost) and", "first revoke it with `muster -n ns revoke --yes c`; `muster -n ns release c`", "spec.quarantined: false"}},
		{"clones", false, true, fleet.ReasonCloneDetected, []string{"two agents", `("pod-a_1", "pod-b_2"; the part before an underscore is the name of the pod)`, "Secret fleet-agent on the copy", "`muster -n ns revoke --yes c`"}},
		{"both", true, true, fleet.ReasonQuarantined, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
			c.Spec.ClientID, c.Spec.Quarantined, c.Status.Agent.LastSeen = "id", row.quarantined, metav1.NewTime(noon)
			c.Annotations = map[string]string{fleet.QuarantineReasonAnnotation: "alice: lost"}
			out := registeredAtNoon(c, requests{}, row.clones)
			assert.Equal(t, row.reason, out.Reason)
			assert.Equal(t, row.reason != fleet.ReasonRegistered, out.IsStalled(), "a stalled result emits an event")
			for _, part := range row.says {
				assert.Contains(t, out.Message, part)
			}
		})
	}
}

// A hub that has just started knows that there are clones, and not yet the names of both.
func TestRegistered_oneCloneKnown(t *testing.T) {
	c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	for _, names := range [][]string{nil, {"pod-a_1"}} {
		h := &handler{subReconcilers: SubReconcilers{Liveness: &liveness{clones: true, names: names}}}
		assert.Contains(t, h.registeredResult(c).Message, "two agents send heartbeats with the identity of this cluster; the second")
	}
}

func TestRegistered_invalidCredential(t *testing.T) {
	revoked := request("a", 0, corev1.ConditionFalse, fleet.ReasonCredentialRevoked)
	silent := []genericcondition.GenericCondition{{Type: fleet.ConditionConnected, Status: corev1.ConditionFalse}}
	for _, row := range []struct {
		name       string
		kubeconfig string
		requests   []*fleet.ClusterRegistration
		conditions fleetstatus.Conditions
		says       []string
		not        string
	}{
		{name: "revoked, with kubeconfig", kubeconfig: "k", requests: []*fleet.ClusterRegistration{revoked}, says: []string{"of a", "the hub installs the agent again"}},
		{name: "revoked, without kubeconfig", requests: []*fleet.ClusterRegistration{revoked}, says: []string{"of a", "`muster -n ns token create --cluster c --usage-limit 1 --ttl 1h -o values | muster join - --kubeconfig MEMBER`", "Secret fleet-agent-bootstrap"}},
		{name: "lost, with kubeconfig", kubeconfig: "k", conditions: silent, says: []string{"its granted ClusterRegistration does not exist any more", "the hub installs"}},
		{name: "lost, without kubeconfig", conditions: silent, says: []string{"its granted ClusterRegistration does not exist any more", "`muster -n ns token create --cluster c --usage-limit 1 --ttl 1h -o values | muster join - --kubeconfig MEMBER`"}},
		{
			name: "lost, and a new request waits for a person", conditions: silent, not: "token create",
			requests: []*fleet.ClusterRegistration{request("new", 0, corev1.ConditionUnknown, fleet.ReasonWaitingForApproval)},
			says:     []string{"its new ClusterRegistration new is not granted (WaitingForApproval: of new)"},
		},
		{
			name: "lost, and a new request is refused", conditions: silent,
			requests: []*fleet.ClusterRegistration{request("new", 0, corev1.ConditionFalse, fleet.ReasonClientIDInUse)},
			says:     []string{"its new ClusterRegistration new is not granted (ClientIDInUse: of new)", "token create"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Spec: fleet.ClusterSpec{ClientID: "id", KubeConfigSecret: row.kubeconfig}}
			c.Status.Agent.LastSeen, c.Status.Conditions = metav1.NewTime(noon), row.conditions
			out := registeredAtNoon(c, requests{all: row.requests}, false)
			assert.Equal(t, fleet.ReasonCredentialRevoked, out.Reason)
			assert.True(t, out.IsStalled())
			for _, part := range row.says {
				assert.Contains(t, out.Message, part)
			}
			if row.not != "" {
				assert.NotContains(t, out.Message, row.not)
			}
		})
	}
}

func TestRecordRegistered(t *testing.T) {
	const unknown, yes, no = corev1.ConditionUnknown, corev1.ConditionTrue, corev1.ConditionFalse
	const event = "Normal Registered the agent has registered and sent its first heartbeat"
	approved := request("r", 3*time.Second, yes, "Granted")
	approved.Status.Approval = &fleet.RegistrationApproval{Decision: fleet.DecisionApproved}
	older := request("older", time.Hour, yes, "Granted")
	for _, row := range []struct {
		name          string
		before, after corev1.ConditionStatus
		spec          fleet.ClusterSpec
		requests      []*fleet.ClusterRegistration
		clusterName   string
		first         bool // the Cluster has no status yet
		event, series string
		took          float64
	}{
		{
			name: "an agent, since its newest request", before: unknown, after: yes, requests: []*fleet.ClusterRegistration{older, request("r", 2*time.Second, yes, "Granted")},
			event: event, series: "auto agent", took: 2,
		},
		{
			name: "an agent whose heartbeat comes before the first status", first: true, before: "", after: yes,
			requests: []*fleet.ClusterRegistration{request("r", 2*time.Second, yes, "Granted")}, event: event, series: "auto agent", took: 2,
		},
		{name: "a request that a person approved", before: unknown, after: yes, requests: []*fleet.ClusterRegistration{approved}, event: event, series: "manual agent", took: 3},
		{
			name: "an import, since the hub waits", before: unknown, after: yes, spec: fleet.ClusterSpec{KubeConfigSecret: "s"},
			requests: []*fleet.ClusterRegistration{request("r", time.Second, yes, "Granted")}, event: event, series: "auto manager", took: 5,
		},
		{
			name: "the hub's own cluster", before: unknown, after: yes, spec: fleet.ClusterSpec{KubeConfigSecret: registration.LocalSecret},
			clusterName: registration.LocalCluster, event: event, series: "auto local", took: 5,
		},
		{name: "a Cluster of Fleet's own hub, which has other conditions", before: "", after: yes},
		{name: "an event of the transition itself says so", before: no, after: yes},
		{name: "it waits", before: "", after: unknown},
	} {
		t.Run(row.name, func(t *testing.T) {
			events, registry := record.NewFakeRecorder(2), prometheus.NewRegistry()
			h := &handler{
				Context: &app.Context{
					Events: events, Metrics: metrics.New(registry), Clock: clocktesting.NewFakeClock(noon),
					Config: config.NewStore(config.Hub{Bootstrap: config.Bootstrap{Namespace: "ns"}}),
				},
				requests: requests{all: row.requests},
			}
			row.spec.ClientID = "id"
			cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: cmp.Or(row.clusterName, "c")}, Spec: row.spec}
			cluster.Status.Conditions = fleetstatus.Conditions{
				{Type: fleet.ConditionRegistered, Status: unknown, LastTransitionTime: noon.Add(-5 * time.Second).Format(time.RFC3339)},
			}
			if row.first {
				cluster.Status.Conditions = nil
			}
			h.recordRegistered(cluster, cluster, &result.Transition{Before: row.before, After: row.after})
			h.recordRegistered(cluster, cluster, nil)
			close(events.Events)
			assert.Equal(t, row.event, <-events.Events)
			assert.Empty(t, <-events.Events)

			families, err := registry.Gather()
			require.NoError(t, err)
			observed := map[string]float64{}
			for _, family := range families {
				for _, m := range family.GetMetric() {
					if family.GetName() == "muster_registration_first_heartbeat_seconds" && m.GetHistogram().GetSampleCount() > 0 {
						observed[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetHistogram().GetSampleSum()
					}
				}
			}
			want := map[string]float64{}
			if row.series != "" {
				want[row.series] = row.took
			}
			assert.Equal(t, want, observed)
		})
	}
}

func TestReleasesManaged(t *testing.T) {
	c := &fleet.Cluster{}
	_, exists := releasesManaged(c)
	assert.False(t, exists, "an agent that has kept no release")

	c.Status.Agent.KeptReleases = &fleet.AgentKeptReleases{Count: 2, Names: "shop/cart, shop/search"}
	out, exists := releasesManaged(c)
	require.True(t, exists)
	assert.Equal(t, corev1.ConditionFalse, out.Status())
	assert.Equal(t, fleet.ReasonBundlesMissing, out.Reason)
	assert.Contains(t, out.Message, "(2): shop/cart, shop/search; create their Bundles again")

	result.Set(&c.Status.Conditions, fleet.ConditionReleasesManaged, out, noon)
	c.Status.Agent.KeptReleases = nil
	out, exists = releasesManaged(c)
	require.True(t, exists)
	assert.Equal(t, corev1.ConditionTrue, out.Status())
}
