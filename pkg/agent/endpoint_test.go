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

// moving is an agent that works with its stored credential, and a hub with a second address.
type moving struct {
	*fixture
	there *stubHub
}

func newMoving(t *testing.T) *moving {
	t.Helper()
	return &moving{fixture: newFixture(t), there: newStubHub(t)}
}

// configures writes ConfigMap fleet-agent-hub.
func (m *moving) configures(url, ca, mode string) {
	m.Helper()
	m.hasConfigMap(agenttest.HubConfigMap(url, ca, mode))
}

func (m *moving) configuresMode(mode string) {
	m.Helper()
	m.hasConfigMap(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentConfigMap},
		Data:       map[string]string{"config": `{"agentTLSMode":"` + mode + `"}`},
	})
}

// iteratesWithMode writes ConfigMap fleet-agent, and waits for an iteration that has read it to end: every iteration reads it once, so the
// iteration that reads it after a second write is a later one.
func (m *moving) iteratesWithMode(mode string) {
	m.Helper()
	for range 2 {
		m.configuresMode(mode)
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

// bootstrapThere is what an import at the other address writes.
func (m *moving) bootstrapThere(edits ...string) *corev1.Secret {
	return agenttest.BootstrapSecret(m.there.server.URL, m.there.ca(), edits...)
}

// arrives waits until the agent works at the address with the token, and nothing of an import is left.
func (f *fixture) arrives(at *stubHub, token string) {
	f.Helper()
	f.eventually(func() bool {
		s := f.storedNow()
		return strings.TrimRight(s.Server, "/") == at.server.URL && s.Token == token && at.count("/status as "+token) > 0 &&
			f.secret(registration.BootstrapSecret) == nil && f.secret(registration.PendingSecret) == nil && f.watches()
	}, "work at "+at.server.URL)
}

// reported is status.agent.hub of the last heartbeat.
func (h *stubHub) reported() map[string]any {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if len(h.beats) == 0 {
		return nil
	}
	var patch struct {
		Status struct{ Agent struct{ Hub map[string]any } }
	}
	if err := json.Unmarshal([]byte(h.beats[len(h.beats)-1]), &patch); err != nil {
		h.t.Error(err)
	}
	return patch.Status.Agent.Hub
}

func (m *moving) reportsPending(text string) {
	m.Helper()
	m.eventually(func() bool {
		pending, _ := m.hub.reported()["pending"].(string)
		return strings.Contains(pending, text)
	}, "pending: "+text)
}

func TestSwitchEndpoint(t *testing.T) {
	rows := map[string]func(m *moving){
		"a bootstrap Secret": func(m *moving) { m.has(m.bootstrapThere()) },
		"a ConfigMap":        func(m *moving) { m.configures(m.there.server.URL, m.there.ca(), "strict") },
		"a bootstrap Secret against a ConfigMap": func(m *moving) {
			m.configures("https://127.0.0.1:1", "", "")
			m.has(m.bootstrapThere())
		},
	}
	for name, configure := range rows {
		for _, running := range []bool{false, true} {
			t.Run(name+map[bool]string{false: " at the start", true: " while running"}[running], func(t *testing.T) {
				m := newMoving(t)
				m.has(m.stored())
				if running {
					m.starts()
					m.settles(oldToken)
				}
				before := len(m.core.Actions())
				configure(m)
				if !running {
					m.starts()
				}
				m.arrives(m.there, oldToken)
				assert.Empty(t, m.there.registrations())
				assert.Nil(t, m.there.reported()["pending"])
				assert.Equal(t, m.there.server.URL, m.there.reported()["apiServerURL"])
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
		configure func(m *moving)
		want      string
	}{
		"unreachable": {
			func(m *moving) { m.there.server.Close(); m.configures(m.there.server.URL, m.there.ca(), "") }, "the hub is unreachable",
		},
		"strict, no CA": {
			func(m *moving) { m.configures(m.there.server.URL, "", "strict") }, "agentTLSMode is strict, but there is no CA to trust; set key apiServerCA of ConfigMap fleet-agent-hub",
		},
		"garbage": {
			func(m *moving) { m.configures("garbage", "", "") }, "its key apiServerURL is unusable",
		},
		"a proxy": {
			func(m *moving) {
				m.there.fault = func(*http.Request) (int, string) { return 401, "<h1>401</h1>" }
				m.has(m.bootstrapThere())
			}, "the hub, or a proxy before it, answered with an error",
		},
		"another hub, no bootstrap Secret": {
			func(m *moving) { m.there.refused[oldToken] = true; m.configures(m.there.server.URL, m.there.ca(), "") },
			"the hub there rejects the stored credential",
		},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			m.config.CheckinInterval = time.Hour // a change is reported at once nevertheless
			m.has(m.stored())
			m.starts()
			m.settles(oldToken)
			before := m.storedNow()
			row.configure(m)
			m.reportsPending(row.want)
			m.says("Cannot switch to ")
			assert.Equal(t, before, m.storedNow())
			assert.Empty(t, m.there.registrations())
			assert.Equal(t, m.hub.server.URL, m.hub.reported()["apiServerURL"])
			assert.Equal(t, 1, m.said("Cannot switch to "), "logged once, tried often")

			m.configures(m.hub.server.URL, m.hub.ca(), "")
			m.configuresMode("system-store")
			if m.secret(registration.BootstrapSecret) != nil {
				m.lacks(registration.BootstrapSecret)
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
		configure func(m *moving)
		want      string
	}{
		"mode of ConfigMap fleet-agent-hub": {
			"strict", func(m *moving) { m.configures(m.there.server.URL, m.there.ca(), "system-store") }, "has registered in mode strict",
		},
		"mode of ConfigMap fleet-agent": {"strict", func(m *moving) { m.configuresMode("system-store") }, "has registered in mode strict"},
		"http":                          {"system-store", func(m *moving) { m.configures(plain.URL, "", "") }, "would be sent unencrypted"},
		"http in mode strict": {
			"strict", func(m *moving) { m.configures(plain.URL, m.there.ca(), "strict") }, "agentTLSMode is strict, but the address of the hub is http://",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			m.config.CheckinInterval = time.Hour
			m.configuresMode(row.mode)
			m.has(m.stored("agentTLSMode", row.mode, "registeredTLSMode", row.mode, "registeredServer", m.hub.server.URL))
			m.starts()
			m.settles(oldToken)
			before := m.storedNow()
			row.configure(m)
			m.reportsPending(row.want)
			m.says("Cannot switch to ")
			assert.Equal(t, before, m.storedNow())
			assert.Zero(t, m.there.count(""), "it received a request")
			assert.Empty(t, received, "it received a credential")
		})
	}
	t.Run("an import lowers the mode", func(t *testing.T) {
		m := newMoving(t)
		m.has(m.stored("agentTLSMode", "strict", "registeredTLSMode", "strict", "registeredServer", m.hub.server.URL))
		m.configuresMode("system-store")
		m.has(m.bootstrapThere())
		m.starts()
		m.arrives(m.there, oldToken)
		assert.Equal(t, hubclient.Protection{Mode: config.TLSModeSystemStore, Server: m.there.server.URL}, m.storedNow().RegisteredWith)
	})
	t.Run("an earlier agent has not recorded how it registered", func(t *testing.T) {
		m := newMoving(t)
		m.has(m.stored("agentTLSMode", "strict"))
		m.configures(m.there.server.URL, m.there.ca(), "system-store")
		m.starts()
		m.reportsPending("has registered in mode strict")
		assert.Zero(t, m.there.count(""))
	})
}

func TestSwitchEndpointOnceItWorks(t *testing.T) {
	m := newMoving(t)
	m.there.fault = func(*http.Request) (int, string) { return 503, "<h1>503</h1>" }
	m.has(m.stored(), m.bootstrapThere())
	m.starts()
	m.reportsPending("unable to handle the request")
	assert.NotNil(t, m.secret(registration.BootstrapSecret), "it is needed until it has worked")
	m.there.set(func() { m.there.fault = nil })
	m.arrives(m.there, oldToken)
}

func TestSwitchEndpointWhileNoneWorks(t *testing.T) {
	down := func(*http.Request) (int, string) { return 503, "<h1>503</h1>" }
	for name, comesBack := range map[string]func(m *moving) *stubHub{
		"the old one comes back": func(m *moving) *stubHub { return m.hub },
		"the new one comes up":   func(m *moving) *stubHub { return m.there },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			m.hub.fault, m.there.fault = down, down
			m.has(m.stored(), m.bootstrapThere())
			before := m.storedNow()
			m.starts()
			m.eventually(func() bool {
				return m.hub.count("bundledeployments as "+oldToken) > 2 && m.there.count("bundledeployments as "+oldToken) > 2
			}, "both asked")
			assert.Equal(t, before, m.storedNow())
			back := comesBack(m)
			back.set(func() { back.fault = nil })
			m.eventually(func() bool { return back.count("/status as "+oldToken) > 0 }, "work")
			assert.Equal(t, back.server.URL, m.storedNow().Server)
			assert.Empty(t, m.there.registrations())
		})
	}
}

func TestSwitchEndpointThatRejectsTheCredentialRegisters(t *testing.T) {
	for name, old := range map[string]func(m *moving){
		"the old endpoint works":          func(*moving) {},
		"the old endpoint is dead":        func(m *moving) { m.hub.server.Close() },
		"the old endpoint rejects it too": func(m *moving) { m.hub.refused[oldToken] = true },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoving(t)
			m.there.refused[oldToken] = true
			old(m)
			m.has(m.stored(), m.bootstrapThere())
			m.starts()
			m.arrives(m.there, newToken)
			assert.GreaterOrEqual(t, m.there.count("bundledeployments as "+oldToken), certainly, "certain")
			assert.Len(t, m.there.registrations(), 1)
		})
	}
}

func TestSwitchEndpointIsNotUndoneByAnOldConfigMap(t *testing.T) {
	m := newMoving(t)
	m.configures(m.hub.server.URL, m.hub.ca(), "system-store")
	m.has(m.stored(), m.bootstrapThere())
	m.starts()
	m.arrives(m.there, oldToken)
	asked := m.hub.count("")
	m.iteratesWithMode("system-store")
	assert.Equal(t, m.there.server.URL, m.storedNow().Server)
	assert.Equal(t, asked, m.hub.count(""), "no request")
	m.configures(m.hub.server.URL+"/", m.hub.ca(), "system-store")
	m.arrives(m.hub, oldToken) // a changed ConfigMap counts again
}

func TestSwitchEndpointBackToTheConfigMap(t *testing.T) {
	m := newMoving(t)
	m.configures(m.hub.server.URL, m.hub.ca(), "")
	m.has(m.stored(), m.bootstrapThere())
	m.starts()
	m.arrives(m.there, oldToken)
	m.there.set(func() { m.there.fault = func(*http.Request) (int, string) { return 502, "<h1>502</h1>" } })
	m.config.CheckinInterval = time.Millisecond
	m.runsUntil(func() bool { return m.storedNow().Server == m.hub.server.URL })
	assert.Empty(t, m.hub.registrations())
}

func TestSwitchTLSMode(t *testing.T) {
	m := newMoving(t)
	m.has(m.stored())
	m.starts()
	m.settles(oldToken)
	m.configuresMode("strict")
	m.eventually(func() bool { return m.storedNow().Mode == "strict" }, "the mode that works is stored")
	m.eventually(func() bool { return m.hub.reported()["agentTLSMode"] == "strict" }, "and reported")
	assert.Empty(t, m.hub.registrations())
}

func TestSwitchTLSModeThatCannotWork(t *testing.T) {
	m := newMoving(t)
	plain := newStubHub(t)
	plain.server.Close()
	m.configuresMode("strict")
	m.has(agenttest.StoredSecret(t, plain.server.URL, "", oldToken, "agentTLSMode", ""))
	m.starts()
	m.says("Waiting for the hub, keeping the stored credential")
	assert.Zero(t, m.said("is unusable"))
	assert.Equal(t, oldToken, m.storedToken())
}

func TestTLSModeIsRecordedForEarlierAgents(t *testing.T) {
	m := newMoving(t)
	m.configuresMode("strict")
	m.has(m.stored("agentTLSMode", ""))
	before := len(m.core.Actions())
	m.starts()
	m.settles(oldToken)
	m.eventually(func() bool { return m.storedNow().Mode == "strict" }, "the mode it works in")
	assert.Equal(t, []string{"update fleet-agent"}, m.writes(before))
}

// The agent is stopped at its n-th write on the member, before or after the write was carried out; another process continues.
func TestSwitchEndpointSurvivesAStopAtAnyWrite(t *testing.T) {
	for _, carriedOut := range []bool{false, true} {
		for n := 1; n <= 3; n++ {
			m := newMoving(t)
			m.has(m.stored(), m.bootstrapThere())
			died := m.diesAt(n, carriedOut, func() bool { return m.there.count("/status") > 0 && m.secret(registration.BootstrapSecret) == nil })
			m.starts()
			m.arrives(m.there, oldToken)
			assert.Empty(t, m.there.registrations())
			assert.Equal(t, n < 3, died, "a switch has two writes")
		}
	}
}
