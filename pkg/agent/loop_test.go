package agent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestAnAgentWithoutAnythingSaysWhatItNeedsAndTakesItWhenItComes(t *testing.T) {
	f := newFixture(t)
	f.config.Timing.RetryFirst, f.config.Timing.RetryMax = time.Hour, time.Hour
	f.starts()
	f.says("Failed to register agent: there is no stored credential and there is no bootstrap Secret to register with; create a ClusterRegistrationToken")
	f.has(f.bootstrap())
	f.settles(newToken)
	assert.Len(t, f.hub.registrations(), 1)
}

func TestARestartDoesNotRegisterAgainAndWritesNothing(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored())
	before := len(f.core.Actions())
	f.starts()
	f.settles(oldToken)
	assert.Empty(t, f.hub.registrations())
	assert.Empty(t, f.writes(before))
}

func TestABootstrapSecretThatDoesNotAskForItStartsNoRegistration(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored("registration", "uid/1"), f.bootstrap())
	f.starts()
	f.settles(oldToken)
	assert.Empty(t, f.hub.registrations())
}

func TestABootstrapSecretOfTheSameRegistrationIsALeftover(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored("registration", "uid/1"), f.bootstrap("registration", "uid/1"))
	f.starts()
	f.settles(oldToken)
	assert.Empty(t, f.hub.registrations())
}

func TestTheCredentialIsReplacedInOneWrite(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored("registration", "uid/1"), f.bootstrap("registration", "uid/2"))
	before := len(f.core.Actions())
	f.starts()
	f.settles(newToken)
	assert.Equal(t, []string{
		"create fleet-agent-pending", "update fleet-agent", "delete fleet-agent-pending", "delete fleet-agent-bootstrap",
	}, f.writes(before))
	secret := f.secret(registration.CredentialSecret)
	assert.Equal(t, "uid/2", string(secret.Data[registration.BootstrapRegistration]))
}

func TestTheOldCredentialGoesOnWorkingWhileANewRegistrationFails(t *testing.T) {
	f := newFixture(t)
	f.config.CheckinInterval = 5 * time.Millisecond
	f.hub.refused[testToken] = true
	f.has(f.stored(), f.bootstrap("registration", "uid/2"))
	f.starts()
	f.says(`registration token "import-token-one" expired or was revoked`)
	beats := f.hub.count("/status as " + oldToken)
	f.eventually(func() bool { return f.hub.count("/status as "+oldToken) > beats+5 }, "heartbeats with the old credential")
	assert.Equal(t, oldToken, f.storedToken())
	f.hub.set(func() { f.hub.refused[testToken] = false })
	f.settles(newToken)
}

func TestANewCredentialThatDoesNotWorkDoesNotReplaceTheOldOne(t *testing.T) {
	f := newFixture(t)
	f.hub.refused[newToken] = true
	f.has(f.stored(), f.bootstrap("registration", "uid/2"))
	f.starts()
	f.says("Failed to register agent: the credential from the hub for cluster fleet-default/one does not work")
	assert.Equal(t, oldToken, f.storedToken())
	f.hub.set(func() { f.hub.refused[newToken] = false })
	f.settles(newToken)
}

func TestProxyTroubleAndOutagesCostNothing(t *testing.T) {
	for name, fault := range map[string]struct {
		code int
		body string
	}{
		"401 of a proxy":          {401, "<h1>401</h1>"},
		"401 of a proxy in JSON":  {401, `{"type":"error","status":"401"}`},
		"403 of a proxy":          {403, "<h1>403</h1>"},
		"403 of the API server":   {403, status403},
		"404 of a hub half built": {404, "404 page not found"},
		"500 of the API server":   {500, status500},
		"502":                     {502, "<h1>502</h1>"},
		"503":                     {503, "<h1>503</h1>"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.hub.fault = func(*http.Request) (int, string) { return fault.code, fault.body }
			f.has(f.stored(), f.bootstrap())
			before := len(f.core.Actions())
			f.starts()
			f.eventually(func() bool { return f.said("Waiting for the hub, keeping the stored credential") >= 5 }, "waiting")
			assert.Empty(t, f.writes(before))
			f.hub.set(func() { f.hub.fault = nil })
			f.settles(oldToken)
			assert.Empty(t, f.hub.registrations())
		})
	}
}

func TestARefusedCredentialIsReplacedWithTheBootstrapSecret(t *testing.T) {
	f := newFixture(t)
	f.hub.refused[oldToken] = true
	f.has(f.stored(), f.bootstrap())
	f.starts()
	f.settles(newToken)
	assert.GreaterOrEqual(t, f.hub.count("bundledeployments as "+oldToken), certainly)
	assert.Len(t, f.hub.registrations(), 1)
}

func TestARefusalWhileRunningLeadsToANewRegistration(t *testing.T) {
	f := newFixture(t)
	f.config.CheckinInterval = 5 * time.Millisecond
	f.has(f.stored())
	f.starts()
	f.settles(oldToken)
	f.hub.set(func() { f.hub.refused[oldToken] = true })
	f.says("Starting over: heartbeat: the hub rejects the credential")
	f.has(f.bootstrap())
	f.settles(newToken)
}

// helm install --wait waits for every object of the release, this Secret included.
func TestABootstrapSecretOfHelmStaysUntilHelmHasSeenTheAgentAtWork(t *testing.T) {
	f := newFixture(t)
	ofHelm := f.bootstrap()
	ofHelm.Annotations = map[string]string{"meta.helm.sh/release-name": "fleet-agent"}
	f.config.Timing.HelmWait = time.Hour
	f.has(ofHelm)
	f.starts()
	f.eventually(func() bool { return f.storedToken() == newToken && f.hub.count("PATCH") > 0 }, "the agent at work")
	f.eventually(func() bool { return f.secret(registration.PendingSecret) == nil }, "tidied up")
	require.NotNil(t, f.secret(registration.BootstrapSecret))
	assert.Len(t, f.hub.registrations(), 1)
}

func TestABootstrapSecretOfHelmStaysWhileThePendingRequestCannotBeDeleted(t *testing.T) {
	f := newFixture(t)
	var failures atomic.Int32
	f.core.PrependReactor("delete", "secrets", func(action kubetesting.Action) (bool, runtime.Object, error) {
		if action.(kubetesting.DeleteAction).GetName() != registration.PendingSecret || failures.Add(1) > 5 {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(assert.AnError)
	})
	ofHelm := f.bootstrap()
	ofHelm.Annotations = map[string]string{"meta.helm.sh/release-name": "fleet-agent"}
	f.config.Timing.HelmWait = time.Hour
	f.has(ofHelm)
	f.starts()
	f.eventually(func() bool { return f.secret(registration.PendingSecret) == nil && f.storedToken() == newToken }, "clean-up was retried")
	assert.Greater(t, failures.Load(), int32(5))
	assert.NotNil(t, f.secret(registration.BootstrapSecret))
}

func TestABootstrapSecretOfHelmGoesInTheEnd(t *testing.T) {
	f := newFixture(t)
	ofHelm := f.bootstrap()
	ofHelm.Annotations = map[string]string{"meta.helm.sh/release-name": "fleet-agent"}
	f.has(ofHelm)
	f.starts()
	f.settles(newToken)
	assert.Len(t, f.hub.registrations(), 1)
}

// Between two heartbeats nobody has noticed yet that the credential is void, but the person who brings the Secret has.
func TestABootstrapSecretThatComesForAVoidCredentialIsUsedAndNotTidiedAway(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored("registration", "uid/1"))
	f.starts()
	f.settles(oldToken)
	f.hub.set(func() { f.hub.refused[oldToken] = true })
	f.has(f.bootstrap())
	f.settles(newToken)
	assert.Len(t, f.hub.registrations(), 1)
}

func TestABootstrapSecretThatComesWhileTheHubSaysNothingStaysUntilItDoes(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored("registration", "uid/1"))
	f.starts()
	f.settles(oldToken)
	asked := f.hub.count("bundledeployments as " + oldToken)
	f.hub.set(func() { f.hub.fault = func(*http.Request) (int, string) { return http.StatusBadGateway, "no" } })
	f.has(f.bootstrap())
	f.eventually(func() bool { return f.hub.count("bundledeployments as "+oldToken) > asked+2 }, "asked again and again")
	require.NotNil(t, f.secret(registration.BootstrapSecret))
	f.hub.set(func() { f.hub.fault = nil })
	f.settles(oldToken)
	assert.Empty(t, f.hub.registrations(), "the credential works, so the Secret was a leftover")
}

func TestOneRefusalWhileRunningIsForgiven(t *testing.T) {
	f := newFixture(t)
	f.config.CheckinInterval = 5 * time.Millisecond
	patches := 0
	f.hub.fault = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPatch {
			if patches++; patches%3 != 0 {
				return 401, status401
			}
		}
		return 0, ""
	}
	f.has(f.stored())
	f.starts()
	f.eventually(func() bool { return f.hub.count("PATCH") > 15 }, "many heartbeats")
	assert.Zero(t, f.said("Starting over"))
}

func TestADeadRegistrationTokenIsNamedAndANewOneTakesEffectAtOnce(t *testing.T) {
	f := newFixture(t)
	f.config.Timing.RetryFirst, f.config.Timing.RetryMax = time.Hour, time.Hour
	f.hub.refused[testToken] = true
	f.has(f.bootstrap())
	f.starts()
	f.says(`registration token "import-token-one" expired or was revoked; create a new one on the hub and put it into Secret cattle-fleet-system/fleet-agent-bootstrap`)
	f.has(f.bootstrap("token", "another", "tokenName", "two"))
	f.settles(newToken)
}

func TestANewBootstrapSecretReplacesTheOneThatIsWaitedWith(t *testing.T) {
	f := newFixture(t)
	f.hub.grantAt = 1 << 30
	f.has(f.bootstrap())
	f.starts()
	f.says("Waiting for the hub to grant ClusterRegistration fleet-default/request-")
	f.has(f.bootstrap("token", "another", "tokenName", "two"))
	f.says("Secret fleet-agent-bootstrap has changed")
	f.hub.set(func() { f.hub.grantAt = 0 })
	f.settles(newToken)
	requests := f.hub.registrations()
	require.Len(t, requests, 2)
	assert.Equal(t, "two", requests[1].Labels["fleet.cattle.io/registration-token"])
	assert.NotEqual(t, requests[0].Spec.ClientRandom, requests[1].Spec.ClientRandom)
}

func TestALostAnswerMakesNoSecondRequest(t *testing.T) {
	f := newFixture(t)
	posts := 0
	f.hub.fault = func(r *http.Request) (int, string) {
		if r.Method != http.MethodPost {
			return 0, ""
		}
		if posts++; posts > 3 {
			return 0, ""
		}
		// Carried out, but the agent does not hear of it.
		f.hub.create(discard{}, r)
		return 502, "<h1>502</h1>"
	}
	f.has(f.bootstrap())
	f.starts()
	f.settles(newToken)
	assert.Len(t, f.hub.registrations(), 1)
	assert.Equal(t, 3, f.said("Failed to register agent: cannot create clusterregistration on management cluster for cluster id 'the-uid'"))
}

// discard swallows a reply.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

func TestA409OfAProxyIsNotTakenForOurRequest(t *testing.T) {
	f := newFixture(t)
	posts := 0
	f.hub.fault = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost {
			if posts++; posts == 1 {
				return 409, "<h1>Conflict</h1>"
			}
		}
		return 0, ""
	}
	f.has(f.bootstrap())
	f.starts()
	f.says("Failed to register agent: cannot create clusterregistration")
	f.settles(newToken)
}

func TestThePendingRequestOutlivesARestart(t *testing.T) {
	f := newFixture(t)
	f.hub.grantAt = 1 << 30
	f.has(f.bootstrap())
	f.runsUntil(func() bool { return f.said("Waiting for the hub to grant") > 0 })
	f.hub.set(func() { f.hub.grantAt = 0 })
	f.starts()
	f.settles(newToken)
	assert.Len(t, f.hub.registrations(), 1)
}

func TestAnIncompleteAnswerIsWaitedFor(t *testing.T) {
	f := newFixture(t)
	f.hub.grant["token"] = ""
	f.has(f.bootstrap())
	f.starts()
	f.says("the credential is not complete yet")
	assert.Empty(t, f.storedToken())
	f.hub.set(func() { f.hub.grant["token"] = newToken })
	f.settles(newToken)
}

func TestRightsThatComeLateAreWaitedFor(t *testing.T) {
	f := newFixture(t)
	f.config.Timing.RightsLag = patience
	lists := 0
	f.hub.fault = func(r *http.Request) (int, string) {
		if strings.HasSuffix(r.URL.Path, "bundledeployments") {
			if lists++; lists < 5 {
				return 403, status403
			}
		}
		return 0, ""
	}
	f.has(f.bootstrap())
	f.starts()
	f.settles(newToken)
	assert.Zero(t, f.said("Failed"))
}

func TestRightsThatDoNotComeKeepTheRequest(t *testing.T) {
	f := newFixture(t)
	f.hub.fault = func(r *http.Request) (int, string) {
		if strings.HasSuffix(r.URL.Path, "bundledeployments") {
			return 403, status403
		}
		return 0, ""
	}
	f.has(f.bootstrap())
	f.starts()
	f.eventually(func() bool { return f.said("does not work") >= 2 }, "two attempts")
	assert.Len(t, f.hub.registrations(), 1)
	assert.Empty(t, f.storedToken())
	f.hub.set(func() { f.hub.fault = nil })
	f.settles(newToken)
	assert.Len(t, f.hub.registrations(), 1)
}

func TestACredentialTheHubDoesNotKnowNeedsAnotherRequest(t *testing.T) {
	f := newFixture(t)
	f.hub.refused[newToken] = true
	f.has(f.bootstrap())
	f.starts()
	f.eventually(func() bool { return len(f.hub.registrations()) > 1 }, "another request")
	f.hub.set(func() { f.hub.refused[newToken] = false })
	f.settles(newToken)
}

func TestMalformedSecretsAreNamedAndKept(t *testing.T) {
	t.Run("a stored one with nothing to register with", func(t *testing.T) {
		f := newFixture(t)
		f.has(f.stored("kubeconfig", "garbage"))
		before := len(f.core.Actions())
		f.starts()
		f.says("Failed to register agent: the stored credential is unusable (key kubeconfig of Secret cattle-fleet-system/fleet-agent")
		assert.Empty(t, f.writes(before))
		f.has(f.stored())
		f.settles(oldToken)
	})
	t.Run("a stored one with a bootstrap Secret", func(t *testing.T) {
		f := newFixture(t)
		f.has(f.stored("kubeconfig", "garbage"), f.bootstrap())
		f.starts()
		f.settles(newToken)
	})
	t.Run("a bootstrap Secret", func(t *testing.T) {
		f := newFixture(t)
		f.has(f.bootstrap("apiServerURL", ""))
		f.starts()
		f.says("Secret cattle-fleet-system/fleet-agent-bootstrap is ignored: key apiServerURL")
		f.has(f.bootstrap())
		f.settles(newToken)
	})
	t.Run("a bootstrap Secret beside a credential that works", func(t *testing.T) {
		f := newFixture(t)
		f.has(f.stored(), f.bootstrap("apiServerURL", ""))
		f.starts()
		f.says("fleet-agent-bootstrap is ignored: key apiServerURL")
		assert.NotNil(t, f.secret(registration.BootstrapSecret))
		f.has(f.bootstrap("registration", "uid/2"))
		f.settles(newToken)
	})
	t.Run("a pending request", func(t *testing.T) {
		f := newFixture(t)
		f.has(f.bootstrap(), agenttest.Secret(registration.PendingSecret, map[string]string{"request": "x"}))
		f.starts()
		f.settles(newToken)
		assert.Len(t, f.hub.registrations(), 1)
	})
}

func TestAConfigMapThatCannotBeReadIsNotTakenForTheDefaults(t *testing.T) {
	f := newFixture(t)
	f.has(f.bootstrap())
	configMap := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentConfigMap}, Data: map[string]string{"config": "{"},
	}
	_, err := f.core.CoreV1().ConfigMaps(agentNamespace).Create(t.Context(), configMap, metav1.CreateOptions{})
	require.NoError(t, err)
	f.starts()
	f.says("Failed to register agent: the agent's configuration (ConfigMap fleet-agent, key config)")
	assert.Empty(t, f.hub.registrations())
	configMap.Data["config"] = `{"clientID":"mine"}`
	_, err = f.core.CoreV1().ConfigMaps(agentNamespace).Update(t.Context(), configMap, metav1.UpdateOptions{})
	require.NoError(t, err)
	f.settles(newToken)
	assert.Equal(t, "mine", f.hub.registrations()[0].Spec.ClientID)
}

// A hub that does not say which registration it wants installs the agent again by deleting the credential.
func TestACredentialDeletedWhileRunningIsObtainedAgain(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored())
	f.starts()
	f.settles(oldToken)
	f.lacks(registration.CredentialSecret)
	f.has(f.bootstrap())
	f.settles(newToken)
}

func TestTheBootstrapSecretIsDeletedAsItWasReadAndUntilItIsGone(t *testing.T) {
	f := newFixture(t)
	failures := 0
	var mutex sync.Mutex
	f.core.PrependReactor("delete", "secrets", func(action kubetesting.Action) (bool, runtime.Object, error) {
		mutex.Lock()
		defer mutex.Unlock()
		options := action.(kubetesting.DeleteActionImpl).GetDeleteOptions()
		assert.NotNil(t, options.Preconditions.UID)
		assert.NotNil(t, options.Preconditions.ResourceVersion)
		if failures++; failures < 4 {
			return true, nil, apierrors.NewInternalError(assert.AnError)
		}
		return false, nil, nil
	})
	f.has(f.bootstrap())
	f.starts()
	f.settles(newToken)
	assert.Len(t, f.hub.registrations(), 1)
	assert.Positive(t, f.said("deleting what is left of the registration"))
}

func TestAFailedHeartbeatIsTriedAgainSoon(t *testing.T) {
	f := newFixture(t)
	f.hub.fault = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPatch && len(f.hub.requests) < 8 {
			return 503, "<h1>503</h1>"
		}
		return 0, ""
	}
	f.has(f.stored())
	f.starts() // check-in is an hour
	f.settles(oldToken)
	f.says("Heartbeat of cluster fleet-default/one failed, next try in")
	f.eventually(func() bool { f.hub.mutex.Lock(); defer f.hub.mutex.Unlock(); return len(f.hub.beats) == 1 }, "a heartbeat that arrived")
}

// With a clock that stands still nothing may happen after the first failure.
func TestNothingRunsHot(t *testing.T) {
	for name, has := range map[string]func(f *fixture) []*corev1.Secret{
		"nothing at all":         func(*fixture) []*corev1.Secret { return nil },
		"a dead token":           func(f *fixture) []*corev1.Secret { return []*corev1.Secret{f.bootstrap()} },
		"a hub in trouble":       func(f *fixture) []*corev1.Secret { return []*corev1.Secret{f.stored()} },
		"a bad bootstrap Secret": func(f *fixture) []*corev1.Secret { return []*corev1.Secret{f.bootstrap("token", "")} },
		"a hub that has not moved": func(f *fixture) []*corev1.Secret {
			return []*corev1.Secret{f.stored(), f.bootstrap("apiServerURL", f.hub.server.URL+"/x")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			still := clocktesting.NewFakeClock(time.Unix(1000, 0))
			f.config.Clock = still
			f.hub.refused[testToken] = true
			f.hub.fault = func(r *http.Request) (int, string) {
				if strings.Contains(r.Header.Get("Authorization"), oldToken) {
					return 503, "<h1>503</h1>"
				}
				return 0, ""
			}
			f.has(has(f)...)
			f.starts()
			f.eventually(still.HasWaiters, "a pause")
			// The Secret found by the watch at the start may cut the first pause short, once.
			assert.Never(t, func() bool { return f.hub.count("") > 4 || len(f.core.Actions()) > 40 }, 100*time.Millisecond, 10*time.Millisecond)
		})
	}
}

func TestTheLifeLeavesNoGoroutine(t *testing.T) {
	known := goleak.IgnoreCurrent()
	t.Run("life", func(t *testing.T) {
		f := newFixture(t)
		f.has(f.bootstrap())
		f.runsUntil(func() bool { return f.isSettled() })
	})
	noLeak(t, known)
}

// Every request has the token in it, so none may be sent.
func TestStrictModeSendsNoTokenUnencrypted(t *testing.T) {
	const refused = "agentTLSMode is strict, but the address of the hub is "
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
			f.says(refused + server.URL + ", to which the token would be sent unencrypted")
			assert.Zero(t, asked.Load())
		})
	}
}

func TestStateOfAnIteration(t *testing.T) {
	f := newFixture(t)
	states := make(chan string, 100)
	f.config.OnState = func(state string) { states <- state }
	f.starts()
	assert.Equal(t, "there is no bootstrap Secret to register with; the log says what to do", <-states)
	f.has(f.stored())
	f.settles(oldToken)
	f.eventually(func() bool {
		select {
		case got := <-states:
			return got == "registered"
		default:
			return false
		}
	}, "registered")
}

func TestHeartbeatReportsTheClockSkew(t *testing.T) {
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

func TestARestartSendsTwoRequestsToTheHub(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored())
	f.starts()
	f.settles(oldToken)
	assert.Equal(t, 2, f.hub.count(""), "one to check the credential, one heartbeat")
}
