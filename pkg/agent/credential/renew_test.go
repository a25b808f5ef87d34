package credential

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	tokens "github.com/muster-fleet/muster/pkg/credential"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

func TestLimitsLifetime(t *testing.T) {
	resource := schema.GroupResource{Resource: "serviceaccounts/token"}
	for message, limits := range map[string]bool{
		`ValidatingAdmissionPolicy 'fleet-agent-token' with binding 'fleet-agent-token' denied request: for at most 7 days`:                        true,
		`ValidatingAdmissionPolicy 'fleet-agent-token-audience' with binding 'fleet-agent-token-audience' denied request: for the API server only`: false,
		`User "x" cannot create resource "serviceaccounts/token" in API group ""`:                                                                  false,
	} {
		err := apierrors.NewForbidden(resource, "agent", errors.New(message))
		assert.Equal(t, limits, isLifetimeRefused(err), message)
	}
}

func TestInspect(t *testing.T) {
	for name, token := range map[string]string{
		"unreadable":           agenttest.OldToken,
		"without expiry":       agenttest.JWT("uid", noon, time.Time{}, 0),
		"without issue time":   agenttest.JWT("uid", time.Time{}, noon.Add(day), 0),
		"for ten years":        agenttest.JWT("uid", noon, noon.Add(tokens.LongLived), 0),
		"expired when issued":  agenttest.JWT("uid", noon, noon, 0),
		"of no ServiceAccount": "eyJhbGciOiJub25lIn0.eyJpYXQiOjEsImV4cCI6MTAwfQ.",
	} {
		t.Run(name, func(t *testing.T) {
			_, renewed := inspect(token)
			assert.False(t, renewed)
		})
	}
	t.Run("for a day", func(t *testing.T) {
		inspected, renewed := inspect(agenttest.JWT("uid", noon, noon.Add(day), 0))
		require.True(t, renewed)
		assert.Equal(t, day, inspected.Lifetime())
	})
}

func TestRenewableToken(t *testing.T) {
	inspected := renewableToken{tokens.Claims{Issued: noon, Expires: noon.Add(30 * time.Hour)}}
	seen := map[time.Time]bool{}
	for range 1000 {
		moment := inspected.renewAt(2.0 / 3)
		assert.False(t, moment.Before(noon.Add(18*time.Hour)))
		assert.False(t, moment.After(noon.Add(22*time.Hour)))
		seen[moment] = true
	}
	assert.Greater(t, len(seen), 900, "agents that registered together do not renew together")
	assert.Equal(t, noon.Add(25*time.Hour), inspected.warnFrom(2.0/3).Round(time.Second))
}

func TestShorterLifetime(t *testing.T) {
	current := renewableToken{tokens.Claims{Issued: noon, Expires: noon.Add(day)}}
	now := noon.Add(16 * time.Hour)
	assert.Equal(t, day/2, shorterLifetime(day, day, current, now))
	assert.Equal(t, day, shorterLifetime(day/2, day, current, now), "a quarter of a day ends before the current token")
	assert.Equal(t, day, shorterLifetime(tokens.MinLifetime, day, current, noon.Add(2*day)), "no hub issues less than the minimum")
}

// inUse returns a credential in use with a connection to a hub that does not exist.
func inUse(t *testing.T) *InUse {
	t.Helper()
	stored, err := Parse(agenttest.StoredSecret(t, agenttest.HubURL, agenttest.CA(t), agenttest.OldToken))
	require.NoError(t, err)
	log, _ := agenttest.Log(t)
	conn, err := (&hubclient.Dialer{Timing: *agenttest.Quick(), Clock: clock.RealClock{}, Log: log}).Dial(stored.Access)
	require.NoError(t, err)
	return NewInUse(conn, stored)
}

func TestInUseMatches(t *testing.T) {
	use := inUse(t)
	first := use.Current()
	assert.True(t, use.Matches(first))
	assert.False(t, use.Matches(first.WithToken("next")))
	use.storing("next")
	assert.True(t, use.Matches(first.WithToken("next")), "while it is being stored")
	use.useAndRecord("next")
	assert.Equal(t, "next", use.Current().Token)
	assert.True(t, use.Matches(first), "for a reader that read the Secret a moment ago")
	elsewhere := first.WithToken("next")
	elsewhere.Server = "https://elsewhere"
	assert.False(t, use.Matches(elsewhere))
	assert.Nil(t, use.StoredTokenExpires(), "a token that is not renewed")
	assert.Equal(t, noon, use.hubTime(noon), "while the clock skew is unknown")
}

func TestInUseNewerThan(t *testing.T) {
	use := inUse(t)
	last := agenttest.JWT("uid", noon, noon.Add(time.Hour), 1)
	use.useAndRecord(last)
	for name, row := range map[string]struct {
		token, server string
		want          bool
	}{
		"earlier":                   {agenttest.JWT("uid", noon.Add(-time.Minute), noon.Add(time.Hour), 2), "", true},
		"earlier, at another hub":   {agenttest.JWT("uid", noon.Add(-time.Minute), noon.Add(time.Hour), 2), "https://elsewhere", false},
		"the same":                  {last, "", false},
		"later":                     {agenttest.JWT("uid", noon.Add(time.Minute), noon.Add(time.Hour), 2), "", false},
		"of another ServiceAccount": {agenttest.JWT("other", noon.Add(-time.Minute), noon.Add(time.Hour), 2), "", false},
		"of an agent of Fleet":      {agenttest.JWT("uid", noon.Add(-time.Minute), time.Time{}, 2), "", false},
		"not a token":               {"next", "", false},
	} {
		found := use.Current().WithToken(row.token)
		if row.server != "" {
			found.Server = row.server
		}
		token, isOlder := use.NewerThan(found)
		assert.Equal(t, row.want, isOlder, name)
		assert.Equal(t, last, token)
	}
}

func TestInUseHubTime(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-3*time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	log, _ := agenttest.Log(t)
	conn, err := (&hubclient.Dialer{Timing: *agenttest.Quick(), Clock: clock.RealClock{}, Log: log}).Dial(
		hubclient.Access{Endpoint: hubclient.Endpoint{Server: server.URL}, Token: "t"})
	require.NoError(t, err)
	defer conn.Close()
	require.Error(t, conn.Probe(t.Context()))
	assert.InDelta(t, -3*time.Hour, NewInUse(conn, &Stored{}).hubTime(noon).Sub(noon), float64(time.Minute))
}

func FuzzInspect(f *testing.F) {
	f.Add(agenttest.JWT("uid", noon, noon.Add(day), 1))
	f.Add(agenttest.JWT("uid", noon, noon, 1))
	f.Add(agenttest.JWT("uid", noon.Add(day), noon, 1))
	f.Add(agenttest.JWT("uid", time.Time{}, noon, 1))
	f.Add(agenttest.JWT("uid", noon, noon.Add(tokens.LongLived), 1))
	f.Add(agenttest.OldToken)
	f.Add("eyJhbGciOiJub25lIn0.eyJpYXQiOi0xZTMwLCJleHAiOjFlMzB9.")
	f.Fuzz(func(t *testing.T, token string) {
		inspected, renewed := inspect(token)
		if !renewed {
			return
		}
		moment := inspected.renewAt(timing.Default().RenewFraction)
		assert.True(t, moment.After(inspected.Issued) && moment.Before(inspected.Expires))
		assert.True(t, inspected.warnFrom(timing.Default().RenewFraction).Before(inspected.Expires))
		assert.Less(t, inspected.Lifetime(), longestRenewable)
	})
}
