package clusternet

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// sent is a status as agents send it, with fields that the hub does not know.
const sent = `{"lastObservedTime":"2026-01-02T03:04:05Z","k8sVersion":"v1.31.4+k3s1","platform":"linux/amd64","agentVersion":"v0.18.0",
"healthz":true,"livez":true,"readyz":true,"appPusher":true,"kubeQPS":50,"allocatable":{"cpu":"3","memory":"7Gi"},
"capacity":{"cpu":"4","memory":"8Gi","example.com/many":"1"},"nodeStatistics":{"readyNodes":2,"notReadyNodes":1,"lostNodes":1},
"heartbeatFrequencySeconds":180,"conditions":[{"type":"Ready","status":"True","reason":"ManagedClusterReady",
"message":"managed cluster is ready.","lastTransitionTime":"2026-01-02T03:04:06Z"}]}`

func statusSent(t *testing.T) (status v1beta1.ManagedClusterStatus) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(sent), &status))
	return status
}

func TestReportOf(t *testing.T) {
	got, err := json.Marshal(reportOf(statusSent(t)))
	require.NoError(t, err)
	assert.JSONEq(t, `{"lastSeen":null,"namespace":"","checkinInterval":"3m0s","version":"v0.18.0","kubernetesVersion":"v1.31.4+k3s1",
		"nodes":{"count":4,"ready":2},"capacity":{"cpu":"4","memory":"8Gi"},"allocatable":{"cpu":"3","memory":"7Gi"},"apiServer":{"ready":true}}`, string(got))
	assert.Equal(t, &fleet.AgentAPIServer{}, reportOf(v1beta1.ManagedClusterStatus{Healthz: true}).APIServer)
}

// The schema of a ManagedCluster admits quantities that Kubernetes writes with more characters than the schema of a Cluster admits.
func TestReportOf_quantities(t *testing.T) {
	status := statusSent(t)
	long := resource.MustParse("1234567890123456789.123456789")
	status.Capacity[corev1.ResourceCPU], status.Allocatable = long, corev1.ResourceList{corev1.ResourceMemory: long}
	report := reportOf(status)
	assert.Len(t, report.Capacity, 1)
	assert.Contains(t, report.Capacity, corev1.ResourceMemory)
	assert.Nil(t, report.Allocatable)
}

// A ManagedCluster is read whatever its agent wrote: the API server accepts times and numbers that Go's types do not.
func TestHeartbeatOf_undecodable(t *testing.T) {
	for _, bad := range []string{`"lastObservedTime":"2026-01-01t00:00:00z"`, `"heartbeatFrequencySeconds":9223372036854775808`, `"nodeStatistics":{"readyNodes":1e300}`} {
		var list v1beta1.ManagedClusterList
		require.NoError(t, json.Unmarshal([]byte(`{"items":[{"metadata":{"name":"a"},"status":{"k8sVersion":"v1.31.4",`+bad+`}},{"metadata":{"name":"b"}}]}`), &list))
		require.Len(t, list.Items, 2)
		assert.Equal(t, "v1.31.4", list.Items[0].Status.KubernetesVersion)
		_, ok := heartbeatOf(list.Items[0].Status)
		assert.False(t, ok, bad)
	}
}

// The agent chooses the interval; nothing that it sends keeps it connected for long, and nothing overflows.
func TestReportOf_interval(t *testing.T) {
	for seconds, want := range map[int64]*metav1.Duration{
		-1: nil, 0: nil, 1: {Duration: time.Second}, 180: {Duration: 3 * time.Minute}, 3600: {Duration: time.Hour},
		3601: {Duration: time.Hour}, math.MaxInt64: {Duration: time.Hour},
	} {
		assert.Equal(t, want, reportOf(v1beta1.ManagedClusterStatus{HeartbeatFrequencySeconds: &seconds}).CheckinInterval, seconds)
	}
	assert.Nil(t, reportOf(v1beta1.ManagedClusterStatus{}).CheckinInterval)
}

func TestHeartbeatOf(t *testing.T) {
	status := statusSent(t)
	first, ok := heartbeatOf(status)
	assert.True(t, ok)
	status.Conditions[0].LastTransitionTime = metav1.NewTime(status.Conditions[0].LastTransitionTime.Add(time.Second))
	second, _ := heartbeatOf(status)
	assert.NotEqual(t, first, second, "an agent sends the same status twice if it has collected no other")
	status.Conditions[0].Status = metav1.ConditionUnknown
	_, ok = heartbeatOf(status)
	assert.False(t, ok, "the hub has written it")
	_, ok = heartbeatOf(v1beta1.ManagedClusterStatus{})
	assert.False(t, ok, "a new ManagedCluster")
}

func TestWithoutReserved(t *testing.T) {
	assert.Equal(t, map[string]string{"env": "edge", "node.clusternet.io/zone": "a"}, withoutReserved(map[string]string{
		"env": "edge", "node.clusternet.io/zone": "a", "clusters.clusternet.io/cluster-id": "other", "clusternet.io/created-by": "me",
	}))
	assert.Nil(t, withoutReserved(nil))
}

func TestAccount(t *testing.T) {
	for user, want := range map[string][2]string{
		"system:serviceaccount:ns:name": {"ns", "name"}, "system:bootstrap:abcdef": {"", ""}, "": {"", ""},
	} {
		namespace, name := account(user)
		assert.Equal(t, want, [2]string{namespace, name}, user)
	}
}
