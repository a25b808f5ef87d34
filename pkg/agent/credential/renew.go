package credential

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	tokens "github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Reasons of the events on the agent's Deployment.
const (
	reasonExpiring = "CredentialExpiring" // renewals have failed for half of the time from the renewal to the expiry of the stored credential
	reasonRenewed  = "CredentialRenewed"  // after CredentialExpiring: the credential was renewed and stored
)

// ErrReplaced means that another credential is stored now; the agent must use that one.
var ErrReplaced = errors.New("another credential is stored")

// errDeleted means that Secret fleet-agent does not exist.
var errDeleted = errors.New("it does not exist")

// Renewer renews the credential in use before it expires.
type Renewer struct {
	Member *member.Member
	Dialer *hubclient.Dialer
	Clock  clock.WithTicker
	Timing timing.Durations
	Log    logrus.FieldLogger
	// Lifetime is requested for each new token; 0 means the lifetime of the current one. If the hub refuses it, the agent asks for less.
	Lifetime time.Duration
	// Event writes an event on the agent's Deployment.
	Event func(ctx context.Context, kind, reason, message string)
	// Renewed is called after each renewal.
	Renewed func()
}

// Run renews the credential until ctx ends, or returns ErrReplaced. After a failure, the current token works until it expires. A credential that
// does not expire, or only in years, is not renewed: it is from a hub that does not support renewals.
func (r *Renewer) Run(ctx context.Context, use *InUse) error {
	for ctx.Err() == nil {
		current, renewable := inspect(use.Current().Token)
		if !renewable {
			<-ctx.Done()
			return nil
		}
		due, began := current.renewAt(r.Timing.RenewFraction), r.Clock.Now()
		hubBegan := use.hubTime(began)
		// The earlier of two estimates counts. After the clock was set back, hubTime is wrong until the hub answers the next request. The monotonic
		// clock, which now.Sub(began) uses, stops while the machine is suspended.
		left := func() time.Duration {
			now := r.Clock.Now()
			return min(due.Sub(use.hubTime(now)), due.Sub(hubBegan)-now.Sub(began))
		}
		for pause := left(); pause > 0 && ctx.Err() == nil; pause = left() {
			timing.Pause(ctx, r.Clock, min(pause, longestPause), nil)
		}
		if err := r.renew(ctx, use, current); err != nil {
			return err
		}
		// If the clock of the agent is ahead by more than a lifetime, and the skew is unknown, the next renewal is due at once. The pause
		// prevents a loop of renewals.
		half := time.Duration(float64(current.Lifetime()) * r.Timing.RenewFraction / 2)
		timing.Pause(ctx, r.Clock, min(half, longestPause), nil)
	}
	return nil
}

// longestPause limits one pause before a renewal, because a timer does not advance while the machine is suspended.
const longestPause = 5 * time.Minute

// renew requests a new token, verifies that it works, stores it and uses it. It retries until all of that has succeeded. While the new token cannot
// be stored, the agent works with it nevertheless and requests the next one when it is due: the member may refuse writes of Secrets for longer than the stored
// token is valid. If Secret fleet-agent was deleted, which asks the agent to register again, the agent keeps its token until that expires.
func (r *Renewer) renew(ctx context.Context, use *InUse, storedClaims renewableToken) error {
	pauses := r.Timing.RetryRenewal(storedClaims.Lifetime())
	current, warned := storedClaims, false
	requestedLifetime := r.lifetimeAfter(current, use.hubTime(r.Clock.Now()))
	token, due := "", time.Time{} // a new token that works, and when the next one must be requested
	for ctx.Err() == nil {
		var err error
		if token == "" || token == use.Current().Token && !use.hubTime(r.Clock.Now()).Before(due) {
			var issued string
			if issued, err = r.requestToken(ctx, use, current, requestedLifetime); isLifetimeRefused(err) {
				now := use.hubTime(r.Clock.Now())
				requestedLifetime = shorterLifetime(requestedLifetime, r.lifetimeAfter(current, now), current, now)
			} else if err == nil {
				err = r.verify(ctx, use.Current().WithToken(issued))
			}
			if err == nil {
				token = issued
				current, _ = inspect(token)
				requestedLifetime, due = r.lifetimeAfter(current, use.hubTime(r.Clock.Now())), current.renewAt(r.Timing.RenewFraction)
			}
		}
		if token != "" {
			use.storing(token)
			storeErr := r.storeToken(ctx, use, token)
			if storeErr == nil {
				use.useAndRecord(token)
				text := "The credential for the hub was renewed; it expires at " + use.StoredTokenExpires().UTC().Format(time.RFC3339)
				r.Log.Info(text)
				if warned {
					r.Event(ctx, corev1.EventTypeNormal, reasonRenewed, text)
				}
				r.Renewed()
				return nil
			}
			err = errors.Join(err, storeErr)
		}
		if errors.Is(err, ErrReplaced) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if token != "" && !errors.Is(err, errDeleted) {
			use.useToken(token)
		}
		pause := pauses.Step()
		text := fmt.Sprintf("The stored credential for the hub, which expires at %s, could not be renewed: %v", storedClaims.Expires.UTC().Format(time.RFC3339), err)
		if token != "" && token == use.Current().Token {
			text += fmt.Sprintf(". The agent works with a new one until %s, but loses it when it is restarted", current.Expires.UTC().Format(time.RFC3339))
		}
		r.Log.Warnf("%s; next try in %s", text, pause.Round(time.Millisecond))
		if !warned && !use.hubTime(r.Clock.Now()).Before(storedClaims.warnFrom(r.Timing.RenewFraction)) {
			warned = true
			r.Event(ctx, corev1.EventTypeWarning, reasonExpiring, text)
		}
		timing.Pause(ctx, r.Clock, pause, nil)
	}
	return nil
}

// requestToken requests another token for the ServiceAccount of the current one.
func (r *Renewer) requestToken(ctx context.Context, use *InUse, current renewableToken, requested time.Duration) (string, error) {
	issuer := tokens.Issuer{Client: use.Conn.Core.CoreV1(), Clock: r.Clock}
	issued, err := issuer.Request(ctx, tokens.Account{Namespace: current.Namespace, Name: current.ServiceAccount}, requested)
	if err != nil {
		return "", err
	}
	token := issued.Token.Reveal()
	next, renewable := inspect(token)
	if !renewable || next.UID != current.UID || !next.Expires.After(current.Expires) {
		return "", fmt.Errorf("the hub answered with a token of another identity, or one that does not expire later than %s", current.Expires.UTC().Format(time.RFC3339))
	}
	return token, nil
}

func (r *Renewer) verify(ctx context.Context, renewed *Stored) error {
	conn, verdict, err := r.Dialer.DialAndVerify(ctx, renewed.Access)
	conn.Close()
	if verdict != hubclient.Accepted {
		return fmt.Errorf("the new token does not work (%s): %w", verdict, err)
	}
	return nil
}

// storeToken changes only the token in Secret fleet-agent. It does not recreate a deleted Secret: its deletion asks the agent to register again.
func (r *Renewer) storeToken(ctx context.Context, use *InUse, token string) error {
	secret, err := r.Member.Secret(ctx, registration.CredentialSecret)
	switch {
	case err != nil:
		return err
	case secret == nil:
		return fmt.Errorf("Secret %s/%s, in which the new token must be stored: %w", r.Member.Namespace, registration.CredentialSecret, errDeleted)
	}
	stored, err := Parse(secret)
	switch {
	case err != nil:
		return err
	case stored.Token == token:
		return nil // an earlier write succeeded, and its response was lost
	}
	stored.Mode = stored.WorkingMode(use.stored.Mode)
	if _, isOlder := use.NewerThan(stored); !isOlder && !use.Matches(stored) {
		return ErrReplaced
	}
	return stored.WithToken(token).Replace(ctx, r.Member, secret)
}

// isLifetimeRefused reports whether the hub refused the lifetime, and may issue a token with a shorter lifetime. Other refusals are for every lifetime:
// a missing right, which a quarantine withdraws, and the policy of audiences until the hub has recorded a change of them.
func isLifetimeRefused(err error) bool {
	const missingRight = `cannot create resource "serviceaccounts/token"`
	if err == nil || !hubclient.FromAPIServer(err) {
		return false
	}
	isForAny := strings.Contains(err.Error(), missingRight) || strings.Contains(err.Error(), registration.ClusterRoleAudience)
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) && !isForAny
}

// lifetimeAfter returns the lifetime to request for the next token. A token that expires before the current one would be useless, so a much shorter
// configured lifetime is reached in several renewals.
func (r *Renewer) lifetimeAfter(current renewableToken, hubTime time.Time) time.Duration {
	lifetime := cmp.Or(r.Lifetime, current.Lifetime())
	if left := current.Expires.Sub(hubTime); lifetime <= left {
		return left + tokens.MinLifetime
	}
	return lifetime
}

// shorterLifetime returns half of the requested lifetime. It starts again with the full lifetime if a token with the half would expire before the
// current one: it would be useless, and the limit may be gone.
func shorterLifetime(requested, full time.Duration, current renewableToken, hubTime time.Time) time.Duration {
	half := requested / 2
	if half < tokens.MinLifetime || !hubTime.Add(half).After(current.Expires) {
		return full
	}
	return half
}

// InUse is the credential with which the agent works, on its connection to the hub. A renewal replaces its token.
type InUse struct {
	// Conn sends the current token.
	Conn *hubclient.Connection

	stored *Stored // when the work began

	mutex sync.Mutex
	token string
	// written are the tokens that a reader of the Secret may find: the first is the stored one, and the others are those that renewals have tried to
	// store since. After a renewal it is the new one and the previous one.
	written []string
}

// NewInUse returns the stored credential in use on conn.
func NewInUse(conn *hubclient.Connection, stored *Stored) *InUse {
	return &InUse{Conn: conn, stored: stored, token: stored.Token, written: []string{stored.Token}}
}

// Current returns the credential with the token that the agent uses, which may not be stored yet.
func (u *InUse) Current() *Stored {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return u.stored.WithToken(u.token)
}

// Matches reports whether a credential that was read from the Secret is this one. The tokens before and after a renewal both match, and those that a
// renewal has tried to store.
func (u *InUse) Matches(found *Stored) bool {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	return slices.ContainsFunc(u.written, func(token string) bool { return found.Same(u.stored.WithToken(token).Access) })
}

// NewerThan returns the token that the agent stored last, if a credential that was read from the Secret has an earlier token of the same ServiceAccount:
// the etcd of the member was restored from a backup. The earlier token may have expired when the agent is restarted.
func (u *InUse) NewerThan(found *Stored) (token string, isOlder bool) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	token = u.written[0]
	last, renewable := inspect(token)
	earlier, earlierRenewable := inspect(found.Token)
	same := found.Same(u.stored.WithToken(found.Token).Access) && earlier.UID != "" && earlier.UID == last.UID &&
		earlier.Namespace == last.Namespace && earlier.ServiceAccount == last.ServiceAccount
	return token, renewable && earlierRenewable && same && earlier.Issued.Before(last.Issued)
}

// StoredTokenExpires returns the end of the stored token; nil if the agent does not renew it. The agent may work with a later token that it could not store, but
// it cannot work again after a restart.
func (u *InUse) StoredTokenExpires() *metav1.Time {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	expires, renewable := Expiry(u.written[0])
	if !renewable {
		return nil
	}
	return &metav1.Time{Time: expires}
}

// hubTime returns the time of the hub's clock, as measured with its answers: tokens begin and end by that clock.
func (u *InUse) hubTime(now time.Time) time.Time {
	if skew, known := u.Conn.ClockSkew(); known {
		return now.Add(-skew)
	}
	return now
}

// storing makes Matches accept the token that is about to be stored.
func (u *InUse) storing(token string) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	if !slices.Contains(u.written, token) {
		u.written = append(u.written, token)
	}
}

// useToken makes Conn send another token from the next request on, which is not stored yet.
func (u *InUse) useToken(token string) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.token = token
	u.Conn.UseToken(token)
}

// useAndRecord makes Conn send another token from the next request on, and records that it is stored.
func (u *InUse) useAndRecord(token string) {
	u.useToken(token)
	u.mutex.Lock()
	defer u.mutex.Unlock()
	u.written = []string{token, u.written[0]}
}

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

// renewAt returns the time at which that part of the lifetime has passed, a tenth of the part earlier or later: agents that registered together
// must not renew together.
func (t renewableToken) renewAt(part float64) time.Time {
	return t.Issued.Add(timing.Jitter(time.Duration(float64(t.Lifetime()) * part)))
}

// warnFrom returns the time halfway between the renewal and the expiry: from then on, a failed renewal is reported by an event.
func (t renewableToken) warnFrom(part float64) time.Time {
	return t.Issued.Add(time.Duration(float64(t.Lifetime()) * (1 + part) / 2))
}
