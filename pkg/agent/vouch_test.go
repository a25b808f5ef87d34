package agent

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/pkg/registration"
)

const statusPath = "PATCH /apis/fleet.cattle.io/v1alpha1/namespaces/fleet-default/clusters/one/status"

// vouchedFor are the requests the agent vouched for with a token, outside of heartbeats or with them.
func (f *fixture) vouched(heartbeats bool) (beats []string) {
	f.hub.mutex.Lock()
	defer f.hub.mutex.Unlock()
	for _, beat := range f.hub.beats {
		if strings.Contains(beat, `"vouches":"`) && strings.Contains(beat, "lastSeen") == heartbeats {
			beats = append(beats, beat)
		}
	}
	return beats
}

func TestAnAgentVouchesForItsNextRequestBeforeItSendsIt(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored("registration", "uid/1"), f.bootstrap("registration", "uid/2"))
	first := ""
	f.hub.fault = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPost && first == "" {
			first = strings.Join(f.hub.beats, "")
		}
		return 0, ""
	}
	f.starts()
	f.settles(newToken)
	request := f.hub.registrations()[0].Name
	assert.Contains(t, first, `{"status":{"agent":{"vouches":"`+request+`"}}}`)
	f.eventually(func() bool { return f.lastBeat().Registration == request }, "it says whose credential it uses now")
	assert.Empty(t, f.lastBeat().Vouches, "and vouches for nothing any more")
	assert.Equal(t, request, string(f.secret(registration.CredentialSecret).Data["request"]))
}

func TestAnAgentWithoutACredentialVouchesForNothing(t *testing.T) {
	for name, secrets := range map[string]func(f *fixture){
		"none":          func(f *fixture) { f.has(f.bootstrap()) },
		"a refused one": func(f *fixture) { f.hub.refused[oldToken] = true; f.has(f.stored(), f.bootstrap()) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			secrets(f)
			f.starts()
			f.settles(newToken)
			assert.Empty(t, f.vouched(false))
			assert.Empty(t, f.vouched(true))
		})
	}
}

func TestVouchingThatFailsKeepsNobodyFromRegisteringAndIsMadeUpFor(t *testing.T) {
	f := newFixture(t)
	f.config.CheckinInterval = 5 * time.Millisecond
	f.hub.grantAt = 1 << 30
	patches := 0
	f.hub.fault = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPatch && len(f.hub.created) == 0 {
			patches++
			return 503, "<h1>503</h1>"
		}
		return 0, ""
	}
	f.has(f.stored("registration", "uid/1"), f.bootstrap("registration", "uid/2"))
	f.starts()
	f.says("Cannot prove to the hub that ClusterRegistration request-")
	f.eventually(func() bool { return len(f.vouched(true)) > 0 }, "a heartbeat does it")
	assert.Contains(t, f.vouched(true)[0], f.hub.registrations()[0].Name)
	f.hub.set(func() { f.hub.grantAt = 0 })
	f.settles(newToken)
}

func TestWhatAnAgentVouchedForIsForgottenWithTheRequest(t *testing.T) {
	f := newFixture(t)
	f.config.CheckinInterval = 5 * time.Millisecond
	f.hub.grantAt = 1 << 30
	f.has(f.stored("registration", "uid/1"), f.bootstrap("registration", "uid/2"))
	f.starts()
	f.eventually(func() bool { return len(f.vouched(true)) > 0 }, "vouching")
	f.lacks(registration.PendingSecret)
	f.has(f.bootstrap("registration", "uid/1"))
	f.settles(oldToken)
	f.eventually(func() bool { return f.lastBeat().Vouches == "" }, "no more")
	require.Positive(t, f.hub.count(statusPath))
}

func TestTwoProcessesHaveNamesOfTheirOwn(t *testing.T) {
	f := newFixture(t)
	f.has(f.stored("request", "request-1"))
	f.runsUntil(func() bool { return f.lastBeat().Instance != "" })
	first := f.lastBeat()
	assert.Equal(t, "request-1", first.Registration)
	assert.LessOrEqual(t, len(first.Instance), 64)
	f.runsUntil(func() bool { return f.lastBeat().Instance != first.Instance })
}
