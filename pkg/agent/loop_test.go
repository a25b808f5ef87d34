package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	"github.com/muster-fleet/muster/pkg/registration"
)

// scenario is a test of one agent, see runScenarios.
type scenario struct {
	arrange    func(f *testAgent) // is called before the agent starts
	waitForLog string             // is a log message for which the test waits after the start; may be ""
	then       func(f *testAgent) // is called after that; may be nil
	token      string             // the token with which the agent works in the end
	requests   int                // the number of ClusterRegistrations on the hub in the end, or anyNumber
}

const anyNumber = -1

// runScenarios runs one agent for each scenario.
func runScenarios(t *testing.T, scenarios map[string]scenario) {
	t.Helper()
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			f := newTestAgent(t)
			s.arrange(f)
			f.start()
			if s.waitForLog != "" {
				f.waitForLog(s.waitForLog)
			}
			if s.then != nil {
				s.then(f)
			}
			f.waitUntilSettled(s.token)
			if s.requests != anyNumber {
				assert.Len(t, f.hub.registrations(), s.requests)
			}
		})
	}
}

// setLongPauses makes all pauses last an hour, so that only a change ends one.
func (f *testAgent) setLongPauses() {
	f.config.Timing.RetryFirst, f.config.Timing.RetryMax = time.Hour, time.Hour
	f.config.Timing.RefusedFirst, f.config.Timing.RefusedMax = time.Hour, time.Hour
}

// setRejected makes the hub reject the token, or accept it again.
func (f *testAgent) setRejected(token string, refused bool) {
	f.hub.set(func() { f.hub.rejected[token] = refused })
}

// setFault makes the hub answer the requests that match with the code and body; nil ends that.
func (f *testAgent) setFault(matches func(*http.Request) bool, code int, body string) {
	f.hub.set(func() {
		f.hub.fault = func(r *http.Request) (int, string) {
			if matches != nil && matches(r) {
				return code, body
			}
			return 0, ""
		}
	})
}

func everything(*http.Request) bool { return true }

func isProbe(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "bundledeployments") }

// waitForHeartbeats waits for more than five heartbeats with the token.
func (f *testAgent) waitForHeartbeats(token string) {
	f.Helper()
	beats := f.hub.count("/status as " + token)
	f.eventually(func() bool { return f.hub.count("/status as "+token) > beats+5 }, "heartbeats with "+token)
}

func TestLoopBootstrapSecret(t *testing.T) {
	runScenarios(t, map[string]scenario{
		"comes later": {
			arrange:    (*testAgent).setLongPauses,
			waitForLog: "Failed to register agent: there is no stored credential and there is no bootstrap Secret to register with; create a ClusterRegistrationToken",
			then:       func(f *testAgent) { f.putSecrets(f.bootstrap()) }, token: newToken, requests: 1,
		},
		"asks for no registration": {
			arrange: func(f *testAgent) { f.putSecrets(f.stored("registration", "uid/1"), f.bootstrap()) }, token: oldToken,
		},
		"with a token that is not valid": {
			arrange: func(f *testAgent) { f.setLongPauses(); f.setRejected(testToken, true); f.putSecrets(f.bootstrap()) },
			waitForLog: `registration token "import-token-one" expired or was revoked; create a new one on the hub ` +
				`and put its values into Secret cattle-fleet-system/fleet-agent-bootstrap`,
			then: func(f *testAgent) { f.putSecrets(f.bootstrap("token", "another", "tokenName", "two")) }, token: newToken, requests: 1,
		},
		"changes while the agent waits for the hub": {
			arrange:    func(f *testAgent) { f.hub.grantAtRead = 1 << 30; f.putSecrets(f.bootstrap()) },
			waitForLog: "Waiting for the hub to grant ClusterRegistration fleet-default/request-",
			then: func(f *testAgent) {
				f.putSecrets(f.bootstrap("token", "another", "tokenName", "two"))
				f.waitForLog("The configuration of the registration has changed (Secret fleet-agent-bootstrap, ConfigMap fleet-agent or fleet-agent-hub): starting over with it")
				f.hub.set(func() { f.hub.grantAtRead = 0 })
				f.waitUntilSettled(newToken)
				requests := f.hub.registrations()
				assert.Equal(f, "two", requests[1].Labels["fleet.cattle.io/registration-token"])
				assert.NotEqual(f, requests[0].Spec.ClientRandom, requests[1].Spec.ClientRandom)
			}, token: newToken, requests: 2,
		},
		// The agent notices only with the next heartbeat that the credential is not valid, but the person who brings the Secret
		// knows it.
		"comes for a running agent whose credential is not valid": {
			arrange: func(f *testAgent) { f.putSecrets(f.stored("registration", "uid/1")) },
			then: func(f *testAgent) {
				f.waitUntilSettled(oldToken)
				f.setRejected(oldToken, true)
				f.putSecrets(f.bootstrap())
			}, token: newToken, requests: 1,
		},
		"comes for a running agent while the hub is away": {
			arrange: func(f *testAgent) { f.putSecrets(f.stored("registration", "uid/1")) },
			then: func(f *testAgent) {
				f.waitUntilSettled(oldToken)
				asked := f.hub.count("bundledeployments as " + oldToken)
				f.setFault(everything, http.StatusBadGateway, "no")
				f.putSecrets(f.bootstrap())
				f.eventually(func() bool { return f.hub.count("bundledeployments as "+oldToken) > asked+2 }, "asked again and again")
				require.NotNil(f, f.secret(registration.BootstrapSecret))
				f.setFault(nil, 0, "")
			}, token: oldToken,
		},
		"cannot be deleted at first": {
			arrange: func(f *testAgent) {
				var failures atomic.Int32
				f.core.PrependReactor("delete", "secrets", func(action kubetesting.Action) (bool, runtime.Object, error) {
					options := action.(kubetesting.DeleteActionImpl).GetDeleteOptions()
					assert.NotNil(f, options.Preconditions.UID)
					assert.NotNil(f, options.Preconditions.ResourceVersion)
					return failures.Add(1) < 4, nil, apierrors.NewInternalError(assert.AnError)
				})
				f.putSecrets(f.bootstrap())
			},
			waitForLog: "deleting the objects of the registration", token: newToken, requests: 1,
		},
		"of Helm, after the wait": {
			arrange: func(f *testAgent) { f.putSecrets(f.bootstrapOfHelm()) }, token: newToken, requests: 1,
		},
	})
}

// bootstrapOfHelm returns a bootstrap Secret that belongs to a Helm release.
func (f *testAgent) bootstrapOfHelm() *corev1.Secret {
	secret := f.bootstrap()
	secret.Annotations = map[string]string{"meta.helm.sh/release-name": "fleet-agent"}
	return secret
}

// helm install --wait waits for every object of the release, this Secret included.
func TestLoopKeepsTheBootstrapSecretOfHelm(t *testing.T) {
	f := newTestAgent(t)
	var failures atomic.Int32
	f.core.PrependReactor("delete", "secrets", func(action kubetesting.Action) (bool, runtime.Object, error) {
		isPending := action.(kubetesting.DeleteAction).GetName() == registration.PendingSecret
		return isPending && failures.Add(1) <= 5, nil, apierrors.NewInternalError(assert.AnError)
	})
	f.config.Timing.HelmWait = time.Hour
	f.putSecrets(f.bootstrapOfHelm())
	f.start()
	f.eventually(func() bool { return f.storedToken() == newToken && f.hub.count("PATCH") > 0 }, "the agent works")
	f.eventually(func() bool { return f.secret(registration.PendingSecret) == nil }, "cleaned up")
	require.NotNil(t, f.secret(registration.BootstrapSecret))
	assert.Len(t, f.hub.registrations(), 1)
}

// The agent is stopped at its n-th write on member or hub, before or after the write is carried out. Started again, it must register as if
// nothing had happened.
func TestLoopSurvivesAStopAtAnyWrite(t *testing.T) {
	for _, carriedOut := range []bool{false, true} {
		for n := range sample.Numbers(t, 2) {
			f := newTestAgent(t)
			f.putSecrets(f.bootstrap())
			killed := f.killAtWrite(n, carriedOut, f.isSettled)
			beats := f.hub.count("/status")
			f.start()
			f.waitUntilSettled(newToken)
			f.eventually(func() bool { return f.hub.count("/status") > beats }, "a heartbeat of the second process")
			assert.Len(t, f.hub.registrations(), 1)
			if !killed {
				require.Greater(t, n, 5, "a registration has more writes than that")
				break
			}
		}
	}
}

func TestLoopLeavesNoGoroutine(t *testing.T) {
	known := goleak.IgnoreCurrent()
	t.Run("run", func(t *testing.T) {
		f := newTestAgent(t)
		f.putSecrets(f.bootstrap())
		f.runUntil(f.isSettled)
	})
	deadline := time.Now().Add(patience)
	for err := goleak.Find(known); err != nil; err = goleak.Find(known) { // closed connections take some time
		require.True(t, time.Now().Before(deadline), "%v", err)
	}
}

func TestLoopRegistration(t *testing.T) {
	runScenarios(t, map[string]scenario{
		"old credential works while the registration fails": {
			arrange: func(f *testAgent) {
				f.config.CheckinInterval = 5 * time.Millisecond
				f.setRejected(testToken, true)
				f.putSecrets(f.stored(), f.bootstrap("registration", "uid/2"))
			},
			waitForLog: `registration token "import-token-one" expired or was revoked`,
			then: func(f *testAgent) {
				f.waitForHeartbeats(oldToken)
				assert.Equal(f, oldToken, f.storedToken())
				f.setRejected(testToken, false)
			}, token: newToken, requests: 1,
		},
		"new credential does not work": {
			arrange: func(f *testAgent) {
				f.setRejected(newToken, true)
				f.putSecrets(f.stored(), f.bootstrap("registration", "uid/2"))
			},
			waitForLog: "Failed to register agent: the credential from the hub for cluster fleet-default/one does not work",
			then: func(f *testAgent) {
				assert.Equal(f, oldToken, f.storedToken())
				f.eventually(func() bool { return len(f.hub.registrations()) > 1 }, "another request")
				f.setRejected(newToken, false)
			}, token: newToken, requests: anyNumber,
		},
		"response is lost": { // the request was carried out
			arrange: func(f *testAgent) {
				posts := 0
				f.hub.fault = func(r *http.Request) (int, string) {
					if r.Method != http.MethodPost || posts == 3 {
						return 0, ""
					}
					posts++
					f.hub.createRequest(httptest.NewRecorder(), r)
					return 502, "<h1>502</h1>"
				}
				f.putSecrets(f.bootstrap())
			},
			then: func(f *testAgent) {
				f.waitUntilSettled(newToken)
				assert.Equal(f, 3, f.countLogs("Failed to register agent: cannot create clusterregistration on management cluster for cluster id 'the-uid'"))
			}, token: newToken, requests: 1,
		},
		"409 of a proxy": {
			arrange: func(f *testAgent) {
				var posts atomic.Int32
				f.setFault(func(r *http.Request) bool { return r.Method == http.MethodPost && posts.Add(1) == 1 }, 409, "<h1>Conflict</h1>")
				f.putSecrets(f.bootstrap())
			},
			waitForLog: "Failed to register agent: cannot create clusterregistration", token: newToken, requests: 1,
		},
		"continued after a restart": {
			arrange: func(f *testAgent) {
				f.hub.grantAtRead = 1 << 30
				f.putSecrets(f.bootstrap())
				f.runUntil(func() bool { return f.countLogs("Waiting for the hub to grant") > 0 })
				f.hub.set(func() { f.hub.grantAtRead = 0 })
			}, token: newToken, requests: 1,
		},
		"answer is incomplete at first": {
			arrange:    func(f *testAgent) { f.hub.grant["token"] = ""; f.putSecrets(f.bootstrap()) },
			waitForLog: "the credential is not complete yet",
			then: func(f *testAgent) {
				assert.Empty(f, f.storedToken())
				f.hub.set(func() { f.hub.grant["token"] = newToken })
			}, token: newToken, requests: 1,
		},
		"proxy answers 401 while the agent waits": {
			arrange:    func(f *testAgent) { f.hub.grantAtRead = 1 << 30; f.putSecrets(f.bootstrap()) },
			waitForLog: "Waiting for the hub to grant",
			then: func(f *testAgent) {
				f.setFault(everything, 401, "<h1>401</h1>")
				f.waitForLog("the server has asked for the client to provide credentials")
				f.setFault(nil, 0, "")
				f.hub.set(func() { f.hub.grantAtRead = 0 })
			}, token: newToken, requests: 1,
		},
		"rights come late": {
			arrange: func(f *testAgent) {
				f.config.Timing.RightsLag = patience
				var lists atomic.Int32
				f.setFault(func(r *http.Request) bool { return isProbe(r) && lists.Add(1) < 5 }, 403, status403)
				f.putSecrets(f.bootstrap())
			},
			then: func(f *testAgent) { f.waitUntilSettled(newToken); assert.Zero(f, f.countLogs("Failed")) }, token: newToken, requests: 1,
		},
		"credential is deleted while the agent runs": { // so does a hub that does not say which registration it wants
			arrange: func(f *testAgent) { f.putSecrets(f.stored()) },
			then: func(f *testAgent) {
				f.waitUntilSettled(oldToken)
				f.deleteSecret(registration.CredentialSecret)
				f.putSecrets(f.bootstrap())
			}, token: newToken, requests: 1,
		},
	})
}

func TestLoopMalformedObjects(t *testing.T) {
	runScenarios(t, map[string]scenario{
		"credential, nothing to register with": {
			arrange:    func(f *testAgent) { f.putSecrets(f.stored("kubeconfig", "garbage")) },
			waitForLog: "Failed to register agent: the stored credential is unusable (key kubeconfig of Secret cattle-fleet-system/fleet-agent",
			then: func(f *testAgent) {
				assert.Equal(f, "garbage", string(f.secret(registration.CredentialSecret).Data["kubeconfig"]))
				f.putSecrets(f.stored())
			}, token: oldToken,
		},
		"bootstrap Secret beside a credential that works": {
			arrange:    func(f *testAgent) { f.putSecrets(f.stored(), f.bootstrap("apiServerURL", "")) },
			waitForLog: "Secret cattle-fleet-system/fleet-agent-bootstrap is ignored: key apiServerURL",
			then: func(f *testAgent) {
				assert.NotNil(f, f.secret(registration.BootstrapSecret))
				f.putSecrets(f.bootstrap("registration", "uid/2"))
			}, token: newToken, requests: 1,
		},
		"pending request": {
			arrange: func(f *testAgent) {
				f.putSecrets(f.bootstrap(), agenttest.Secret(registration.PendingSecret, map[string]string{"request": "x"}))
			}, token: newToken, requests: 1,
		},
		"ConfigMap": { // the defaults may trust more CAs
			arrange:    func(f *testAgent) { f.putSecrets(f.bootstrap()); f.putSettings("{") },
			waitForLog: "Cannot read the objects of the agent, trying again: the agent's configuration (ConfigMap fleet-agent, key config)",
			then: func(f *testAgent) {
				assert.Empty(f, f.hub.registrations())
				f.putSettings(`{"clientID":"mine"}`)
				f.waitUntilSettled(newToken)
				assert.Equal(f, "mine", f.hub.registrations()[0].Spec.ClientID)
			}, token: newToken, requests: 1,
		},
	})
}

func TestLoopRejectedCredential(t *testing.T) {
	runScenarios(t, map[string]scenario{
		"at the start, with a bootstrap Secret": {
			arrange: func(f *testAgent) { f.setRejected(oldToken, true); f.putSecrets(f.stored(), f.bootstrap()) },
			then: func(f *testAgent) {
				f.waitUntilSettled(newToken)
				assert.GreaterOrEqual(f, f.hub.count("bundledeployments as "+oldToken), rejectionsUntilCertain)
			}, token: newToken, requests: 1,
		},
		"at the start, a bootstrap Secret comes later": {
			arrange:    func(f *testAgent) { f.setLongPauses(); f.setRejected(oldToken, true); f.putSecrets(f.stored()) },
			waitForLog: "Failed to register agent: the hub rejects the stored credential",
			then: func(f *testAgent) {
				f.putSecrets(f.bootstrap())
				f.waitUntilSettled(newToken)
				f.eventually(func() bool { return len(f.events(reasonAccepted)) == 1 }, "the event")
			}, token: newToken, requests: 1,
		},
		"while the agent runs": {
			arrange: func(f *testAgent) { f.config.CheckinInterval = 5 * time.Millisecond; f.putSecrets(f.stored()) },
			then: func(f *testAgent) {
				f.waitUntilSettled(oldToken)
				f.setRejected(oldToken, true)
				f.waitForLog("reading Secret fleet-agent again: heartbeat: the hub rejects the credential")
				f.putSecrets(f.bootstrap())
			}, token: newToken, requests: 1,
		},
		"two of three times only": {
			arrange: func(f *testAgent) {
				f.config.CheckinInterval = 5 * time.Millisecond
				var patches atomic.Int32
				f.setFault(func(r *http.Request) bool { return r.Method == http.MethodPatch && patches.Add(1)%3 != 0 }, 401, status401)
				f.putSecrets(f.stored())
			},
			then: func(f *testAgent) {
				f.eventually(func() bool { return f.hub.count("PATCH") > 15 }, "many heartbeats")
				assert.Zero(f, f.countLogs("The work with the stored credential has ended"))
			}, token: oldToken,
		},
		"by a proxy only": {
			arrange: func(f *testAgent) {
				f.setFault(everything, 401, "<h1>401</h1>")
				f.putSecrets(f.stored(), f.bootstrap())
			},
			then: func(f *testAgent) {
				f.eventually(func() bool { return f.countLogs("Waiting for the hub, keeping the stored credential") >= 5 }, "waiting")
				assert.Equal(f, oldToken, f.storedToken())
				assert.NotNil(f, f.secret(registration.BootstrapSecret))
				f.setFault(nil, 0, "")
			}, token: oldToken,
		},
		"the event cannot be written": {
			arrange: func(f *testAgent) {
				f.core.PrependReactor("*", "events", func(kubetesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "", assert.AnError)
				})
				f.setRejected(oldToken, true)
				f.putSecrets(f.stored())
			},
			waitForLog: "Cannot write the event CredentialRefused",
			then:       func(f *testAgent) { f.setRejected(oldToken, false) }, token: oldToken,
		},
	})
}

func TestLoopHeartbeatIsRetriedSoon(t *testing.T) {
	f := newTestAgent(t) // the check-in interval is an hour
	var patches atomic.Int32
	f.setFault(func(r *http.Request) bool { return r.Method == http.MethodPatch && patches.Add(1) < 8 }, 503, "<h1>503</h1>")
	f.putSecrets(f.stored())
	f.start()
	f.waitForLog("Heartbeat of cluster fleet-default/one failed, next try in")
	f.eventually(func() bool { f.hub.mutex.Lock(); defer f.hub.mutex.Unlock(); return len(f.hub.heartbeats) == 1 }, "a heartbeat that arrived")
}

func TestLoopSendsHeartbeatsAfterTheClockWasSet(t *testing.T) {
	f := newTestAgent(t) // the check-in interval is an hour
	now := agenttest.NewClock(noon)
	f.config.Clock = now
	f.putSecrets(f.stored())
	f.start()
	f.waitUntilSettled(oldToken)
	beats := func() int { return f.hub.count("/status as " + oldToken) }
	for n, step := range []time.Duration{0, day, -2 * day} {
		f.eventually(now.HasWaiters, "the heartbeat waits")
		now.StepWall(step)
		assert.Equal(t, 1+n, beats(), "one heartbeat in each interval")
		now.Step(70 * time.Minute)
		f.eventually(func() bool { return beats() > 1+n }, "the next heartbeat")
	}
}

func TestLoopReportsTheClockSkew(t *testing.T) {
	f := newTestAgent(t)
	f.config.CheckinInterval = 5 * time.Millisecond
	f.config.Clock = ahead{f.config.Clock, 5 * time.Minute}
	f.putSecrets(f.stored())
	f.start()
	f.eventually(func() bool {
		skew := f.lastHeartbeat().ClockSkew
		return skew != nil && skew.Round(10*time.Second) == 5*time.Minute
	}, "the clock skew")
}

// ahead is a clock that is ahead of the real one.
type ahead struct {
	clock.WithTicker
	by time.Duration
}

func (a ahead) Now() time.Time { return a.WithTicker.Now().Add(a.by) }

func TestLoopReportsItsState(t *testing.T) {
	f := newTestAgent(t)
	states := make(chan string, 100)
	f.config.OnState = func(state string) { states <- state }
	f.start()
	assert.Equal(t, "there is no bootstrap Secret to register with; the log says what to do", <-states)
	f.putSecrets(f.stored())
	f.waitUntilSettled(oldToken)
	f.eventually(func() bool {
		select {
		case state := <-states:
			return state == "registered"
		default:
			return false
		}
	}, "registered")
}

// Every request has the token in it, so none may be sent.
func TestLoopSendsNoTokenUnencryptedInStrictMode(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(server.Close)
	for name, arrange := range map[string]func(f *testAgent){
		"bootstrap Secret": func(f *testAgent) { f.putSecrets(agenttest.BootstrapSecret(server.URL, agenttest.CA(t))) },
		"stored credential": func(f *testAgent) {
			f.putSecrets(agenttest.StoredSecret(t, server.URL, agenttest.CA(t), oldToken, "agentTLSMode", "strict"))
		},
		"ConfigMap": func(f *testAgent) {
			f.putSecrets(f.stored("agentTLSMode", "strict"))
			f.putConfigMap(agenttest.AgentHubConfigMap(server.URL, agenttest.CA(t), ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTestAgent(t)
			f.putSettings(`{"agentTLSMode":"strict"}`)
			arrange(f)
			f.start()
			f.waitForLog("agentTLSMode is strict, but the address of the hub is " + server.URL + ", to which the token would be sent unencrypted")
			assert.Zero(t, asked.Load())
		})
	}
}

// The clock stands still: after the first failure nothing may happen.
func TestLoopPausesAfterAFailure(t *testing.T) {
	for name, has := range map[string]func(f *testAgent) []*corev1.Secret{
		"a refused request": func(f *testAgent) []*corev1.Secret {
			f.refuseRequests("Denied", "no")
			f.setRejected(testToken, false)
			return []*corev1.Secret{f.bootstrap()}
		},
		"no Secret":                 func(*testAgent) []*corev1.Secret { return nil },
		"a token that is not valid": func(f *testAgent) []*corev1.Secret { return []*corev1.Secret{f.bootstrap()} },
		"an outage of the hub":      func(f *testAgent) []*corev1.Secret { return []*corev1.Secret{f.stored()} },
		"a bad bootstrap Secret":    func(f *testAgent) []*corev1.Secret { return []*corev1.Secret{f.bootstrap("token", "")} },
		"an endpoint that fails": func(f *testAgent) []*corev1.Secret {
			return []*corev1.Secret{f.stored(), f.bootstrap("apiServerURL", f.hub.server.URL+"/x")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTestAgent(t)
			still := clocktesting.NewFakeClock(time.Unix(1000, 0))
			f.config.Clock = still
			f.setRejected(testToken, true)
			f.setFault(func(r *http.Request) bool { return strings.Contains(r.Header.Get("Authorization"), oldToken) }, 503, "<h1>503</h1>")
			f.putSecrets(has(f)...)
			f.start()
			f.eventually(still.HasWaiters, "a pause")
			// The Secret found by the watch at the start may end the first pause, once.
			assert.Never(t, func() bool { return f.hub.count("") > 12 || len(f.core.Actions()) > 40 }, 100*time.Millisecond, 10*time.Millisecond)
		})
	}
}

func TestLoopReportsARejectedCredential(t *testing.T) {
	f := newTestAgent(t)
	f.config.CheckinInterval = 2 * time.Millisecond
	_, err := f.core.AppsV1().Deployments(agentNamespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: registration.AgentName, UID: "the-deployment"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.setRejected(oldToken, true)
	f.putSecrets(f.stored())
	before := f.storedNow()
	f.start()
	f.waitForLog("put its values into Secret cattle-fleet-system/fleet-agent-bootstrap")
	f.eventually(func() bool { return f.hub.count("bundledeployments") > 5*rejectionsUntilCertain }, "many tries")
	assert.Equal(t, before, f.storedNow())
	assert.Equal(t, 1, f.countLogsAt(logrus.ErrorLevel), "errors in the log")
	assert.Zero(t, f.hub.count("PATCH"), "no heartbeats")
	event := f.eventOf(reasonRejected)
	require.NotNil(t, event)
	assert.EqualValues(t, 1, event.Count)
	assert.Equal(t, corev1.EventTypeWarning, event.Type)
	assert.Equal(t, corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: agentNamespace, Name: "fleet-agent", UID: "the-deployment",
	}, event.InvolvedObject)
	assert.Contains(t, event.Message, "create a ClusterRegistrationToken on the hub")
	for n := int32(1); n <= 2; n++ {
		f.setRejected(oldToken, false)
		f.eventually(func() bool { e := f.eventOf(reasonAccepted); return e != nil && e.Count == n }, "it works again")
		f.setRejected(oldToken, true)
		f.eventually(func() bool { return f.eventOf(reasonRejected).Count == n+1 }, "rejected again")
	}
	assert.Len(t, f.events(reasonRejected), 1)
}

// countLogsAt counts the log messages of the level.
func (f *testAgent) countLogsAt(level logrus.Level) (n int) {
	for _, entry := range f.log.AllEntries() {
		if entry.Level == level {
			n++
		}
	}
	return n
}

func TestLoopChangedCompareInterval(t *testing.T) {
	f := newTestAgent(t)
	f.putSecrets(f.stored())
	f.putSettings(`{"garbageCollectionInterval":"24h"}`)
	intervals := make(chan time.Duration, 3)
	f.startWith(func(ctx context.Context, c deploy.Config) error {
		intervals <- c.CompareInterval
		for {
			select {
			case <-ctx.Done():
				return nil
			case changed := <-c.CompareIntervalChanged:
				intervals <- changed
			}
		}
	})
	assert.Equal(t, 24*time.Hour, <-intervals)
	f.waitUntilSettled(oldToken)
	f.putSettings(`{"garbageCollectionInterval":"2m"}`)
	assert.Equal(t, 2*time.Minute, <-intervals)
	f.putSettings(`{}`)
	assert.Equal(t, time.Duration(0), <-intervals, "the default")
}
