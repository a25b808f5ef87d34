package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
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

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// stubMember is an API server that answers /version and /readyz, and the nodes of a fake client.
func stubMember(t *testing.T, l *life, code int, readyz string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			reply(w, http.StatusOK, `{"gitVersion":"v1.36.3"}`)
			return
		}
		reply(w, code, readyz)
	}))
	t.Cleanup(server.Close)
	m, err := newMember(must(Config{Member: &rest.Config{Host: server.URL}, Namespace: agentNamespace, Timing: quick()}.withDefaults()))
	require.NoError(t, err)
	t.Cleanup(m.close)
	l.member.rest = m.rest
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

func testSession(t *testing.T) *session {
	t.Helper()
	s, err := parseStored(storedSecret(t, hubURL, testCA(t), oldToken))
	require.NoError(t, err)
	return newSession(&hub{}, s)
}

func agentStatus(t *testing.T, r report) (fleet.AgentStatus, map[string]any) {
	t.Helper()
	patch, err := r.patch()
	require.NoError(t, err)
	var cluster fleet.Cluster
	require.NoError(t, json.Unmarshal(patch, &cluster))
	var raw struct {
		Status struct{ Agent map[string]any }
	}
	require.NoError(t, json.Unmarshal(patch, &raw))
	return cluster.Status.Agent, raw.Status.Agent
}

func TestAHeartbeatReportsTheClusterAndTheAgent(t *testing.T) {
	l := testLife(t, node("a", corev1.ConditionTrue, "4", "16Gi", "110"), node("b", corev1.ConditionFalse, "2500m", "8Gi", "50"))
	stubMember(t, l, http.StatusOK, "ok")
	l.config.Generation = "managed/1"
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	l.config.Clock = clocktesting.NewFakeClock(now)
	s := testSession(t)
	got, _ := agentStatus(t, l.report(t.Context(), s, "elsewhere: dead"))
	assert.True(t, got.LastSeen.Time.Equal(now.Truncate(time.Second)))
	got.LastSeen = metav1.Time{}
	assert.Equal(t, map[corev1.ResourceName]string{"cpu": "6500m", "memory": "24Gi", "pods": "160"}, texts(got.Capacity))
	assert.Equal(t, map[corev1.ResourceName]string{"cpu": "3", "memory": "0", "pods": "0"}, texts(got.Allocatable))
	got.Capacity, got.Allocatable = nil, nil
	assert.Equal(t, fleet.AgentStatus{
		Namespace: agentNamespace, CheckinInterval: &metav1.Duration{Duration: time.Hour}, Version: "test", Generation: "managed/1",
		KubernetesVersion: "v1.36.3", Nodes: &fleet.AgentNodes{Count: 2, Ready: 1}, APIServer: &fleet.AgentAPIServer{Ready: true},
		Hub: &fleet.AgentHub{
			APIServerURL: hubURL, APIServerCAHash: registration.CAHash(s.credential.access.ca), AgentTLSMode: "system-store", Pending: "elsewhere: dead",
		},
	}, got)
}

func texts(list corev1.ResourceList) map[corev1.ResourceName]string {
	texts := map[corev1.ResourceName]string{}
	for name, quantity := range list {
		texts[name] = quantity.String()
	}
	return texts
}

func TestWhatCannotBeReadIsTakenOutOfTheStatus(t *testing.T) {
	l := testLife(t)
	l.member.core.(*kubefake.Clientset).PrependReactor("list", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", assert.AnError)
	})
	_, raw := agentStatus(t, l.report(t.Context(), testSession(t), ""))
	for _, key := range []string{"generation", "kubernetesVersion", "nodes", "capacity", "allocatable", "apiServer", "clockSkew"} {
		value, there := raw[key]
		assert.True(t, there, "%s has to be there, or the patch would leave what was", key)
		assert.Nil(t, value, key)
	}
	assert.Contains(t, raw["hub"], "pending")
	assert.Nil(t, raw["hub"].(map[string]any)["pending"])
	assert.NotEmpty(t, raw["lastSeen"])
}

func TestWhatTheMembersAPIServerSaysOfItself(t *testing.T) {
	for name, row := range map[string]struct {
		code int
		body string
		want *apiServerReport
	}{
		"well":              {200, "ok", &apiServerReport{Ready: true}},
		"checks that fail":  {500, "[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\n[-]x failed\nreadyz check failed", &apiServerReport{Message: textOrNull("etcd failed: reason withheld; x failed")}},
		"forbidden":         {403, status403, nil},
		"unknown":           {404, status404, nil},
		"too many requests": {429, "{}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLife(t)
			stubMember(t, l, row.code, row.body)
			assert.Equal(t, row.want, l.member.readiness(t.Context()))
		})
	}
	t.Run("silent", func(t *testing.T) {
		l := testLife(t)
		stubMember(t, l, 200, "ok")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got := l.member.readiness(ctx)
		require.NotNil(t, got)
		assert.False(t, got.Ready)
		assert.Empty(t, l.member.version(ctx))
	})
}

func TestNodesAreReadPageByPageFromMemory(t *testing.T) {
	l := testLife(t)
	var asked []metav1.ListOptions
	l.member.core.(*kubefake.Clientset).PrependReactor("list", "nodes", func(action kubetesting.Action) (bool, runtime.Object, error) {
		options := action.(kubetesting.ListActionImpl).ListOptions
		asked = append(asked, options)
		list := &corev1.NodeList{Items: []corev1.Node{*node(fmt.Sprint(len(asked)), corev1.ConditionTrue, "1", "1Gi", "10")}}
		if len(asked) < 3 {
			list.Continue = "more"
		}
		return true, list, nil
	})
	sums, err := l.member.sumNodes(t.Context())
	require.NoError(t, err)
	assert.Equal(t, fleet.AgentNodes{Count: 3, Ready: 3}, *sums.Nodes)
	require.Len(t, asked, 3)
	assert.Equal(t, "0", asked[0].ResourceVersion)
	assert.Positive(t, asked[0].Limit)
}

func TestANodeIsReadyWhenItSaysSo(t *testing.T) {
	assert.True(t, ready(node("a", corev1.ConditionTrue, "1", "1", "1")))
	assert.False(t, ready(node("a", corev1.ConditionUnknown, "1", "1", "1")))
	assert.False(t, ready(&corev1.Node{}))
}

func TestTheClocksDifferenceIsWorkedOutFromTheDate(t *testing.T) {
	hubTime := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, row := range map[string]struct {
		ahead, trip time.Duration // of the own clock; there and back
		date        string
		want        time.Duration
	}{
		"no difference":                  {500 * time.Millisecond, 100 * time.Millisecond, "", 0},
		"less than a date can tell":      {1400 * time.Millisecond, 0, "", 0},
		"ahead":                          {61 * time.Second, time.Second, "", 61 * time.Second},
		"behind":                         {-90 * time.Second, 0, "", -90 * time.Second},
		"an answer that took too long":   {time.Hour, 3 * time.Second, "", 0},
		"no date":                        {time.Hour, 0, "yesterday", 0},
		"a slow answer is no difference": {500 * time.Millisecond, 1900 * time.Millisecond, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := &skewMeter{}
			middle := hubTime.Add(row.ahead)
			date := hubTime.Format(http.TimeFormat)
			if row.date != "" {
				date = row.date
			}
			m.observe(middle.Add(-row.trip/2), middle.Add(row.trip/2), date)
			got, known := m.seconds()
			assert.Equal(t, row.want != 0, known)
			if known {
				assert.InDelta(t, row.want.Seconds(), got.Seconds(), 1)
				assert.Zero(t, got%time.Second)
			}
		})
	}
}

func TestTheHeartbeatTellsOfAClockThatIsWrong(t *testing.T) {
	f := newFixture(t)
	f.life.config.CheckinInterval = 5 * time.Millisecond
	f.life.config.Clock = ahead{f.life.config.Clock, 5 * time.Minute}
	f.has(f.stored())
	f.starts()
	f.eventually(func() bool {
		f.hub.mutex.Lock()
		defer f.hub.mutex.Unlock()
		for _, beat := range f.hub.beats {
			var cluster fleet.Cluster
			require.NoError(t, json.Unmarshal([]byte(beat), &cluster))
			if skew := cluster.Status.Agent.ClockSkew; skew != nil && skew.Round(10*time.Second) == 5*time.Minute {
				return true
			}
		}
		return false
	}, "the difference")
}

// ahead is a clock that is wrong.
type ahead struct {
	clock.WithTicker
	by time.Duration
}

func (a ahead) Now() time.Time { return a.WithTicker.Now().Add(a.by) }

func TestOneHeartbeatIsOneRequestToTheHub(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored(), f.bootstrap())
	f.starts()
	f.settles(oldToken)
	before := f.hub.count("")
	credential := f.storedNow()
	h, err := f.life.dial(credential.access, credential.mode)
	require.NoError(t, err)
	s := newSession(h, credential)
	defer s.hub.close()
	require.NoError(t, s.beat(t.Context(), f.life.report(t.Context(), s, "")))
	assert.Equal(t, before+1, f.hub.count(""))
}
