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

// scene is a story of one agent.
type scene struct {
	arrange  func(f *fixture) // before the agent starts
	says     string           // in the log, after the start
	then     func(f *fixture) // happens after that
	token    string           // with which the agent settles
	requests int              // ClusterRegistrations on the hub in the end; anyNumber means that it does not matter
}

const anyNumber = -1

func play(t *testing.T, scenes map[string]scene) {
	t.Helper()
	for name, s := range scenes {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s.arrange(f)
			f.starts()
			if s.says != "" {
				f.says(s.says)
			}
			if s.then != nil {
				s.then(f)
			}
			f.settles(s.token)
			if s.requests != anyNumber {
				assert.Len(t, f.hub.registrations(), s.requests)
			}
		})
	}
}

// retriesAfterAnHour: only a change can end a pause.
func (f *fixture) retriesAfterAnHour() {
	f.config.Timing.RetryFirst, f.config.Timing.RetryMax = time.Hour, time.Hour
	f.config.Timing.RefusedFirst, f.config.Timing.RefusedMax = time.Hour, time.Hour
}

func (f *fixture) refuses(token string, refused bool) {
	f.hub.set(func() { f.hub.refused[token] = refused })
}

// faults answers the requests that match; nil answers none.
func (f *fixture) faults(matches func(*http.Request) bool, code int, body string) {
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

// beatsWith waits for further heartbeats with the token.
func (f *fixture) beatsWith(token string) {
	f.Helper()
	beats := f.hub.count("/status as " + token)
	f.eventually(func() bool { return f.hub.count("/status as "+token) > beats+5 }, "heartbeats with "+token)
}

func TestLoopBootstrapSecret(t *testing.T) {
	play(t, map[string]scene{
		"comes later": {
			arrange: (*fixture).retriesAfterAnHour,
			says:    "Failed to register agent: there is no stored credential and there is no bootstrap Secret to register with; create a ClusterRegistrationToken",
			then:    func(f *fixture) { f.has(f.bootstrap()) }, token: newToken, requests: 1,
		},
		"asks for no registration": {
			arrange: func(f *fixture) { f.has(f.stored("registration", "uid/1"), f.bootstrap()) }, token: oldToken,
		},
		"with a token that is not valid": {
			arrange: func(f *fixture) { f.retriesAfterAnHour(); f.refuses(testToken, true); f.has(f.bootstrap()) },
			says:    `registration token "import-token-one" expired or was revoked; create a new one on the hub and put it into Secret cattle-fleet-system/fleet-agent-bootstrap`,
			then:    func(f *fixture) { f.has(f.bootstrap("token", "another", "tokenName", "two")) }, token: newToken, requests: 1,
		},
		"changes while the agent waits for the hub": {
			arrange: func(f *fixture) { f.hub.grantAt = 1 << 30; f.has(f.bootstrap()) },
			says:    "Waiting for the hub to grant ClusterRegistration fleet-default/request-",
			then: func(f *fixture) {
				f.has(f.bootstrap("token", "another", "tokenName", "two"))
				f.says("The configuration of the registration has changed (Secret fleet-agent-bootstrap, ConfigMap fleet-agent or fleet-agent-hub): starting over with it")
				f.hub.set(func() { f.hub.grantAt = 0 })
				f.settles(newToken)
				requests := f.hub.registrations()
				assert.Equal(f, "two", requests[1].Labels["fleet.cattle.io/registration-token"])
				assert.NotEqual(f, requests[0].Spec.ClientRandom, requests[1].Spec.ClientRandom)
			}, token: newToken, requests: 2,
		},
		// The agent notices only with the next heartbeat that the credential is not valid, but the person who brings the Secret
		// knows it.
		"comes for a running agent whose credential is not valid": {
			arrange: func(f *fixture) { f.has(f.stored("registration", "uid/1")) },
			then: func(f *fixture) {
				f.settles(oldToken)
				f.refuses(oldToken, true)
				f.has(f.bootstrap())
			}, token: newToken, requests: 1,
		},
		"comes for a running agent while the hub is away": {
			arrange: func(f *fixture) { f.has(f.stored("registration", "uid/1")) },
			then: func(f *fixture) {
				f.settles(oldToken)
				asked := f.hub.count("bundledeployments as " + oldToken)
				f.faults(everything, http.StatusBadGateway, "no")
				f.has(f.bootstrap())
				f.eventually(func() bool { return f.hub.count("bundledeployments as "+oldToken) > asked+2 }, "asked again and again")
				require.NotNil(f, f.secret(registration.BootstrapSecret))
				f.faults(nil, 0, "")
			}, token: oldToken,
		},
		"cannot be deleted at first": {
			arrange: func(f *fixture) {
				var failures atomic.Int32
				f.core.PrependReactor("delete", "secrets", func(action kubetesting.Action) (bool, runtime.Object, error) {
					options := action.(kubetesting.DeleteActionImpl).GetDeleteOptions()
					assert.NotNil(f, options.Preconditions.UID)
					assert.NotNil(f, options.Preconditions.ResourceVersion)
					return failures.Add(1) < 4, nil, apierrors.NewInternalError(assert.AnError)
				})
				f.has(f.bootstrap())
			},
			says: "deleting the objects of the registration", token: newToken, requests: 1,
		},
		"of Helm, after the wait": {
			arrange: func(f *fixture) { f.has(f.ofHelm()) }, token: newToken, requests: 1,
		},
	})
}

func (f *fixture) ofHelm() *corev1.Secret {
	secret := f.bootstrap()
	secret.Annotations = map[string]string{"meta.helm.sh/release-name": "fleet-agent"}
	return secret
}

// helm install --wait waits for every object of the release, this Secret included.
func TestLoopKeepsTheBootstrapSecretOfHelm(t *testing.T) {
	f := newFixture(t)
	var failures atomic.Int32
	f.core.PrependReactor("delete", "secrets", func(action kubetesting.Action) (bool, runtime.Object, error) {
		isPending := action.(kubetesting.DeleteAction).GetName() == registration.PendingSecret
		return isPending && failures.Add(1) <= 5, nil, apierrors.NewInternalError(assert.AnError)
	})
	f.config.Timing.HelmWait = time.Hour
	f.has(f.ofHelm())
	f.starts()
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
			f := newFixture(t)
			f.has(f.bootstrap())
			died := f.diesAt(n, carriedOut, f.isSettled)
			beats := f.hub.count("/status")
			f.starts()
			f.settles(newToken)
			f.eventually(func() bool { return f.hub.count("/status") > beats }, "a heartbeat of the second process")
			assert.Len(t, f.hub.registrations(), 1)
			if !died {
				require.Greater(t, n, 5, "a registration has more writes than that")
				break
			}
		}
	}
}

func TestLoopLeavesNoGoroutine(t *testing.T) {
	known := goleak.IgnoreCurrent()
	t.Run("run", func(t *testing.T) {
		f := newFixture(t)
		f.has(f.bootstrap())
		f.runsUntil(f.isSettled)
	})
	deadline := time.Now().Add(patience)
	for err := goleak.Find(known); err != nil; err = goleak.Find(known) { // closed connections take some time
		require.True(t, time.Now().Before(deadline), "%v", err)
	}
}

func TestLoopRegistration(t *testing.T) {
	play(t, map[string]scene{
		"old credential works while the registration fails": {
			arrange: func(f *fixture) {
				f.config.CheckinInterval = 5 * time.Millisecond
				f.refuses(testToken, true)
				f.has(f.stored(), f.bootstrap("registration", "uid/2"))
			},
			says: `registration token "import-token-one" expired or was revoked`,
			then: func(f *fixture) {
				f.beatsWith(oldToken)
				assert.Equal(f, oldToken, f.storedToken())
				f.refuses(testToken, false)
			}, token: newToken, requests: 1,
		},
		"new credential does not work": {
			arrange: func(f *fixture) {
				f.refuses(newToken, true)
				f.has(f.stored(), f.bootstrap("registration", "uid/2"))
			},
			says: "Failed to register agent: the credential from the hub for cluster fleet-default/one does not work",
			then: func(f *fixture) {
				assert.Equal(f, oldToken, f.storedToken())
				f.eventually(func() bool { return len(f.hub.registrations()) > 1 }, "another request")
				f.refuses(newToken, false)
			}, token: newToken, requests: anyNumber,
		},
		"response is lost": { // the request was carried out
			arrange: func(f *fixture) {
				posts := 0
				f.hub.fault = func(r *http.Request) (int, string) {
					if r.Method != http.MethodPost || posts == 3 {
						return 0, ""
					}
					posts++
					f.hub.create(httptest.NewRecorder(), r)
					return 502, "<h1>502</h1>"
				}
				f.has(f.bootstrap())
			},
			then: func(f *fixture) {
				f.settles(newToken)
				assert.Equal(f, 3, f.said("Failed to register agent: cannot create clusterregistration on management cluster for cluster id 'the-uid'"))
			}, token: newToken, requests: 1,
		},
		"409 of a proxy": {
			arrange: func(f *fixture) {
				var posts atomic.Int32
				f.faults(func(r *http.Request) bool { return r.Method == http.MethodPost && posts.Add(1) == 1 }, 409, "<h1>Conflict</h1>")
				f.has(f.bootstrap())
			},
			says: "Failed to register agent: cannot create clusterregistration", token: newToken, requests: 1,
		},
		"continued after a restart": {
			arrange: func(f *fixture) {
				f.hub.grantAt = 1 << 30
				f.has(f.bootstrap())
				f.runsUntil(func() bool { return f.said("Waiting for the hub to grant") > 0 })
				f.hub.set(func() { f.hub.grantAt = 0 })
			}, token: newToken, requests: 1,
		},
		"answer is incomplete at first": {
			arrange: func(f *fixture) { f.hub.grant["token"] = ""; f.has(f.bootstrap()) },
			says:    "the credential is not complete yet",
			then: func(f *fixture) {
				assert.Empty(f, f.storedToken())
				f.hub.set(func() { f.hub.grant["token"] = newToken })
			}, token: newToken, requests: 1,
		},
		"proxy answers 401 while the agent waits": {
			arrange: func(f *fixture) { f.hub.grantAt = 1 << 30; f.has(f.bootstrap()) },
			says:    "Waiting for the hub to grant",
			then: func(f *fixture) {
				f.faults(everything, 401, "<h1>401</h1>")
				f.says("the server has asked for the client to provide credentials")
				f.faults(nil, 0, "")
				f.hub.set(func() { f.hub.grantAt = 0 })
			}, token: newToken, requests: 1,
		},
		"rights come late": {
			arrange: func(f *fixture) {
				f.config.Timing.RightsLag = patience
				var lists atomic.Int32
				f.faults(func(r *http.Request) bool { return isProbe(r) && lists.Add(1) < 5 }, 403, status403)
				f.has(f.bootstrap())
			},
			then: func(f *fixture) { f.settles(newToken); assert.Zero(f, f.said("Failed")) }, token: newToken, requests: 1,
		},
		"credential is deleted while the agent runs": { // so does a hub that does not say which registration it wants
			arrange: func(f *fixture) { f.has(f.stored()) },
			then: func(f *fixture) {
				f.settles(oldToken)
				f.lacks(registration.CredentialSecret)
				f.has(f.bootstrap())
			}, token: newToken, requests: 1,
		},
	})
}

func TestLoopMalformedObjects(t *testing.T) {
	play(t, map[string]scene{
		"credential, nothing to register with": {
			arrange: func(f *fixture) { f.has(f.stored("kubeconfig", "garbage")) },
			says:    "Failed to register agent: the stored credential is unusable (key kubeconfig of Secret cattle-fleet-system/fleet-agent",
			then: func(f *fixture) {
				assert.Equal(f, "garbage", string(f.secret(registration.CredentialSecret).Data["kubeconfig"]))
				f.has(f.stored())
			}, token: oldToken,
		},
		"bootstrap Secret beside a credential that works": {
			arrange: func(f *fixture) { f.has(f.stored(), f.bootstrap("apiServerURL", "")) },
			says:    "Secret cattle-fleet-system/fleet-agent-bootstrap is ignored: key apiServerURL",
			then: func(f *fixture) {
				assert.NotNil(f, f.secret(registration.BootstrapSecret))
				f.has(f.bootstrap("registration", "uid/2"))
			}, token: newToken, requests: 1,
		},
		"pending request": {
			arrange: func(f *fixture) {
				f.has(f.bootstrap(), agenttest.Secret(registration.PendingSecret, map[string]string{"request": "x"}))
			}, token: newToken, requests: 1,
		},
		"ConfigMap": { // the defaults may trust more CAs
			arrange: func(f *fixture) { f.has(f.bootstrap()); f.hasSettings("{") },
			says:    "Cannot read the objects of the agent, trying again: the agent's configuration (ConfigMap fleet-agent, key config)",
			then: func(f *fixture) {
				assert.Empty(f, f.hub.registrations())
				f.hasSettings(`{"clientID":"mine"}`)
				f.settles(newToken)
				assert.Equal(f, "mine", f.hub.registrations()[0].Spec.ClientID)
			}, token: newToken, requests: 1,
		},
	})
}

func TestLoopRejectedCredential(t *testing.T) {
	play(t, map[string]scene{
		"at the start, with a bootstrap Secret": {
			arrange: func(f *fixture) { f.refuses(oldToken, true); f.has(f.stored(), f.bootstrap()) },
			then: func(f *fixture) {
				f.settles(newToken)
				assert.GreaterOrEqual(f, f.hub.count("bundledeployments as "+oldToken), certainly)
			}, token: newToken, requests: 1,
		},
		"at the start, a bootstrap Secret comes later": {
			arrange: func(f *fixture) { f.retriesAfterAnHour(); f.refuses(oldToken, true); f.has(f.stored()) },
			says:    "Failed to register agent: the hub rejects the stored credential",
			then: func(f *fixture) {
				f.has(f.bootstrap())
				f.settles(newToken)
				f.eventually(func() bool { return len(f.events(reasonAccepted)) == 1 }, "the event")
			}, token: newToken, requests: 1,
		},
		"while the agent runs": {
			arrange: func(f *fixture) { f.config.CheckinInterval = 5 * time.Millisecond; f.has(f.stored()) },
			then: func(f *fixture) {
				f.settles(oldToken)
				f.refuses(oldToken, true)
				f.says("reading Secret fleet-agent again: heartbeat: the hub rejects the credential")
				f.has(f.bootstrap())
			}, token: newToken, requests: 1,
		},
		"two of three times only": {
			arrange: func(f *fixture) {
				f.config.CheckinInterval = 5 * time.Millisecond
				var patches atomic.Int32
				f.faults(func(r *http.Request) bool { return r.Method == http.MethodPatch && patches.Add(1)%3 != 0 }, 401, status401)
				f.has(f.stored())
			},
			then: func(f *fixture) {
				f.eventually(func() bool { return f.hub.count("PATCH") > 15 }, "many heartbeats")
				assert.Zero(f, f.said("The work with the stored credential has ended"))
			}, token: oldToken,
		},
		"by a proxy only": {
			arrange: func(f *fixture) { f.faults(everything, 401, "<h1>401</h1>"); f.has(f.stored(), f.bootstrap()) },
			then: func(f *fixture) {
				f.eventually(func() bool { return f.said("Waiting for the hub, keeping the stored credential") >= 5 }, "waiting")
				assert.Equal(f, oldToken, f.storedToken())
				assert.NotNil(f, f.secret(registration.BootstrapSecret))
				f.faults(nil, 0, "")
			}, token: oldToken,
		},
		"the event cannot be written": {
			arrange: func(f *fixture) {
				f.core.PrependReactor("*", "events", func(kubetesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "", assert.AnError)
				})
				f.refuses(oldToken, true)
				f.has(f.stored())
			},
			says: "Cannot write the event CredentialRefused",
			then: func(f *fixture) { f.refuses(oldToken, false) }, token: oldToken,
		},
	})
}

func TestLoopHeartbeatIsRetriedSoon(t *testing.T) {
	f := newFixture(t) // the check-in interval is an hour
	var patches atomic.Int32
	f.faults(func(r *http.Request) bool { return r.Method == http.MethodPatch && patches.Add(1) < 8 }, 503, "<h1>503</h1>")
	f.has(f.stored())
	f.starts()
	f.says("Heartbeat of cluster fleet-default/one failed, next try in")
	f.eventually(func() bool { f.hub.mutex.Lock(); defer f.hub.mutex.Unlock(); return len(f.hub.beats) == 1 }, "a heartbeat that arrived")
}

func TestLoopSendsHeartbeatsAfterTheClockWasSet(t *testing.T) {
	f := newFixture(t) // the check-in interval is an hour
	now := agenttest.NewClock(noon)
	f.config.Clock = now
	f.has(f.stored())
	f.starts()
	f.settles(oldToken)
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
	f := newFixture(t)
	f.config.CheckinInterval = 5 * time.Millisecond
	f.config.Clock = ahead{f.config.Clock, 5 * time.Minute}
	f.has(f.stored())
	f.starts()
	f.eventually(func() bool {
		skew := f.lastBeat().ClockSkew
		return skew != nil && skew.Round(10*time.Second) == 5*time.Minute
	}, "the clock skew")
}

// ahead is a clock that is wrong.
type ahead struct {
	clock.WithTicker
	by time.Duration
}

func (a ahead) Now() time.Time { return a.WithTicker.Now().Add(a.by) }

func TestLoopReportsItsState(t *testing.T) {
	f := newFixture(t)
	states := make(chan string, 100)
	f.config.OnState = func(state string) { states <- state }
	f.starts()
	assert.Equal(t, "there is no bootstrap Secret to register with; the log says what to do", <-states)
	f.has(f.stored())
	f.settles(oldToken)
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
	for name, arrange := range map[string]func(f *fixture){
		"bootstrap Secret": func(f *fixture) { f.has(agenttest.BootstrapSecret(server.URL, agenttest.CA(t))) },
		"stored credential": func(f *fixture) {
			f.has(agenttest.StoredSecret(t, server.URL, agenttest.CA(t), oldToken, "agentTLSMode", "strict"))
		},
		"ConfigMap": func(f *fixture) {
			f.has(f.stored("agentTLSMode", "strict"))
			f.hasConfigMap(agenttest.HubConfigMap(server.URL, agenttest.CA(t), ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.hasSettings(`{"agentTLSMode":"strict"}`)
			arrange(f)
			f.starts()
			f.says("agentTLSMode is strict, but the address of the hub is " + server.URL + ", to which the token would be sent unencrypted")
			assert.Zero(t, asked.Load())
		})
	}
}

// The clock stands still: after the first failure nothing may happen.
func TestLoopPausesAfterAFailure(t *testing.T) {
	for name, has := range map[string]func(f *fixture) []*corev1.Secret{
		"a refused request": func(f *fixture) []*corev1.Secret {
			f.refusesRequests("Denied", "no")
			f.refuses(testToken, false)
			return []*corev1.Secret{f.bootstrap()}
		},
		"no Secret":                 func(*fixture) []*corev1.Secret { return nil },
		"a token that is not valid": func(f *fixture) []*corev1.Secret { return []*corev1.Secret{f.bootstrap()} },
		"an outage of the hub":      func(f *fixture) []*corev1.Secret { return []*corev1.Secret{f.stored()} },
		"a bad bootstrap Secret":    func(f *fixture) []*corev1.Secret { return []*corev1.Secret{f.bootstrap("token", "")} },
		"an endpoint that fails": func(f *fixture) []*corev1.Secret {
			return []*corev1.Secret{f.stored(), f.bootstrap("apiServerURL", f.hub.server.URL+"/x")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			still := clocktesting.NewFakeClock(time.Unix(1000, 0))
			f.config.Clock = still
			f.refuses(testToken, true)
			f.faults(func(r *http.Request) bool { return strings.Contains(r.Header.Get("Authorization"), oldToken) }, 503, "<h1>503</h1>")
			f.has(has(f)...)
			f.starts()
			f.eventually(still.HasWaiters, "a pause")
			// The Secret found by the watch at the start may end the first pause, once.
			assert.Never(t, func() bool { return f.hub.count("") > 12 || len(f.core.Actions()) > 40 }, 100*time.Millisecond, 10*time.Millisecond)
		})
	}
}

func TestLoopReportsARejectedCredential(t *testing.T) {
	f := newFixture(t)
	f.config.CheckinInterval = 2 * time.Millisecond
	_, err := f.core.AppsV1().Deployments(agentNamespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: registration.AgentName, UID: "the-deployment"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.refuses(oldToken, true)
	f.has(f.stored())
	before := f.storedNow()
	f.starts()
	f.says("put its values into Secret cattle-fleet-system/fleet-agent-bootstrap")
	f.eventually(func() bool { return f.hub.count("bundledeployments") > 5*certainly }, "many tries")
	assert.Equal(t, before, f.storedNow())
	assert.Equal(t, 1, f.saidAt(logrus.ErrorLevel), "errors in the log")
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
		f.refuses(oldToken, false)
		f.eventually(func() bool { e := f.eventOf(reasonAccepted); return e != nil && e.Count == n }, "it works again")
		f.refuses(oldToken, true)
		f.eventually(func() bool { return f.eventOf(reasonRejected).Count == n+1 }, "rejected again")
	}
	assert.Len(t, f.events(reasonRejected), 1)
}

func (f *fixture) saidAt(level logrus.Level) (n int) {
	for _, entry := range f.log.AllEntries() {
		if entry.Level == level {
			n++
		}
	}
	return n
}

func TestLoopChangedResync(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored())
	f.hasSettings(`{"garbageCollectionInterval":"24h"}`)
	intervals := make(chan time.Duration, 3)
	f.startsDeploying(func(ctx context.Context, c deploy.Config) error {
		intervals <- c.Resync
		for {
			select {
			case <-ctx.Done():
				return nil
			case changed := <-c.ResyncChanged:
				intervals <- changed
			}
		}
	})
	assert.Equal(t, 24*time.Hour, <-intervals)
	f.settles(oldToken)
	f.hasSettings(`{"garbageCollectionInterval":"2m"}`)
	assert.Equal(t, 2*time.Minute, <-intervals)
	f.hasSettings(`{}`)
	assert.Equal(t, time.Duration(0), <-intervals, "the default")
}
