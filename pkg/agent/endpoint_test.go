package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubetesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// switchingAgent is an agent whose hub has another address.
type switchingAgent struct {
	*testAgent
	other *stubHub
}

func newSwitchingAgent(t *testing.T) *switchingAgent {
	t.Helper()
	return &switchingAgent{testAgent: newTestAgent(t), other: newStubHub(t)}
}

// putHubConfigMap writes ConfigMap fleet-agent-hub.
func (m *switchingAgent) putHubConfigMap(url, ca, mode string) {
	m.Helper()
	m.putConfigMap(agenttest.AgentHubConfigMap(url, ca, mode))
}

// putTLSMode writes ConfigMap fleet-agent.
func (m *switchingAgent) putTLSMode(mode string) {
	m.Helper()
	m.putConfigMap(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentConfigMap},
		Data:       map[string]string{"config": `{"agentTLSMode":"` + mode + `"}`},
	})
}

// waitForIteration writes ConfigMap fleet-agent, and waits for an iteration that has read it to end: every iteration reads it once, so the
// iteration that reads it after a second write is a later one.
func (m *switchingAgent) waitForIteration(mode string) {
	m.Helper()
	for range 2 {
		m.putTLSMode(mode)
		m.eventually(func() bool {
			read := false
			for _, action := range m.core.Actions() {
				switch verb := action.GetVerb(); {
				case action.GetResource().Resource != "configmaps":
				case verb == "create" || verb == "update":
					read = false
				case verb == "get" && action.(kubetesting.GetAction).GetName() == registration.AgentConfigMap:
					read = true
				}
			}
			return read
		}, "read ConfigMap fleet-agent")
	}
}

// bootstrapOther returns the bootstrap Secret that an import at the other address writes.
func (m *switchingAgent) bootstrapOther(edits ...string) *corev1.Secret {
	return agenttest.BootstrapSecret(m.other.server.URL, m.other.ca(), edits...)
}

// waitUntilWorkingAt waits until the agent works at the address with the token, and nothing of an import is left.
func (f *testAgent) waitUntilWorkingAt(at *stubHub, token string) {
	f.Helper()
	f.eventually(func() bool {
		s := f.storedNow()
		return strings.TrimRight(s.Server, "/") == at.server.URL && s.Token == token && at.count("/status as "+token) > 0 &&
			f.secret(registration.BootstrapSecret) == nil && f.secret(registration.PendingSecret) == nil && f.isWatching()
	}, "work at "+at.server.URL)
}

// reported returns status.agent.hub from the last heartbeat.
func (h *stubHub) reported() map[string]any {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if len(h.heartbeats) == 0 {
		return nil
	}
	var patch struct {
		Status struct{ Agent struct{ Hub map[string]any } }
	}
	if err := json.Unmarshal([]byte(h.heartbeats[len(h.heartbeats)-1]), &patch); err != nil {
		h.t.Error(err)
	}
	return patch.Status.Agent.Hub
}

// waitForPending waits until the heartbeats report a pending endpoint with the text.
func (m *switchingAgent) waitForPending(text string) {
	m.Helper()
	m.eventually(func() bool {
		pending, _ := m.hub.reported()["pending"].(string)
		return strings.Contains(pending, text)
	}, "pending: "+text)
}

func TestSwitchEndpoint(t *testing.T) {
	rows := map[string]func(m *switchingAgent){
		"a bootstrap Secret": func(m *switchingAgent) { m.putSecrets(m.bootstrapOther()) },
		"a ConfigMap":        func(m *switchingAgent) { m.putHubConfigMap(m.other.server.URL, m.other.ca(), "strict") },
		"a bootstrap Secret against a ConfigMap": func(m *switchingAgent) {
			m.putHubConfigMap("https://127.0.0.1:1", "", "")
			m.putSecrets(m.bootstrapOther())
		},
	}
	for name, configure := range rows {
		for _, running := range []bool{false, true} {
			t.Run(name+map[bool]string{false: " at the start", true: " while running"}[running], func(t *testing.T) {
				m := newSwitchingAgent(t)
				m.putSecrets(m.stored())
				if running {
					m.start()
					m.waitUntilSettled(oldToken)
				}
				before := len(m.core.Actions())
				configure(m)
				if !running {
					m.start()
				}
				m.waitUntilWorkingAt(m.other, oldToken)
				assert.Empty(t, m.other.registrations())
				assert.Nil(t, m.other.reported()["pending"])
				assert.Equal(t, m.other.server.URL, m.other.reported()["apiServerURL"])
				updates := 0
				for _, write := range m.writes(before) {
					if write == "update fleet-agent" {
						updates++
					}
				}
				assert.Equal(t, 1, updates, "one write")
			})
		}
	}
}

func TestSwitchEndpointThatFailsIsReported(t *testing.T) {
	rows := map[string]struct {
		configure func(m *switchingAgent)
		want      string
	}{
		"unreachable": {
			func(m *switchingAgent) {
				m.other.server.Close()
				m.putHubConfigMap(m.other.server.URL, m.other.ca(), "")
			}, "the hub is unreachable",
		},
		"strict, no CA": {
			func(m *switchingAgent) { m.putHubConfigMap(m.other.server.URL, "", "strict") }, "agentTLSMode is strict, but there is no CA to trust; set key apiServerCA of ConfigMap fleet-agent-hub",
		},
		"garbage": {
			func(m *switchingAgent) { m.putHubConfigMap("garbage", "", "") }, "its key apiServerURL is unusable",
		},
		"a proxy": {
			func(m *switchingAgent) {
				m.other.fault = func(*http.Request) (int, string) { return 401, "<h1>401</h1>" }
				m.putSecrets(m.bootstrapOther())
			}, "the hub, or a proxy before it, answered with an error",
		},
		"another hub, no bootstrap Secret": {
			func(m *switchingAgent) {
				m.other.rejected[oldToken] = true
				m.putHubConfigMap(m.other.server.URL, m.other.ca(), "")
			},
			"the hub there rejects the stored credential",
		},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			m := newSwitchingAgent(t)
			m.config.CheckinInterval = time.Hour // a change is reported at once nevertheless
			m.putSecrets(m.stored())
			m.start()
			m.waitUntilSettled(oldToken)
			before := m.storedNow()
			row.configure(m)
			m.waitForPending(row.want)
			m.waitForLog("Cannot switch to ")
			assert.Equal(t, before, m.storedNow())
			assert.Empty(t, m.other.registrations())
			assert.Equal(t, m.hub.server.URL, m.hub.reported()["apiServerURL"])
			assert.Equal(t, 1, m.countLogs("Cannot switch to "), "logged once, tried often")

			m.putHubConfigMap(m.hub.server.URL, m.hub.ca(), "")
			m.putTLSMode("system-store")
			if m.secret(registration.BootstrapSecret) != nil {
				m.deleteSecret(registration.BootstrapSecret)
			}
			m.eventually(func() bool { return m.hub.reported()["pending"] == nil }, "nothing pending any more")
		})
	}
}

// Somebody who may write ConfigMaps in the agent's namespace, and no Secrets, wants the credential to be sent without TLS, or to a server
// that it would not trust.
func TestSwitchEndpointBelowTheRegistration(t *testing.T) {
	received := make(chan string, 100)
	plain := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.Header.Get("Authorization") }))
	t.Cleanup(plain.Close)
	for name, row := range map[string]struct {
		mode      string // with which the agent registered
		configure func(m *switchingAgent)
		want      string
	}{
		"mode of ConfigMap fleet-agent-hub": {
			"strict", func(m *switchingAgent) { m.putHubConfigMap(m.other.server.URL, m.other.ca(), "system-store") }, "has registered in mode strict",
		},
		"mode of ConfigMap fleet-agent": {"strict", func(m *switchingAgent) { m.putTLSMode("system-store") }, "has registered in mode strict"},
		"http":                          {"system-store", func(m *switchingAgent) { m.putHubConfigMap(plain.URL, "", "") }, "would be sent unencrypted"},
		"http in mode strict": {
			"strict", func(m *switchingAgent) { m.putHubConfigMap(plain.URL, m.other.ca(), "strict") }, "agentTLSMode is strict, but the address of the hub is http://",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newSwitchingAgent(t)
			m.config.CheckinInterval = time.Hour
			m.putTLSMode(row.mode)
			m.putSecrets(m.stored("agentTLSMode", row.mode, "registeredTLSMode", row.mode, "registeredServer", m.hub.server.URL))
			m.start()
			m.waitUntilSettled(oldToken)
			before := m.storedNow()
			row.configure(m)
			m.waitForPending(row.want)
			m.waitForLog("Cannot switch to ")
			assert.Equal(t, before, m.storedNow())
			assert.Zero(t, m.other.count(""), "it received a request")
			assert.Empty(t, received, "it received a credential")
		})
	}
	t.Run("an import lowers the mode", func(t *testing.T) {
		m := newSwitchingAgent(t)
		m.putSecrets(m.stored("agentTLSMode", "strict", "registeredTLSMode", "strict", "registeredServer", m.hub.server.URL))
		m.putTLSMode("system-store")
		m.putSecrets(m.bootstrapOther())
		m.start()
		m.waitUntilWorkingAt(m.other, oldToken)
		assert.Equal(t, hubclient.Protection{Mode: config.TLSModeSystemStore, Server: m.other.server.URL}, m.storedNow().RegisteredWith)
	})
	t.Run("Fleet's agent has not recorded how it registered", func(t *testing.T) {
		m := newSwitchingAgent(t)
		m.putSecrets(m.stored("agentTLSMode", "strict"))
		m.putHubConfigMap(m.other.server.URL, m.other.ca(), "system-store")
		m.start()
		m.waitForPending("has registered in mode strict")
		assert.Zero(t, m.other.count(""))
	})
}

func TestSwitchEndpointOnceItWorks(t *testing.T) {
	m := newSwitchingAgent(t)
	m.other.fault = func(*http.Request) (int, string) { return 503, "<h1>503</h1>" }
	m.putSecrets(m.stored(), m.bootstrapOther())
	m.start()
	m.waitForPending("unable to handle the request")
	assert.NotNil(t, m.secret(registration.BootstrapSecret), "it is needed until it has worked")
	m.other.set(func() { m.other.fault = nil })
	m.waitUntilWorkingAt(m.other, oldToken)
}

func TestSwitchEndpointWhileNoneWorks(t *testing.T) {
	down := func(*http.Request) (int, string) { return 503, "<h1>503</h1>" }
	for name, comesBack := range map[string]func(m *switchingAgent) *stubHub{
		"the old one comes back": func(m *switchingAgent) *stubHub { return m.hub },
		"the new one comes up":   func(m *switchingAgent) *stubHub { return m.other },
	} {
		t.Run(name, func(t *testing.T) {
			m := newSwitchingAgent(t)
			m.hub.fault, m.other.fault = down, down
			m.putSecrets(m.stored(), m.bootstrapOther())
			before := m.storedNow()
			m.start()
			m.eventually(func() bool {
				return m.hub.count("bundledeployments as "+oldToken) > 2 && m.other.count("bundledeployments as "+oldToken) > 2
			}, "both asked")
			assert.Equal(t, before, m.storedNow())
			back := comesBack(m)
			back.set(func() { back.fault = nil })
			m.eventually(func() bool { return back.count("/status as "+oldToken) > 0 }, "work")
			assert.Equal(t, back.server.URL, m.storedNow().Server)
			assert.Empty(t, m.other.registrations())
		})
	}
}

func TestSwitchEndpointThatRejectsTheCredentialRegisters(t *testing.T) {
	for name, old := range map[string]func(m *switchingAgent){
		"the old endpoint works":          func(*switchingAgent) {},
		"the old endpoint is dead":        func(m *switchingAgent) { m.hub.server.Close() },
		"the old endpoint rejects it too": func(m *switchingAgent) { m.hub.rejected[oldToken] = true },
	} {
		t.Run(name, func(t *testing.T) {
			m := newSwitchingAgent(t)
			m.other.rejected[oldToken] = true
			old(m)
			m.putSecrets(m.stored(), m.bootstrapOther())
			m.start()
			m.waitUntilWorkingAt(m.other, newToken)
			assert.GreaterOrEqual(t, m.other.count("bundledeployments as "+oldToken), rejectionsUntilCertain, "certain")
			assert.Len(t, m.other.registrations(), 1)
		})
	}
}

func TestSwitchEndpointIsNotUndoneByAnOldConfigMap(t *testing.T) {
	m := newSwitchingAgent(t)
	m.putHubConfigMap(m.hub.server.URL, m.hub.ca(), "system-store")
	m.putSecrets(m.stored(), m.bootstrapOther())
	m.start()
	m.waitUntilWorkingAt(m.other, oldToken)
	asked := m.hub.count("")
	m.waitForIteration("system-store")
	assert.Equal(t, m.other.server.URL, m.storedNow().Server)
	assert.Equal(t, asked, m.hub.count(""), "no request")
	m.putHubConfigMap(m.hub.server.URL+"/", m.hub.ca(), "system-store")
	m.waitUntilWorkingAt(m.hub, oldToken) // a changed ConfigMap counts again
}

func TestSwitchEndpointBackToTheConfigMap(t *testing.T) {
	m := newSwitchingAgent(t)
	m.putHubConfigMap(m.hub.server.URL, m.hub.ca(), "")
	m.putSecrets(m.stored(), m.bootstrapOther())
	m.start()
	m.waitUntilWorkingAt(m.other, oldToken)
	m.other.set(func() { m.other.fault = func(*http.Request) (int, string) { return 502, "<h1>502</h1>" } })
	m.config.CheckinInterval = time.Millisecond
	m.runUntil(func() bool { return m.storedNow().Server == m.hub.server.URL })
	assert.Empty(t, m.hub.registrations())
}

func TestSwitchTLSMode(t *testing.T) {
	m := newSwitchingAgent(t)
	m.putSecrets(m.stored())
	m.start()
	m.waitUntilSettled(oldToken)
	m.putTLSMode("strict")
	m.eventually(func() bool { return m.storedNow().Mode == "strict" }, "the mode that works is stored")
	m.eventually(func() bool { return m.hub.reported()["agentTLSMode"] == "strict" }, "and reported")
	assert.Empty(t, m.hub.registrations())
}

func TestSwitchTLSModeThatCannotWork(t *testing.T) {
	m := newSwitchingAgent(t)
	plain := newStubHub(t)
	plain.server.Close()
	m.putTLSMode("strict")
	m.putSecrets(agenttest.StoredSecret(t, plain.server.URL, "", oldToken, "agentTLSMode", ""))
	m.start()
	m.waitForLog("Waiting for the hub, keeping the stored credential")
	assert.Zero(t, m.countLogs("is unusable"))
	assert.Equal(t, oldToken, m.storedToken())
}

func TestTLSModeIsRecordedForEarlierAgents(t *testing.T) {
	m := newSwitchingAgent(t)
	m.putTLSMode("strict")
	m.putSecrets(m.stored("agentTLSMode", ""))
	before := len(m.core.Actions())
	m.start()
	m.waitUntilSettled(oldToken)
	m.eventually(func() bool { return m.storedNow().Mode == "strict" }, "the mode it works in")
	assert.Equal(t, []string{"update fleet-agent"}, m.writes(before))
}

// The agent is stopped at its n-th write on the member, before or after the write was carried out; another process continues.
func TestSwitchEndpointSurvivesAStopAtAnyWrite(t *testing.T) {
	for _, carriedOut := range []bool{false, true} {
		for n := 1; n <= 3; n++ {
			m := newSwitchingAgent(t)
			m.putSecrets(m.stored(), m.bootstrapOther())
			killed := m.killAtWrite(n, carriedOut, func() bool { return m.other.count("/status") > 0 && m.secret(registration.BootstrapSecret) == nil })
			m.start()
			m.waitUntilWorkingAt(m.other, oldToken)
			assert.Empty(t, m.other.registrations())
			assert.Equal(t, n < 3, killed, "a switch has two writes")
		}
	}
}
