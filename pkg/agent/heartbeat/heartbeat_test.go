package heartbeat

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func newMember(objects ...runtime.Object) (*member.Member, *kubefake.Clientset) {
	core := kubefake.NewClientset(objects...)
	return &member.Member{Namespace: agenttest.Namespace, Core: core, Watching: core}, core
}

// answering gives the member an API server that answers /version, and /readyz with the given response.
func answering(t *testing.T, m *member.Member, code int, readyz string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/version" {
			_, _ = io.WriteString(w, `{"gitVersion":"v1.36.3"}`)
			return
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, readyz)
	}))
	t.Cleanup(server.Close)
	actual, err := member.New(&rest.Config{Host: server.URL}, agenttest.Namespace, "test", time.Minute)
	require.NoError(t, err)
	t.Cleanup(actual.Close)
	m.REST = actual.REST
}

func node(name string, ready corev1.ConditionStatus, cpu, memory, pods string) *corev1.Node {
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse(pods),
		"example.com/gpu": resource.MustParse("8"),
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Capacity: amounts, Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: ready}},
	}}
}

// reported returns the report as the status that results, and as a patch.
func reported(t *testing.T, h *Heartbeat) (status fleet.AgentStatus, patch map[string]any) {
	t.Helper()
	h.Timing, h.Interval, h.Version = *agenttest.Quick(), time.Hour, "test"
	stored, err := credential.Parse(agenttest.StoredSecret(t, agenttest.HubURL, "", agenttest.OldToken))
	require.NoError(t, err)
	log, _ := agenttest.Log(t)
	conn, err := (&hubclient.Dialer{Timing: h.Timing, Clock: h.Clock, Log: log}).Dial(stored.Access)
	require.NoError(t, err)
	data, err := json.Marshal(h.report(t.Context(), credential.NewInUse(conn, stored), h.Interval))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &status))
	require.NoError(t, json.Unmarshal(data, &patch))
	return status, patch
}

func TestReport(t *testing.T) {
	texts := func(list corev1.ResourceList) map[corev1.ResourceName]string {
		texts := map[corev1.ResourceName]string{}
		for name, quantity := range list {
			texts[name] = quantity.String()
		}
		return texts
	}
	t.Run("everything can be read", func(t *testing.T) {
		m, _ := newMember(node("a", corev1.ConditionTrue, "4", "16Gi", "110"), node("b", corev1.ConditionFalse, "2500m", "8Gi", "50"))
		answering(t, m, http.StatusOK, "ok")
		now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
		h := &Heartbeat{Member: m, Clock: clocktesting.NewFakeClock(now), Generation: "managed/1"}
		got, _ := reported(t, h)
		assert.Equal(t, map[corev1.ResourceName]string{"cpu": "6500m", "memory": "24Gi", "pods": "160"}, texts(got.Capacity))
		assert.Equal(t, map[corev1.ResourceName]string{"cpu": "3", "memory": "0", "pods": "0"}, texts(got.Allocatable))
		got.Capacity, got.Allocatable = nil, nil
		assert.Equal(t, fleet.AgentStatus{
			Namespace: agenttest.Namespace, CheckinInterval: &metav1.Duration{Duration: time.Hour}, Version: "test", Generation: "managed/1",
			KubernetesVersion: "v1.36.3", Nodes: &fleet.AgentNodes{Count: 2, Ready: 1}, APIServer: &fleet.AgentAPIServer{Ready: true},
			Hub: &fleet.AgentHub{
				APIServerURL: agenttest.HubURL, APIServerCAHash: registration.CAHash(nil), AgentTLSMode: "system-store",
			},
		}, got)
	})
	t.Run("what cannot be read is removed from the status", func(t *testing.T) {
		m, core := newMember()
		core.PrependReactor("list", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", assert.AnError)
		})
		_, patch := reported(t, &Heartbeat{Member: m, Clock: clock.RealClock{}})
		for _, key := range []string{"generation", "kubernetesVersion", "nodes", "capacity", "allocatable", "apiServer", "clockSkew", "vouches"} {
			value, there := patch[key]
			assert.True(t, there, "without %s the patch would leave the earlier value", key)
			assert.Nil(t, value, key)
		}
		assert.Contains(t, patch["hub"], "pending")
		assert.Nil(t, patch["hub"].(map[string]any)["pending"])
		assert.NotContains(t, patch, "keptReleases", "an agent that starts does not know them yet, and must not clear them")
		assert.NotContains(t, patch, "lastSeen", "send sets it for the status, and a Lease has another field for it")
	})
}

// A field that the patch does not have would never be reported, and the API server would prune one that the kind does not have.
func TestPatchHasTheFieldsOfTheStatus(t *testing.T) {
	for patch, status := range map[reflect.Type]reflect.Type{
		reflect.TypeFor[statusPatch](): reflect.TypeFor[fleet.AgentStatus](), reflect.TypeFor[hubReport](): reflect.TypeFor[fleet.AgentHub](),
		reflect.TypeFor[apiServerReport](): reflect.TypeFor[fleet.AgentAPIServer](),
	} {
		assert.ElementsMatch(t, jsonNames(status), jsonNames(patch), "%s and %s", status, patch)
	}
}

// jsonNames returns the keys of a struct in JSON.
func jsonNames(of reflect.Type) (names []string) {
	for _, field := range reflect.VisibleFields(of) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

func TestReadReadiness(t *testing.T) {
	for name, row := range map[string]struct {
		code int
		body string
		want *apiServerReport
	}{
		"ready":             {200, "ok", &apiServerReport{Ready: true}},
		"checks that fail":  {500, "[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\n[-]x failed\nreadyz check failed", &apiServerReport{Message: textOrNull("etcd failed: reason withheld; x failed")}},
		"forbidden":         {403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, nil},
		"unknown":           {404, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, nil},
		"too many requests": {429, "{}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := newMember()
			answering(t, m, row.code, row.body)
			assert.Equal(t, row.want, readReadiness(t.Context(), m))
		})
	}
	t.Run("no answer", func(t *testing.T) {
		m, _ := newMember()
		answering(t, m, 200, "ok")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got := readReadiness(ctx, m)
		require.NotNil(t, got)
		assert.False(t, got.Ready)
		assert.Empty(t, readVersion(ctx, m))
	})
}

func TestSumNodes(t *testing.T) {
	m, core := newMember()
	var asked []metav1.ListOptions
	core.PrependReactor("list", "nodes", func(action kubetesting.Action) (bool, runtime.Object, error) {
		asked = append(asked, action.(kubetesting.ListActionImpl).ListOptions)
		list := &corev1.NodeList{Items: []corev1.Node{
			*node(fmt.Sprint(len(asked)), corev1.ConditionTrue, "1", "1Gi", "10"), *node("unknown", corev1.ConditionUnknown, "1", "1", "1"), {},
		}}
		if len(asked) < 3 {
			list.Continue = "more"
		}
		return true, list, nil
	})
	totals, err := sumNodes(t.Context(), m)
	require.NoError(t, err)
	assert.Equal(t, fleet.AgentNodes{Count: 9, Ready: 3}, *totals.Nodes)
	require.Len(t, asked, 3, "page by page")
	assert.Equal(t, "0", asked[0].ResourceVersion, "from the API server's cache")
	assert.Positive(t, asked[0].Limit)
}

func TestNotes(t *testing.T) {
	n := &Notes{}
	wake := n.waker()
	assert.Empty(t, n.read())
	assert.True(t, n.SetPendingEndpoint("a", "first"))
	<-wake
	wake = n.waker()
	assert.Equal(t, "first", n.read().pendingEndpoint)
	assert.False(t, n.SetPendingEndpoint("a", "other words"))
	assertOpen(t, wake) // another text about the same topic waits for the next heartbeat
	assert.Equal(t, "other words", n.read().pendingEndpoint)
	assert.True(t, n.SetPendingEndpoint("", ""))
	<-wake
	wake = n.waker()
	n.SendNow()
	<-wake
}

// assertOpen fails if a heartbeat must be sent at once.
func assertOpen(t *testing.T, wake <-chan struct{}) {
	t.Helper()
	select {
	case <-wake:
		t.Error("a heartbeat was requested at once, and it should have waited for the interval")
	default:
	}
}
