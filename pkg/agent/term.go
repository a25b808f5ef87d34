package agent

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/muster-fleet/muster/pkg/credential"
)

// renewable is the longest life of a token that is renewed. A longer one was given to an agent of which the hub does not
// know that it renews.
const renewable = credential.LongLived / 2

// term is the life of a token that comes to an end, by the clock of the hub's API server.
type term struct {
	claims          credential.Claims
	issued, expires time.Time
}

// termOf is false for a token that is not renewed: it has no end, a far one, or says nothing of itself that an agent can read.
func termOf(token string) (term, bool) {
	claims, err := credential.Inspect(credential.Token(token))
	life := claims.Lifetime()
	if err != nil || claims.ServiceAccount == "" || life <= 0 || life >= renewable {
		return term{}, false
	}
	return term{claims: claims, issued: claims.Issued, expires: claims.Expires}, true
}

func (t term) life() time.Duration { return t.expires.Sub(t.issued) }

// renewal is the moment after that part of its life, a tenth of the part more or less: agents that registered together do not
// renew together.
func (t term) renewal(part float64) time.Time {
	const width = 0.2
	earliest := time.Duration(float64(t.life()) * part * (1 - width/2))
	return t.issued.Add(wait.Jitter(earliest, width/(1-width/2)))
}

// alarm is the middle between the renewal and the end.
func (t term) alarm(part float64) time.Time {
	return t.issued.Add(time.Duration(float64(t.life()) * (1 + part) / 2))
}

func stamp(moment time.Time) string { return moment.UTC().Format(time.RFC3339) }
