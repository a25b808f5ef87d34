package agent

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	refusedText = "the hub refuses ClusterRegistration fleet-default/request-"
	timeoutText = "the hub did not grant ClusterRegistration fleet-default/request-"
)

// refuseRequests makes the hub refuse all requests.
func (f *testAgent) refuseRequests(reason, message string) {
	f.hub.set(func() {
		f.hub.grantAtRead, f.hub.grant = 0, map[string]string{registration.RefusalReason: reason, registration.RefusalMessage: message}
	})
}

// grantRequests makes the hub grant all requests.
func (f *testAgent) grantRequests() {
	f.hub.set(func() {
		f.hub.grant = map[string]string{
			"token": newToken, "deploymentNamespace": "cluster-ns", "clusterNamespace": "fleet-default", "clusterName": "one",
		}
	})
}

// grantLastRequest makes the hub grant the last request and no other one.
func (f *testAgent) grantLastRequest() {
	f.hub.set(func() {
		f.hub.grantAtRead = 0
		f.hub.created = f.hub.created[len(f.hub.created)-1:]
	})
}

func TestLoopRefusedRegistration(t *testing.T) {
	runScenarios(t, map[string]scenario{
		"reported once, approved later": {
			arrange:    func(f *testAgent) { f.refuseRequests("Denied", "not on a Sunday"); f.putSecrets(f.bootstrap()) },
			waitForLog: "not on a Sunday (Denied). The agent checks again from time to time",
			then: func(f *testAgent) {
				polls := f.hub.count("GET /api/v1")
				f.eventually(func() bool { return f.hub.count("GET /api/v1") > polls+5 }, "it polls again")
				assert.Equal(f, 1, f.countLogs(refusedText), "logged once")
				require.Len(f, f.events("RegistrationRefused"), 1)
				event := f.events("RegistrationRefused")[0]
				assert.Equal(f, corev1.EventTypeWarning, event.Type)
				assert.Contains(f, event.Message, "not on a Sunday (Denied)")
				assert.EqualValues(f, 1, event.Count)
				f.refuseRequests("WaitingLonger", "ask again")
				f.waitForLog("ask again (WaitingLonger)")
				f.grantRequests()
				f.waitUntilSettled(newToken)
				f.eventually(func() bool { return len(f.events("RegistrationGranted")) == 1 }, "the event")
			}, token: newToken, requests: 1,
		},
		"request is deleted and sent again": {
			arrange:    func(f *testAgent) { f.refuseRequests("Denied", "no"); f.putSecrets(f.bootstrap()) },
			waitForLog: refusedText,
			then: func(f *testAgent) {
				name := f.hub.registrations()[0].Name
				f.hub.set(func() { f.hub.created = nil })
				f.eventually(func() bool { return len(f.hub.registrations()) == 1 }, "sent again")
				assert.Equal(f, name, f.hub.registrations()[0].Name)
				f.grantRequests()
			}, token: newToken, requests: 1,
		},
		"restart and outage": {
			arrange: func(f *testAgent) {
				f.refuseRequests("Denied", "no")
				f.putSecrets(f.bootstrap())
				f.runUntil(func() bool { return f.countLogs(refusedText) > 0 })
			},
			then: func(f *testAgent) {
				f.eventually(func() bool { return f.countLogs(refusedText) == 2 }, "each process logs it once")
				asked := f.hub.count("")
				f.setFault(everything, http.StatusBadGateway, "no")
				f.eventually(func() bool { return f.hub.count("") > asked+3 }, "requests during the outage")
				f.grantRequests()
				f.setFault(nil, 0, "")
			}, token: newToken, requests: 1,
		},
	})
}

func TestLoopChecksARefusedRegistrationAfterAChange(t *testing.T) {
	for name, row := range map[string]struct {
		change   func(f *testAgent)
		requests int
	}{
		"another token":             {func(f *testAgent) { f.putSecrets(f.bootstrap("token", "another", "tokenName", "two")) }, 2},
		"the same token again":      {func(f *testAgent) { f.putSecrets(f.bootstrap("unknown", "key")) }, 1},
		"another identity":          {func(f *testAgent) { f.putSettings(`{"clientID":"two"}`) }, 2},
		"other labels":              {func(f *testAgent) { f.putSettings(`{"clientID":"one","labels":{"a":"b"}}`) }, 2},
		"a setting not in requests": {func(f *testAgent) { f.putSettings(`{"clientID":"one","agentTLSMode":"system-store"}`) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTestAgent(t)
			f.setLongPauses()
			f.putSettings(`{"clientID":"one"}`)
			f.refuseRequests("ClientIDInUse", "no")
			f.putSecrets(f.bootstrap())
			f.start()
			f.waitForLog(refusedText)
			row.change(f)
			f.waitForLog("The configuration of the agent has changed")
			f.eventually(func() bool { return len(f.hub.registrations()) == row.requests }, "a request with the new content")
			f.grantRequests()
			again := f.secret(registration.BootstrapSecret)
			again.Labels = map[string]string{"checked": "again"}
			f.putSecrets(again)
			f.waitUntilSettled(newToken)
			assert.Len(t, f.hub.registrations(), row.requests)
		})
	}
}

// An import writes ConfigMap fleet-agent before the bootstrap Secret, each possibly between any two reads of the agent.
func TestLoopRegistersWithTheSettingsOfTheImport(t *testing.T) {
	const reads = 6 // more than the first iteration of the loop sends before it registers
	for configAt := 1; configAt <= reads; configAt++ {
		for secretAt := configAt; secretAt <= reads; secretAt++ {
			t.Run(fmt.Sprintf("before reads %d and %d", configAt, secretAt), func(t *testing.T) {
				f := newTestAgent(t)
				read := 0 // the fake client calls reactors one after another
				f.core.PrependReactor("get", "*", func(kubetesting.Action) (bool, runtime.Object, error) {
					read++
					if read == configAt {
						assert.NoError(t, f.core.Tracker().Add(settings(`{"clientID":"imported","labels":{"a":"b"}}`)))
					}
					if read == secretAt {
						assert.NoError(t, f.core.Tracker().Add(f.bootstrap()))
					}
					return false, nil, nil
				})
				f.start()
				f.eventually(func() bool { return len(f.hub.registrations()) > 0 }, "a request") // without reads of the test
				f.waitUntilSettled(newToken)
				require.Len(t, f.hub.registrations(), 1)
				assert.Equal(t, "imported", f.hub.registrations()[0].Spec.ClientID)
				assert.Equal(t, "b", f.hub.registrations()[0].Spec.ClusterLabels["a"])
			})
		}
	}
}

func TestLoopUnansweredRequest(t *testing.T) {
	unanswered := func(f *testAgent) {
		f.config.Timing.Registration = 20 * time.Millisecond
		f.hub.grantAtRead = 1 << 30
		f.putSecrets(f.bootstrap())
	}
	runScenarios(t, map[string]scenario{
		// The settings change while the agent waits for an answer, and only that change ends its long pause.
		"replaced by one with another clientID": {
			arrange: func(f *testAgent) {
				f.setLongPauses()
				f.hub.grantAtRead = 1 << 30
				f.putSettings(`{"clientID":"one"}`)
				f.putSecrets(f.bootstrap())
			},
			waitForLog: "Waiting for the hub to grant ClusterRegistration fleet-default/request-",
			then: func(f *testAgent) {
				f.putSettings(`{"clientID":"two"}`)
				f.eventually(func() bool { return len(f.hub.registrations()) == 2 }, "another request")
				assert.Equal(f, "two", f.hub.registrations()[1].Spec.ClientID)
				f.grantLastRequest()
			}, token: newToken, requests: 1,
		},
		"sent again, and no other one": {
			arrange: unanswered,
			then: func(f *testAgent) {
				f.eventually(func() bool { return f.countLogs(timeoutText) > 3 }, "several attempts")
				require.Len(f, f.hub.registrations(), 1)
				name := f.hub.registrations()[0].Name
				f.hub.set(func() { f.hub.created = nil })
				f.eventually(func() bool { return len(f.hub.registrations()) > 0 }, "created again after a deletion")
				attempts := f.countLogs(timeoutText)
				f.eventually(func() bool { return f.countLogs(timeoutText) > attempts+3 }, "several attempts")
				require.Len(f, f.hub.registrations(), 1)
				assert.Equal(f, name, f.hub.registrations()[0].Name)
				f.grantLastRequest()
			}, token: newToken, requests: 1,
		},
		"replaced once after a restart": {
			arrange: func(f *testAgent) {
				unanswered(f)
				f.config.Timing.Registration = patience
				f.runUntil(func() bool { return len(f.hub.registrations()) == 1 })
				f.config.Timing.Registration = 20 * time.Millisecond
			},
			then: func(f *testAgent) {
				f.eventually(func() bool { return f.countLogs(timeoutText) > 3 }, "several attempts")
				assert.Len(f, f.hub.registrations(), 2, "the second request was observed without a gap")
				f.grantLastRequest()
			}, token: newToken, requests: 1,
		},
		"replaced after an outage": {
			arrange: func(f *testAgent) { unanswered(f); f.config.Timing.MaxResponseGap = time.Nanosecond }, // a gap after each poll
			then: func(f *testAgent) {
				f.eventually(func() bool { return len(f.hub.registrations()) > 2 }, "another request")
				f.grantLastRequest()
			}, token: newToken, requests: anyNumber,
		},
	})
}

// proofs returns the patches with a proof of possession: those that are heartbeats, or those that are not.
func (f *testAgent) proofs(heartbeats bool) (patches []string) {
	f.hub.mutex.Lock()
	defer f.hub.mutex.Unlock()
	for _, patch := range f.hub.heartbeats {
		if strings.Contains(patch, `"vouches":"`) && strings.Contains(patch, "lastSeen") == heartbeats {
			patches = append(patches, patch)
		}
	}
	return patches
}

func TestLoopProvesPossession(t *testing.T) {
	registersAgain := func(f *testAgent) {
		f.putSecrets(f.stored("registration", "uid/1"), f.bootstrap("registration", "uid/2"))
	}
	nothing := func(f *testAgent) {
		f.waitUntilSettled(newToken)
		assert.Empty(f, f.proofs(false))
		assert.Empty(f, f.proofs(true))
	}
	runScenarios(t, map[string]scenario{
		"before the request": {
			arrange: func(f *testAgent) {
				f.hub.fault = func(r *http.Request) (int, string) {
					if r.Method == http.MethodPost {
						assert.Contains(f, strings.Join(f.hub.heartbeats, ""), `{"status":{"agent":{"vouches":"request-`)
					}
					return 0, ""
				}
				registersAgain(f)
			},
			then: func(f *testAgent) {
				f.waitUntilSettled(newToken)
				request := f.hub.registrations()[0].Name
				assert.Contains(f, f.proofs(false)[0], request)
				f.eventually(func() bool { return f.lastHeartbeat().Registration == request }, "the request whose credential it uses")
				assert.Empty(f, f.lastHeartbeat().PossessionProof)
				assert.Equal(f, request, f.storedNow().Request)
			}, token: newToken, requests: 1,
		},
		"not without a credential": {arrange: func(f *testAgent) { f.putSecrets(f.bootstrap()) }, then: nothing, token: newToken, requests: 1},
		"not with a rejected one": {
			arrange: func(f *testAgent) { f.setRejected(oldToken, true); f.putSecrets(f.stored(), f.bootstrap()) }, then: nothing, token: newToken, requests: 1,
		},
		"with a heartbeat, after a failure": {
			arrange: func(f *testAgent) {
				f.config.CheckinInterval = 5 * time.Millisecond
				f.hub.grantAtRead = 1 << 30
				f.setFault(func(r *http.Request) bool { return r.Method == http.MethodPatch && len(f.hub.created) == 0 }, 503, "<h1>503</h1>")
				registersAgain(f)
			},
			waitForLog: "Cannot prove to the hub that ClusterRegistration request-",
			then: func(f *testAgent) {
				f.eventually(func() bool { return len(f.proofs(true)) > 0 }, "a heartbeat repeats it")
				assert.Contains(f, f.proofs(true)[0], f.hub.registrations()[0].Name)
				f.hub.set(func() { f.hub.grantAtRead = 0 })
			}, token: newToken, requests: 1,
		},
		"no more when the request is withdrawn": {
			arrange: func(f *testAgent) {
				f.config.CheckinInterval = 5 * time.Millisecond
				f.hub.grantAtRead = 1 << 30
				registersAgain(f)
			},
			then: func(f *testAgent) {
				f.eventually(func() bool { return len(f.proofs(true)) > 0 }, "the proof")
				f.deleteSecret(registration.PendingSecret)
				f.putSecrets(f.bootstrap("registration", "uid/1"))
				f.waitUntilSettled(oldToken)
				f.eventually(func() bool { return f.lastHeartbeat().PossessionProof == "" }, "no more")
			}, token: oldToken, requests: anyNumber,
		},
	})
}

func TestLoopInstanceDiffersBetweenProcesses(t *testing.T) {
	f := newTestAgent(t)
	f.putSecrets(f.stored("request", "request-1"))
	f.runUntil(func() bool { return f.lastHeartbeat().Instance != "" })
	first := f.lastHeartbeat()
	assert.Equal(t, "request-1", first.Registration)
	assert.LessOrEqual(t, len(first.Instance), 64)
	pod, err := os.Hostname()
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(first.Instance, pod[:min(len(pod), 31)]+"_"), first.Instance)
	f.runUntil(func() bool { return f.lastHeartbeat().Instance != first.Instance })
}
