package credential

import (
	"time"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	tokens "github.com/muster-fleet/muster/pkg/credential"
)

// longestRenewable is the longest lifetime of a token that is renewed. A hub gives a longer one to an agent that, as far as it
// knows, does not renew.
const longestRenewable = tokens.LongLived / 2

// tokenLifetime is the lifetime of a token that is renewed, by the clock of the hub's API server.
type tokenLifetime struct {
	claims          tokens.Claims
	issued, expires time.Time
}

// lifetimeOf returns false for a token that is not renewed: it does not expire, or only in years, or is not readable.
func lifetimeOf(token string) (tokenLifetime, bool) {
	claims, err := tokens.Inspect(tokens.Token(token))
	length := claims.Lifetime()
	if err != nil || claims.ServiceAccount == "" || length <= 0 || length >= longestRenewable {
		return tokenLifetime{}, false
	}
	return tokenLifetime{claims: claims, issued: claims.Issued, expires: claims.Expires}, true
}

// Expiry is the end of a token; false for a token that is not renewed.
func Expiry(token string) (time.Time, bool) {
	lifetime, renewable := lifetimeOf(token)
	return lifetime.expires, renewable
}

func (l tokenLifetime) length() time.Duration { return l.expires.Sub(l.issued) }

// renewal is the time at which that part of the lifetime has passed, a tenth of the part earlier or later: agents that registered
// together must not renew together.
func (l tokenLifetime) renewal(part float64) time.Time {
	return l.issued.Add(timing.Jitter(time.Duration(float64(l.length()) * part)))
}

// warnFrom is the time halfway between the renewal and the expiry: from then on, a failed renewal is reported by an event.
func (l tokenLifetime) warnFrom(part float64) time.Time {
	return l.issued.Add(time.Duration(float64(l.length()) * (1 + part) / 2))
}
