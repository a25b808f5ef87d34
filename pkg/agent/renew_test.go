package agent

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent/deploy"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// renewingAgent is an agent with a credential for a day, a hub that renews it, and a clock that the test advances.
type renewingAgent struct {
	*testAgent
	clock      *agenttest.Clock
	token      string // in Secret fleet-agent at the start
	serial     int
	deployRuns atomic.Int32
	broken     atomic.Pointer[kubetesting.ReactionFunc] // of the member's Secrets; nil while they work
}

func newRenewingAgent(t *testing.T, edits ...string) *renewingAgent {
	t.Helper()
	f := newTestAgent(t)
	r := &renewingAgent{testAgent: f, clock: agenttest.NewClock(noon), token: agenttest.JWT("uid", noon, noon.Add(day), 0)}
	f.config.Clock, f.config.Member = r.clock, &rest.Config{}
	f.hub.dateless = true
	f.hub.issue = func(lifetime time.Duration) string {
		r.serial++
		now := r.clock.FakeClock.Now() // the hub has another wall clock
		return agenttest.JWT("uid", now, now.Add(lifetime), r.serial)
	}
	f.putSecrets(agenttest.StoredSecret(t, f.hub.server.URL, f.hub.ca(), r.token, edits...))
	// The list of reactors has no lock, so it is complete before the agent starts.
	r.core.PrependReactor("*", "secrets", func(action kubetesting.Action) (bool, runtime.Object, error) {
		if breaks := r.broken.Load(); breaks != nil {
			return (*breaks)(action)
		}
		return false, nil, nil
	})
	return r
}

func (r *renewingAgent) start() {
	r.Helper()
	r.startWith(func(ctx context.Context, _ deploy.Config) error {
		r.deployRuns.Add(1)
		<-ctx.Done()
		return nil
	})
	r.waitUntilSettled(r.token)
}

// advanceUntil advances the clock until the condition holds.
func (r *renewingAgent) advanceUntil(condition func() bool, what string) {
	r.Helper()
	r.eventually(func() bool { r.clock.Step(10 * time.Minute); return condition() }, what)
}

func (r *renewingAgent) isRenewed() bool { return r.storedToken() != r.token && r.storedToken() != "" }

func (r *renewingAgent) requests() int { return r.hub.count("/serviceaccounts/the-agent/token") }

func TestRenewAtTwoThirdsOfTheLifetime(t *testing.T) {
	r := newRenewingAgent(t, "registration", "uid/1", "agentHubSettled", "seen", "request", "request-1")
	r.config.CheckinInterval = 30 * day // only changes cause a heartbeat
	r.start()
	assert.Equal(t, noon.Add(day), r.lastHeartbeat().CredentialExpires.UTC())
	before := len(r.core.Actions())
	r.advanceUntil(r.isRenewed, "renewed")
	asked := r.clock.Now()
	assert.GreaterOrEqual(t, asked.Sub(noon), day*6/10, "not before")
	r.eventually(func() bool {
		expires := r.lastHeartbeat().CredentialExpires
		return expires != nil && expires.After(noon.Add(day))
	}, "the hub learns the new expiry at once")
	assert.Equal(t, []string{"update fleet-agent"}, r.writes(before))
	assert.EqualValues(t, 1, r.deployRuns.Load(), "the work goes on")
	assert.Equal(t, []time.Duration{day}, r.hub.requestedLifetimes)
	assert.Equal(t, 1, r.hub.count("/token as "+r.token))
	assert.Equal(t, 1, r.hub.count("PATCH /apis/fleet.cattle.io/v1alpha1/namespaces/fleet-default/clusters/one/status as "+r.storedToken()), "the new one is used")
	secret := r.secret(registration.CredentialSecret)
	for key, want := range map[string]string{"registration": "uid/1", "agentHubSettled": "seen", "request": "request-1", "clusterName": "one", "agentTLSMode": "system-store"} {
		assert.Equal(t, want, string(secret.Data[key]), key)
	}
	assert.Nil(t, r.eventOf("CredentialExpiring"))
	r.advanceUntil(func() bool { return r.countLogs("The credential for the hub was renewed") > 1 }, "renewed again")
	assert.EqualValues(t, 1, r.deployRuns.Load(), "the work goes on")
}

func TestRenewAtTheStart(t *testing.T) {
	r := newRenewingAgent(t)
	r.clock.Step(20 * time.Hour)
	r.startWith(deployNothing)
	r.eventually(r.isRenewed, "renewed without a wait")
}

func TestRenewWithAClockFarAhead(t *testing.T) {
	r := newRenewingAgent(t)
	r.hub.issue = func(lifetime time.Duration) string {
		r.serial++
		issued := noon.Add(time.Duration(r.serial) * time.Minute)
		return agenttest.JWT("uid", issued, issued.Add(lifetime), r.serial)
	}
	r.clock.Step(100 * day)
	r.startWith(deployNothing)
	r.eventually(r.isRenewed, "renewed")
	assert.Never(t, func() bool { return r.requests() > 1 }, 100*time.Millisecond, 10*time.Millisecond)
}

// The clock of the agent is set by a day, or the machine is suspended for a day.
func TestRenewAfterTheClockWasSet(t *testing.T) {
	for name, row := range map[string]struct {
		step     time.Duration
		dateless bool
		// renewed is the time at which the credential is renewed.
		renewed time.Duration
	}{
		"back":                               {-day, false, 23 * time.Hour},
		"back, and the hub sends no dates":   {-day, true, 23 * time.Hour},
		"forward":                            {day, false, 10 * time.Minute},
		"forward, and the hub sends no date": {day, true, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRenewingAgent(t)
			r.hub.dateless, r.hub.clock = row.dateless, r.clock.FakeClock
			r.config.CheckinInterval = 30 * day // no heartbeat measures the clock skew again
			r.start()
			waits := func() bool { return r.clock.Waiters() == 2 } // the renewal and the heartbeat
			r.eventually(waits, "both wait")
			r.clock.StepWall(row.step)
			r.clock.Step(row.renewed)
			r.eventually(r.isRenewed, "renewed before the credential has expired")

			r.eventually(waits, "the renewal waits again")
			requests := r.requests()
			if row.dateless {
				return // a clock that is wrong by more than a lifetime
			}
			for range 10 {
				r.clock.Step(time.Hour)
				r.eventually(waits, "the renewal waits again")
			}
			assert.Equal(t, requests, r.requests(), "renewed once")
		})
	}
}

func TestRenewNotForTenYears(t *testing.T) {
	r := newRenewingAgent(t)
	r.token = agenttest.JWT("uid", noon, noon.Add(credential.LongLived), 0)
	r.putSecrets(agenttest.StoredSecret(t, r.hub.server.URL, r.hub.ca(), r.token))
	r.start()
	r.clock.Step(9 * 365 * day)
	assert.Never(t, func() bool { return r.requests() > 0 }, 100*time.Millisecond, 10*time.Millisecond)
	assert.Nil(t, r.lastHeartbeat().CredentialExpires)
}

// Whatever fails, the old credential works and a later attempt succeeds.
func TestRenewRetriesAfterFailures(t *testing.T) {
	sample.Long(t)
	isToken := func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/token") }
	isProbe := func(r *renewingAgent, req *http.Request) bool {
		return req.Method == http.MethodGet && !strings.Contains(req.Header.Get("Authorization"), r.token)
	}
	for name, breaks := range map[string]func(r *renewingAgent, done func() bool){
		"403":            func(r *renewingAgent, done func() bool) { r.failHub(done, isToken, 403, status403) },
		"500":            func(r *renewingAgent, done func() bool) { r.failHub(done, isToken, 500, status500) },
		"401":            func(r *renewingAgent, done func() bool) { r.failHub(done, isToken, 401, status401) },
		"a proxy's page": func(r *renewingAgent, done func() bool) { r.failHub(done, isToken, 200, "<h1>hello</h1>") },
		"no token in it": func(r *renewingAgent, done func() bool) {
			r.failHub(done, isToken, 201, `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":null}}`)
		},
		"a lost answer": func(r *renewingAgent, done func() bool) { r.failHub(done, isToken, 502, "<h1>502</h1>") },
		"somebody else's": func(r *renewingAgent, done func() bool) {
			r.issueOnce(done, agenttest.JWT("other", noon, noon.Add(9*day), 9))
		},
		"no longer life": func(r *renewingAgent, done func() bool) {
			r.issueOnce(done, agenttest.JWT("uid", noon, noon.Add(day), 9))
		},
		"no end": func(r *renewingAgent, done func() bool) {
			r.issueOnce(done, agenttest.JWT("uid", noon, time.Time{}, 9))
		},
		"a new one that is refused": func(r *renewingAgent, done func() bool) {
			r.failHub(done, func(req *http.Request) bool { return isProbe(r, req) }, 401, status401)
		},
		"a new one without rights": func(r *renewingAgent, done func() bool) {
			r.failHub(done, func(req *http.Request) bool { return isProbe(r, req) }, 403, status403)
		},
		"the Secret cannot be read": func(r *renewingAgent, done func() bool) {
			r.failMember("get", done, apierrors.NewInternalError(assert.AnError), false)
		},
		"the Secret cannot be written": func(r *renewingAgent, done func() bool) {
			r.failMember("update", done, apierrors.NewInternalError(assert.AnError), false)
		},
		"somebody wrote in between":  func(r *renewingAgent, done func() bool) { r.failMember("update", done, conflict(), false) },
		"the write's answer is lost": func(r *renewingAgent, done func() bool) { r.failMember("update", done, assert.AnError, true) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRenewingAgent(t)
			r.start()
			var broken atomic.Int32
			breaks(r, func() bool { return broken.Add(1) > 3 })
			r.advanceUntil(func() bool { return r.countLogs("could not be renewed") > 0 }, "a failure is logged")
			r.advanceUntil(func() bool { return r.countLogs("The credential for the hub was renewed") > 0 }, "renewed in the end")
			assert.EqualValues(t, 1, r.deployRuns.Load(), "the work goes on")
			assert.Zero(t, r.countLogs("The work with the stored credential has ended"))
			assert.True(t, r.isRenewed())
			assert.Positive(t, broken.Load())
		})
	}
}

func conflict() error {
	return apierrors.NewConflict(corev1.Resource("secrets"), "fleet-agent", assert.AnError)
}

func (r *renewingAgent) failHub(done func() bool, which func(*http.Request) bool, code int, body string) {
	r.hub.set(func() {
		r.hub.fault = func(req *http.Request) (int, string) {
			if which(req) && !done() {
				return code, body
			}
			return 0, ""
		}
	})
}

func (r *renewingAgent) issueOnce(done func() bool, token string) {
	r.hub.set(func() {
		good := r.hub.issue
		r.hub.issue = func(lifetime time.Duration) string {
			if !done() {
				return token
			}
			return good(lifetime)
		}
	})
}

// failMember fails requests for the Secret after a token was requested. With carried they are carried out nevertheless.
func (r *renewingAgent) failMember(verb string, done func() bool, err error, carried bool) {
	var breaks kubetesting.ReactionFunc = func(action kubetesting.Action) (bool, runtime.Object, error) {
		if action.GetVerb() != verb || r.requests() == 0 || done() {
			return false, nil, nil
		}
		if update, ok := action.(kubetesting.UpdateAction); ok && carried {
			assert.NoError(r, r.core.Tracker().Update(action.GetResource(), update.GetObject(), agentNamespace))
		}
		return true, nil, err
	}
	r.broken.Store(&breaks)
}

// A quarantine takes the right to request tokens away, perhaps for hours.
func TestRenewAsksForTheFullLifetimeAfterAMissingRight(t *testing.T) {
	const refused = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":` +
		`"serviceaccounts \"the-agent\" is forbidden: User \"system:serviceaccount:cluster-ns:the-agent\" cannot create resource ` +
		`\"serviceaccounts/token\" in API group \"\" in the namespace \"cluster-ns\""}`
	for name, message := range map[string]string{"a missing right": refused, "a policy": status403} {
		t.Run(name, func(t *testing.T) {
			r := newRenewingAgent(t)
			asked := map[time.Duration]bool{}
			r.hub.fault = func(req *http.Request) (int, string) {
				if !strings.HasSuffix(req.URL.Path, "/token") {
					return 0, ""
				}
				asked[lifetimeOf(t, req)] = true
				return 403, message
			}
			r.start()
			r.advanceUntil(func() bool { return r.countLogs("could not be renewed") > 4 }, "failures")
			r.hub.set(func() {
				r.hub.fault = nil
				assert.Equal(t, message == refused, !asked[day/2], "a right that is missing is missing for any lifetime")
			})
			r.advanceUntil(r.isRenewed, "renewed")
			if message == refused { // with a policy, it depends on the number of failures which lifetime is next
				assert.Equal(t, day, r.hub.requestedLifetimes[0])
			}
		})
	}
}

func TestRenew_changedLifetime(t *testing.T) {
	r := newRenewingAgent(t)
	r.config.CredentialLifetime = 7 * day
	r.start()
	r.advanceUntil(r.isRenewed, "renewed")
	assert.Equal(t, 7*day, r.hub.requestedLifetimes[0])
}

// A token that expires before the current one would be useless.
func TestRenew_muchShorterLifetime(t *testing.T) {
	r := newRenewingAgent(t)
	r.config.CredentialLifetime = time.Hour
	r.start()
	r.advanceUntil(r.isRenewed, "renewed")
	assert.Zero(t, r.countLogs("could not be renewed"))
	assert.Greater(t, r.hub.requestedLifetimes[0], 5*time.Hour)
	assert.Less(t, r.hub.requestedLifetimes[0], 12*time.Hour)
}

// lifetimeOf returns the lifetime in a TokenRequest. The body can be read again.
func lifetimeOf(t *testing.T, req *http.Request) time.Duration {
	body, err := io.ReadAll(req.Body)
	assert.NoError(t, err)
	req.Body = io.NopCloser(bytes.NewReader(body))
	request := &authenticationv1.TokenRequest{}
	_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, request)
	assert.NoError(t, err)
	return time.Duration(*request.Spec.ExpirationSeconds) * time.Second
}

func TestRenewWritesEvents(t *testing.T) {
	r := newRenewingAgent(t)
	r.hub.fault = func(req *http.Request) (int, string) {
		if strings.HasSuffix(req.URL.Path, "/token") {
			return 500, status500
		}
		return 0, ""
	}
	r.start()
	r.advanceUntil(func() bool { return r.countLogs("could not be renewed") > 2 }, "failures")
	if r.clock.Now().Before(noon.Add(day * 5 / 6)) {
		assert.Nil(t, r.eventOf("CredentialExpiring"), "there is time enough")
	}
	r.advanceUntil(func() bool { return r.eventOf("CredentialExpiring") != nil }, "the event")
	event := r.eventOf("CredentialExpiring")
	assert.Equal(t, corev1.EventTypeWarning, event.Type)
	assert.Contains(t, event.Message, "expires at 2026-01-03T12:00:00Z")
	assert.EqualValues(t, 1, event.Count)
	assert.False(t, r.clock.Now().Before(noon.Add(day*5/6)))
	r.hub.set(func() { r.hub.fault = nil })
	r.advanceUntil(func() bool { return r.eventOf("CredentialRenewed") != nil }, "renewed")
	assert.EqualValues(t, 1, r.eventOf("CredentialExpiring").Count, "once")
}

func TestRenewDoesNotOverwriteAnotherCredential(t *testing.T) {
	r := newRenewingAgent(t)
	r.start()
	r.putSecrets(r.stored("clusterName", "one"))
	r.advanceUntil(func() bool { return r.hub.count("/status as "+oldToken) > 0 }, "working with it")
	assert.Equal(t, oldToken, r.storedToken())
}

// The etcd of the member is restored from a backup: the Secret has an earlier token of the same ServiceAccount, which may expire soon.
func TestRenewWritesTheNewerTokenBack(t *testing.T) {
	r := newRenewingAgent(t)
	r.start()
	r.advanceUntil(r.isRenewed, "renewed")
	renewed := r.storedToken()
	r.advanceUntil(func() bool { return r.countLogs("The credential for the hub was renewed") > 0 && r.isWatching() }, "the watches have begun")
	for serial, issued := range []time.Time{noon, noon.Add(-day / 2)} { // that of the start, and one that this process has never seen
		earlier := agenttest.JWT("uid", issued, issued.Add(day), serial)
		r.putSecrets(agenttest.StoredSecret(t, r.hub.server.URL, r.hub.ca(), earlier))
		r.eventually(func() bool { return r.storedToken() != earlier }, "written back")
		assert.Equal(t, renewed, r.storedToken())
	}
	assert.EqualValues(t, 1, r.deployRuns.Load(), "the work goes on")
	assert.Zero(t, r.countLogs("The work with the stored credential has ended"))
}

// A renewal stores its token while the loop observes: the token that the loop has read is an earlier one, but not of a backup.
func TestRenewWhileTheSecretIsRead(t *testing.T) {
	r := newRenewingAgent(t)
	r.start()
	r.advanceUntil(r.isRenewed, "renewed")
	renewed := r.storedToken()
	r.advanceUntil(func() bool { return r.countLogs("The credential for the hub was renewed") > 0 && r.isWatching() }, "the watches have begun")
	var updates atomic.Int32
	r.failMember("update", func() bool { return updates.Add(1) != 2 }, conflict(), false) // the first is that of the test
	r.putSecrets(agenttest.StoredSecret(t, r.hub.server.URL, r.hub.ca(), r.token))
	r.eventually(func() bool { return r.storedToken() == renewed }, "observed again")
	assert.Zero(t, r.countLogs("Cannot write the newer token"))
}

// A webhook of the member answers each update with a conflict.
func TestRenewCannotWriteTheNewerTokenBack(t *testing.T) {
	r := newRenewingAgent(t)
	r.start()
	r.advanceUntil(r.isRenewed, "renewed")
	r.advanceUntil(func() bool { return r.countLogs("The credential for the hub was renewed") > 0 && r.isWatching() }, "the watches have begun")
	var updates atomic.Int32
	r.failMember("update", func() bool { return updates.Add(1) == 1 }, conflict(), false) // the first is that of the test
	r.putSecrets(agenttest.StoredSecret(t, r.hub.server.URL, r.hub.ca(), r.token))
	r.eventually(func() bool { return r.countLogs("Cannot write the newer token") > 0 }, "it says so and waits")
}

func TestRenewDoesNotRecreateADeletedCredential(t *testing.T) {
	r := newRenewingAgent(t)
	r.start()
	r.eventually(r.isWatching, "the watches have begun")
	r.deleteSecret(registration.CredentialSecret)
	r.waitForLog("Until then the agent goes on with the credential in its memory") // at once, not only when the credential expires
	r.advanceUntil(func() bool { return r.countLogs("in which the new token must be stored: it does not exist") > 1 }, "it was noticed")
	assert.Nil(t, r.secret(registration.CredentialSecret))
	asked := r.requests()
	assert.Equal(t, 1, asked, "the token it has by now is kept for the next try")
}

// The member refuses writes of Secrets, for example because its etcd is full, for longer than the stored credential is valid.
func TestRenewWithoutStoring(t *testing.T) {
	r := newRenewingAgent(t)
	r.config.CheckinInterval = 30 * day // only changes cause a heartbeat
	expires := func(token string) time.Time {
		claims, err := credential.Inspect(credential.Token(token))
		assert.NoError(t, err)
		return claims.Expires
	}
	r.hub.fault = func(req *http.Request) (int, string) {
		if token := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "); r.clock.FakeClock.Now().After(expires(token)) {
			return 401, status401
		}
		return 0, ""
	}
	var writable atomic.Bool
	r.failMember("update", writable.Load, apierrors.NewInternalError(assert.AnError), false)
	r.start()
	for r.clock.Now().Before(noon.Add(4 * day)) {
		r.eventually(func() bool { return r.clock.Waiters() == 2 }, "the renewal and the heartbeat wait")
		r.clock.Step(time.Hour)
	}
	assert.Equal(t, r.token, r.storedToken(), "nothing was stored")
	assert.Equal(t, noon.Add(day), r.lastHeartbeat().CredentialExpires.UTC(), "the stored credential, with which the agent would be restarted")
	assert.Greater(t, r.requests(), 3, "renewed with tokens that were not stored")
	assert.Contains(t, r.eventOf("CredentialExpiring").Message, "but loses it when it is restarted")

	writable.Store(true)
	r.advanceUntil(func() bool { return r.eventOf("CredentialRenewed") != nil }, "stored")
	assert.True(t, expires(r.storedToken()).After(noon.Add(3*day)), "the newest token")
	assert.EqualValues(t, 1, r.deployRuns.Load(), "the work goes on")
	assert.Zero(t, r.countLogs("The work with the stored credential has ended"))
}
