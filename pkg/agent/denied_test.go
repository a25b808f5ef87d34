package agent

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/registration"
)

const wantsApproval = "the hub denies ClusterRegistration fleet-default/request-"

// denies has the hub refuse whatever is asked of it.
func (f *fixture) denies(reason, message string) {
	f.hub.set(func() {
		f.hub.grantAt, f.hub.grant = 0, map[string]string{registration.RefusalReason: reason, registration.RefusalMessage: message}
	})
}

func (f *fixture) approves() {
	f.hub.set(func() {
		f.hub.grant = map[string]string{
			"token": newToken, "deploymentNamespace": "cluster-ns", "clusterNamespace": "fleet-default", "clusterName": "one",
		}
	})
}

func TestARefusedRegistrationIsToldOnceAndWaitsForAnApproval(t *testing.T) {
	f := newFixture(t)
	f.denies("Denied", "not on a Sunday")
	f.has(f.bootstrap())
	f.starts()
	f.says(wantsApproval)
	f.says("not on a Sunday (Denied). The agent checks again from time to time")
	looks := f.hub.count("GET /api/v1")
	f.eventually(func() bool { return f.hub.count("GET /api/v1") > looks+5 }, "it looks again")
	assert.Equal(t, 1, f.said(wantsApproval), "told once")
	require.Len(t, f.events("RegistrationRefused"), 1)
	event := f.events("RegistrationRefused")[0]
	assert.Equal(t, corev1.EventTypeWarning, event.Type)
	assert.Contains(t, event.Message, "not on a Sunday (Denied)")
	assert.EqualValues(t, 1, event.Count)

	f.denies("WaitingLonger", "ask again")
	f.says("ask again (WaitingLonger)")
	f.approves()
	f.settles(newToken)
	assert.Len(t, f.hub.registrations(), 1, "the request that was refused is the one that was approved")
	f.eventually(func() bool { return len(f.events("RegistrationGranted")) == 1 }, "told as well")
}

func TestARefusalCostsTheHubNextToNothing(t *testing.T) {
	f := newFixture(t)
	still := clocktesting.NewFakeClock(time.Unix(1000, 0))
	f.config.Clock = still
	f.denies("Denied", "no")
	f.has(f.bootstrap())
	f.starts()
	f.says(wantsApproval)
	f.eventually(still.HasWaiters, "a pause")
	assert.Never(t, func() bool { return f.hub.count("") > 12 }, 100*time.Millisecond, 10*time.Millisecond)
	assert.Len(t, f.hub.registrations(), 1)
	assert.Less(t, timing.Default().DeniedMax*12/10, 40*time.Minute, "the hub keeps what it grants that long")
}

// With pauses of an hour only what changes can end them.
func TestARefusedRegistrationIsLookedAtAtOnceWhenSomethingChanges(t *testing.T) {
	configMap := func(config string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentConfigMap},
			Data:       map[string]string{registration.ConfigKey: config},
		}
	}
	change := func(f *fixture, config string) {
		_, err := f.core.CoreV1().ConfigMaps(agentNamespace).Update(f.Context(), configMap(config), metav1.UpdateOptions{})
		require.NoError(f, err)
	}
	for name, row := range map[string]struct {
		change   func(f *fixture)
		requests int
	}{
		"another token":            {func(f *fixture) { f.has(f.bootstrap("token", "another", "tokenName", "two")) }, 2},
		"the same token again":     {func(f *fixture) { f.has(f.bootstrap("unknown", "key")) }, 1},
		"another identity":         {func(f *fixture) { change(f, `{"clientID":"two"}`) }, 2},
		"other labels":             {func(f *fixture) { change(f, `{"clientID":"one","labels":{"a":"b"}}`) }, 2},
		"what is not in a request": {func(f *fixture) { change(f, `{"clientID":"one","agentTLSMode":"system-store"}`) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.config.Timing.DeniedFirst, f.config.Timing.DeniedMax = time.Hour, time.Hour
			_, err := f.core.CoreV1().ConfigMaps(agentNamespace).Create(t.Context(), configMap(`{"clientID":"one"}`), metav1.CreateOptions{})
			require.NoError(t, err)
			f.denies("ClientIDInUse", "no")
			f.has(f.bootstrap())
			f.starts()
			f.says(wantsApproval)
			row.change(f)
			f.says("The configuration of the agent has changed")
			f.eventually(func() bool { return len(f.hub.registrations()) == row.requests }, "a request that says what is true now")
			f.approves()
			again := f.secret(registration.BootstrapSecret)
			again.Labels = map[string]string{"looked": "at"}
			f.has(again)
			f.settles(newToken)
			assert.Len(t, f.hub.registrations(), row.requests)
		})
	}
}

func TestTheOldCredentialGoesOnWhileAnotherRegistrationIsRefused(t *testing.T) {
	f := newFixture(t)
	f.config.CheckinInterval = 5 * time.Millisecond
	f.denies("TokenUsedUp", "no")
	f.has(f.stored("registration", "uid/1"), f.bootstrap("registration", "uid/2"))
	f.starts()
	f.says(wantsApproval)
	beats := f.hub.count("/status as " + oldToken)
	f.eventually(func() bool { return f.hub.count("/status as "+oldToken) > beats+5 }, "heartbeats with the old credential")
	assert.Equal(t, oldToken, f.storedToken())
	f.approves()
	f.settles(newToken)
}

func TestARefusedRequestThatSomebodyDeletedIsSentAgain(t *testing.T) {
	f := newFixture(t)
	f.denies("Denied", "no")
	f.has(f.bootstrap())
	f.starts()
	f.says(wantsApproval)
	name := f.hub.registrations()[0].Name
	f.hub.set(func() { f.hub.created = nil })
	f.eventually(func() bool { return len(f.hub.registrations()) == 1 }, "sent again")
	assert.Equal(t, name, f.hub.registrations()[0].Name)
}

func TestARefusalOutlivesARestartAndAnOutage(t *testing.T) {
	f := newFixture(t)
	f.denies("Denied", "no")
	f.has(f.bootstrap())
	f.runsUntil(func() bool { return f.said(wantsApproval) > 0 })
	f.starts()
	f.eventually(func() bool { return f.said(wantsApproval) == 2 }, "a new process says it once more")
	f.hub.set(func() { f.hub.fault = func(*http.Request) (int, string) { return http.StatusBadGateway, "no" } })
	asked := f.hub.count("")
	f.eventually(func() bool { return f.hub.count("") > asked+3 }, "asked in vain")
	f.approves()
	f.hub.set(func() { f.hub.fault = nil })
	f.settles(newToken)
	assert.Len(t, f.hub.registrations(), 1)
}
