package heartbeat

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// recordingHub answers patches of a Lease and of the status of a Cluster, and records them.
type recordingHub struct {
	use          *credential.InUse
	useToken     func(token string) // makes the agent work with another token
	patches      []string           // resource and the JSON that was sent
	leaseAnswer  hubAnswer
	statusAnswer hubAnswer
	annotations  map[string]string
	// refusesCredential makes the policy for Leases refuse the annotation with the credential ID.
	refusesCredential bool
}

// hubAnswer is an error of the API server, or of a proxy before it. The zero value is no error.
type hubAnswer struct {
	code  int
	proxy bool
}

func (a hubAnswer) write(w http.ResponseWriter) {
	if a.proxy {
		w.Header().Set("Content-Type", "text/html")
	}
	w.WriteHeader(a.code)
	if a.proxy {
		_, _ = io.WriteString(w, "<h1>no</h1>")
		return
	}
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`,
		map[int]string{403: "Forbidden", 404: "NotFound", 500: "InternalError"}[a.code], a.code)
}

func newRecordingHub(t *testing.T, lease string) *recordingHub {
	t.Helper()
	r := &recordingHub{annotations: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		w.Header().Set("Content-Type", "application/json")
		if request.URL.Path == "/apis/fleet.cattle.io/v1alpha1/namespaces/fleet-default/clusters/one/status" {
			r.patches = append(r.patches, "status "+string(body))
			if r.statusAnswer.code != 0 {
				r.statusAnswer.write(w)
				return
			}
			_, _ = io.WriteString(w, `{"kind":"Cluster","apiVersion":"fleet.cattle.io/v1alpha1"}`)
			return
		}
		r.patches = append(r.patches, "lease "+string(body))
		if r.leaseAnswer.code != 0 {
			r.leaseAnswer.write(w)
			return
		}
		if r.refusesCredential && strings.Contains(string(body), registration.LeaseCredential) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"leases.coordination.k8s.io \"lease\" `+
				`is forbidden: ValidatingAdmissionPolicy 'fleet-agent-lease' with binding 'fleet-agent-lease' denied request: an agent may change only its report"}`)
			return
		}
		var sent struct {
			Metadata struct{ Annotations map[string]*string }
		}
		assert.NoError(t, json.Unmarshal(body, &sent))
		for key, value := range sent.Metadata.Annotations {
			if delete(r.annotations, key); value != nil {
				r.annotations[key] = *value
			}
		}
		answer, _ := json.Marshal(map[string]any{"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": map[string]any{"annotations": r.annotations}})
		_, _ = w.Write(answer)
	}))
	t.Cleanup(server.Close)
	r.useToken = func(token string) {
		stored, err := credential.Parse(agenttest.StoredSecret(t, agenttest.HubURL, "", token))
		require.NoError(t, err)
		stored.Server, stored.Lease, stored.Workspace = server.URL, lease, "fleet-default"
		log, _ := agenttest.Log(t)
		conn, err := (&hubclient.Dialer{Timing: *agenttest.Quick(), Clock: clock.RealClock{}, Log: log}).Dial(stored.Access)
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		r.use = credential.NewInUse(conn, stored)
	}
	r.useToken(agenttest.OldToken)
	return r
}

func TestHeartbeat_send(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC))
	agent := func(t *testing.T) *Heartbeat {
		t.Helper()
		m, _ := newMember()
		return &Heartbeat{Member: m, Clock: now, Timing: *agenttest.Quick(), Version: "test", Instance: "i"}
	}
	const renewal = `"spec":{"holderIdentity":"i","leaseDurationSeconds":60,"renewTime":"2026-01-02T03:04:05.000006Z"}`

	t.Run("the report only when it has changed", func(t *testing.T) {
		hub, h, last := newRecordingHub(t, "lease"), agent(t), lastReport{}
		for range 2 {
			interval, err := h.send(t.Context(), hub.use, &last)
			require.NoError(t, err)
			assert.Equal(t, config.DefaultLeaseInterval, interval)
		}
		require.Len(t, hub.patches, 2)
		assert.Contains(t, hub.patches[0], registration.LeaseReport)
		assert.Contains(t, hub.patches[0], renewal)
		assert.Contains(t, hub.patches[0], `"managedFields":[{}]`)
		assert.Equal(t, `lease {"metadata":{"annotations":{"muster.fleet.cattle.io/possession-proof":null}},`+renewal+`}`, hub.patches[1])

		h.Version = "next"
		h.Notes.SetPossessionProof("request-2")
		_, err := h.send(t.Context(), hub.use, &last)
		require.NoError(t, err)
		assert.Contains(t, hub.annotations[registration.LeaseReport], `"version":"next"`)
		assert.Equal(t, "request-2", hub.annotations[registration.LeaseProof])
		h.Notes.SetPossessionProof("")
		hub.annotations = map[string]string{} // somebody has deleted the Lease, and the hub has made another
		for range 2 {
			_, err = h.send(t.Context(), hub.use, &last)
			require.NoError(t, err)
		}
		assert.Contains(t, hub.annotations, registration.LeaseReport)
		assert.Contains(t, hub.patches[len(hub.patches)-1], `"managedFields":[{}]`, "the hub's new Lease has managers again")
	})
	t.Run("the credential only when the Lease names another one", func(t *testing.T) {
		hub, h, last := newRecordingHub(t, "lease"), agent(t), lastReport{}
		named := func() bool { return strings.Contains(hub.patches[len(hub.patches)-1], registration.LeaseCredential) }
		for serial, issued := range []time.Time{now.Now(), now.Now().Add(time.Hour)} {
			hub.useToken(agenttest.JWT("uid", issued, issued.Add(24*time.Hour), serial))
			for n := range 3 {
				_, err := h.send(t.Context(), hub.use, &last)
				require.NoError(t, err)
				assert.Equal(t, n == 0, named())
				assert.Equal(t, fmt.Sprint("JTI=", serial), hub.annotations[registration.LeaseCredential])
			}
		}

		wake := h.Notes.waker()
		delete(hub.annotations, registration.LeaseCredential) // the hub has made the Lease again
		for n := range 3 {
			_, err := h.send(t.Context(), hub.use, &last)
			require.NoError(t, err)
			assert.Equal(t, n == 1, named())
		}
		assertOpen(t, wake)
		hub.annotations[registration.LeaseCredential] = "JTI=thief"
		_, err := h.send(t.Context(), hub.use, &last)
		require.NoError(t, err)
		assert.True(t, isClosed(wake), "the credential is named again at once")
		_, err = h.send(t.Context(), hub.use, &last)
		require.NoError(t, err)
		assert.Equal(t, "JTI=1", hub.annotations[registration.LeaseCredential])
	})
	t.Run("a policy that does not let the agent name its credential", func(t *testing.T) {
		hub, h, last := newRecordingHub(t, "lease"), agent(t), lastReport{}
		hub.useToken(agenttest.JWT("uid", now.Now(), now.Now().Add(24*time.Hour), 1))
		hub.refusesCredential = true
		wake := h.Notes.waker()
		for range 2 {
			_, err := h.send(t.Context(), hub.use, &last)
			require.NoError(t, err)
			hub.annotations[registration.LeaseCredential] = "JTI=0" // from before a downgrade of the hub
		}
		assertOpen(t, wake)
		require.Len(t, hub.patches, 3, "it is tried once")
		for n, patch := range hub.patches {
			assert.True(t, strings.HasPrefix(patch, "lease "), patch)
			assert.Equal(t, n == 0, strings.Contains(patch, registration.LeaseCredential))
		}
		hub.useToken(agenttest.JWT("uid", now.Now(), now.Now().Add(24*time.Hour), 2))
		hub.refusesCredential = false
		_, err := h.send(t.Context(), hub.use, &last)
		require.NoError(t, err)
		assert.Equal(t, "JTI=2", hub.annotations[registration.LeaseCredential], "after the next renewal it is tried again")
	})
	t.Run("the status where the hub makes no Lease", func(t *testing.T) {
		hub, h := newRecordingHub(t, ""), agent(t)
		h.Notes.SetPendingEndpoint("", "elsewhere: dead")
		h.Notes.SetPossessionProof("request-2")
		h.Notes.SetKeptReleases([]string{"shop/cart", "shop/search"})
		h.Notes.SetDeploymentsStalled("reading the history key: forbidden")
		interval, err := h.send(t.Context(), hub.use, &lastReport{})
		require.NoError(t, err)
		assert.Equal(t, config.DefaultCheckinInterval, interval)
		require.Len(t, hub.patches, 1)
		assert.Contains(t, hub.patches[0], `"lastSeen":"2026-01-02T03:04:05Z"`)
		assert.Contains(t, hub.patches[0], `"checkinInterval":"15m0s"`)
		assert.Contains(t, hub.patches[0], `"pending":"elsewhere: dead"`)
		assert.Contains(t, hub.patches[0], `"deploymentsStalled":"reading the history key: forbidden"`)
		assert.Contains(t, hub.patches[0], `"vouches":"request-2"`)
		assert.Contains(t, hub.patches[0], `"keptReleases":{"count":2,"names":"shop/cart, shop/search"}`)

		wake := h.Notes.waker()
		h.Notes.SetKeptReleases([]string{"shop/cart", "shop/search"})
		assert.False(t, isClosed(wake), "the same releases are not reported again")
		h.Notes.SetKeptReleases(slices.Repeat([]string{"shop/cart"}, 300))
		assert.True(t, isClosed(wake))
		var kept fleet.AgentKeptReleases
		require.NoError(t, json.Unmarshal(h.Notes.read().keptReleases, &kept))
		assert.Equal(t, 300, kept.Count)
		assert.Len(t, kept.Names, 2048)
		h.Notes.SetKeptReleases(nil)
		wake = h.Notes.waker()
		h.Notes.SetDeploymentsStalled("reading the history key: another error")
		assert.False(t, isClosed(wake), "another text waits for the next heartbeat")
		h.Notes.SetDeploymentsStalled("")
		assert.True(t, isClosed(wake))
		_, err = h.send(t.Context(), hub.use, &lastReport{})
		require.NoError(t, err)
		assert.Contains(t, hub.patches[1], `"keptReleases":null,"deploymentsStalled":null`)
	})
	for _, answer := range []int{http.StatusForbidden, http.StatusNotFound} {
		t.Run(fmt.Sprintf("the status after %d", answer), func(t *testing.T) {
			hub, h := newRecordingHub(t, "lease"), agent(t)
			hub.leaseAnswer = hubAnswer{code: answer}
			_, err := h.send(t.Context(), hub.use, &lastReport{})
			require.NoError(t, err)
			require.Len(t, hub.patches, 2)
			assert.Contains(t, hub.patches[1], "status ")
			require.NoError(t, h.ProvePossession(t.Context(), hub.use, "request-2"))
			require.Len(t, hub.patches, 4)
			assert.Equal(t, `status {"status":{"agent":{"vouches":"request-2"}}}`, hub.patches[3])
		})
	}
	t.Run("an error of the hub is not the absence of a Lease", func(t *testing.T) {
		for _, answer := range []hubAnswer{{code: 500}, {code: 403, proxy: true}, {code: 404, proxy: true}} {
			hub, h := newRecordingHub(t, "lease"), agent(t)
			hub.leaseAnswer = answer
			interval, err := h.send(t.Context(), hub.use, &lastReport{})
			require.Error(t, err)
			assert.Equal(t, config.DefaultLeaseInterval, interval)
			require.Error(t, h.ProvePossession(t.Context(), hub.use, "request-2"))
			assert.Len(t, hub.patches, 2, "%+v", answer)
		}
	})
	t.Run("the interval of the Lease if the hub takes neither", func(t *testing.T) {
		hub, h := newRecordingHub(t, "lease"), agent(t)
		hub.leaseAnswer, hub.statusAnswer = hubAnswer{code: 403}, hubAnswer{code: 403}
		interval, err := h.send(t.Context(), hub.use, &lastReport{})
		require.Error(t, err)
		assert.Equal(t, config.DefaultLeaseInterval, interval, "the retries after a quarantine")
	})
	t.Run("no heartbeat revokes a proof that the hub has", func(t *testing.T) {
		for _, lease := range []string{"lease", ""} {
			hub, h := newRecordingHub(t, lease), agent(t)
			core := h.Member.Core.(*kubefake.Clientset)
			core.PrependReactor("list", "nodes", func(kubetesting.Action) (bool, runtime.Object, error) { // the heartbeat has begun
				return false, nil, h.ProvePossession(t.Context(), hub.use, "request-2")
			})
			_, err := h.send(t.Context(), hub.use, &lastReport{})
			require.NoError(t, err)
			require.Len(t, hub.patches, 2)
			for _, patch := range hub.patches {
				assert.Contains(t, patch, `"request-2"`)
			}
		}
	})
	t.Run("a heartbeat at once after a proof that has failed", func(t *testing.T) {
		hub, h := newRecordingHub(t, ""), agent(t)
		wake := h.Notes.waker()
		require.NoError(t, h.ProvePossession(t.Context(), hub.use, "request-2"))
		assertOpen(t, wake)
		hub.statusAnswer = hubAnswer{code: 500}
		require.Error(t, h.ProvePossession(t.Context(), hub.use, "request-2"))
		<-wake
	})
	t.Run("an interval that a person has set decides for both", func(t *testing.T) {
		for _, lease := range []string{"lease", ""} {
			hub, h := newRecordingHub(t, lease), agent(t)
			h.Interval = time.Second / 2
			interval, err := h.send(t.Context(), hub.use, &lastReport{})
			require.NoError(t, err)
			assert.Equal(t, h.Interval, interval)
		}
	})
}

func TestLastReport_encode(t *testing.T) {
	l := lastReport{}
	with := func(skew time.Duration) string {
		text, err := l.encode(statusPatch{ClockSkew: &metav1.Duration{Duration: skew}})
		require.NoError(t, err)
		return text
	}
	none, err := l.encode(statusPatch{})
	require.NoError(t, err)
	assert.Equal(t, none, with(9*time.Second))
	first := with(30 * time.Second)
	assert.Contains(t, first, `"clockSkew":"30s"`)
	assert.Equal(t, first, with(38*time.Second))
	assert.Equal(t, first, with(21*time.Second))
	assert.Contains(t, with(40*time.Second), `"clockSkew":"40s"`)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
