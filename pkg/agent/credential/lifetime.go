package credential

import (
	"time"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	tokens "github.com/muster-fleet/muster/pkg/credential"
)

// longestRenewable is the longest lifetime of a token that is renewed. A hub issues a longer token only to an agent that has not announced that
// it renews.
const longestRenewable = tokens.LongLived / 2

// renewableToken is the content of a token that is renewed. Its times are of the clock of the hub's API server.
type renewableToken struct{ tokens.Claims }

// inspect returns false for a token that is not renewed: it does not expire, or only in years, or is not readable.
func inspect(token string) (renewableToken, bool) {
	claims, err := tokens.Inspect(tokens.Token(token))
	lifetime := claims.Lifetime()
	if err != nil || claims.ServiceAccount == "" || lifetime <= 0 || lifetime >= longestRenewable {
		return renewableToken{}, false
	}
	return renewableToken{claims}, true
}

// Expiry returns the end of a token; false for a token that is not renewed.
func Expiry(token string) (time.Time, bool) {
	inspected, renewable := inspect(token)
	return inspected.Expires, renewable
}

// renewal returns the time at which that part of the lifetime has passed, a tenth of the part earlier or later: agents that registered together
// must not renew together.
func (t renewableToken) renewal(part float64) time.Time {
	return t.Issued.Add(timing.Jitter(time.Duration(float64(t.Lifetime()) * part)))
}

// warnFrom returns the time halfway between the renewal and the expiry: from then on, a failed renewal is reported by an event.
func (t renewableToken) warnFrom(part float64) time.Time {
	return t.Issued.Add(time.Duration(float64(t.Lifetime()) * (1 + part) / 2))
}
