package credential

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	tokens "github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Reasons of the events on the agent's Deployment.
const (
	reasonExpiring = "CredentialExpiring" // renewals have failed for half of the time that is left for them
	reasonRenewed  = "CredentialRenewed"  // after CredentialExpiring: the credential was renewed
)

// ErrReplaced means that another credential is stored now; the agent must use that one.
var ErrReplaced = errors.New("another credential is stored")

// Renewer renews the credential in use before it expires.
type Renewer struct {
	Member *member.Member
	Dialer *hubclient.Dialer
	Clock  clock.WithTicker
	Timing timing.Durations
	Log    logrus.FieldLogger
	// Event writes an event on the agent's Deployment.
	Event func(ctx context.Context, kind, reason, message string)
	// Renewed is called after each renewal.
	Renewed func()
}

// Run renews the credential until ctx ends, or returns ErrReplaced. After a failure, the current token works until it expires. A credential that
// does not expire, or only in years, is not renewed: it is from a hub that does not support renewals.
func (r *Renewer) Run(ctx context.Context, use *InUse) error {
	for ctx.Err() == nil {
		current, renewable := inspect(use.Stored().Token)
		if !renewable {
			<-ctx.Done()
			return nil
		}
		due, began := current.renewal(r.Timing.RenewAfter), r.Clock.Now()
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
		half := time.Duration(float64(current.Lifetime()) * r.Timing.RenewAfter / 2)
		timing.Pause(ctx, r.Clock, min(half, longestPause), nil)
	}
	return nil
}

// longestPause limits one pause before a renewal, because a timer does not advance while the machine is suspended.
const longestPause = 5 * time.Minute

// renew requests a new token, verifies that it works, stores it and then uses it. It retries until all of that has succeeded.
func (r *Renewer) renew(ctx context.Context, use *InUse, current renewableToken) error {
	pauses := r.Timing.RetryRenewal(current.Lifetime())
	requested, token, warned := current.Lifetime(), "", false
	for ctx.Err() == nil {
		var err error
		if token == "" { // a token that works is kept when storing it fails
			var issued string
			if issued, err = r.requestToken(ctx, use, current, requested); limitsLifetime(err) {
				requested = shorterLifetime(requested, current, use.hubTime(r.Clock.Now()))
			} else if err == nil {
				err = r.verify(ctx, use.Stored().WithToken(issued))
			}
			if err == nil {
				token = issued
			}
		}
		if err == nil {
			use.storing(token)
			err = r.storeToken(ctx, use, token)
		}
		if err == nil {
			use.useToken(token)
			text := "The credential for the hub was renewed; it expires at " + use.Expires().UTC().Format(time.RFC3339)
			r.Log.Info(text)
			if warned {
				r.Event(ctx, corev1.EventTypeNormal, reasonRenewed, text)
			}
			r.Renewed()
			return nil
		}
		if errors.Is(err, ErrReplaced) {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		pause := pauses.Step()
		text := fmt.Sprintf("The credential for the hub, which expires at %s, could not be renewed: %v", current.Expires.UTC().Format(time.RFC3339), err)
		r.Log.Warnf("%s; next try in %s", text, pause.Round(time.Millisecond))
		if !warned && !use.hubTime(r.Clock.Now()).Before(current.warnFrom(r.Timing.RenewAfter)) {
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
		return fmt.Errorf("Secret %s/%s, in which the new token must be stored, does not exist", r.Member.Namespace, registration.CredentialSecret)
	}
	stored, err := Parse(secret)
	switch {
	case err != nil:
		return err
	case stored.Token == token:
		return nil // an earlier write succeeded, and its response was lost
	}
	stored.Mode = stored.WorkingMode(use.stored.Mode)
	if !use.Matches(stored) {
		return ErrReplaced
	}
	return stored.WithToken(token).Replace(ctx, r.Member, secret)
}

// limitsLifetime reports whether the hub refused the lifetime, and may issue a token with a shorter lifetime. A missing right is another error:
// a quarantine withdraws the right for every lifetime.
func limitsLifetime(err error) bool {
	const missingRight = `cannot create resource "serviceaccounts/token"`
	if err == nil || !hubclient.FromAPIServer(err) {
		return false
	}
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) && !strings.Contains(err.Error(), missingRight)
}

// shorterLifetime returns half of the requested lifetime. It starts again with the full lifetime if a token with the half would expire before the
// current one: it would be useless, and the limit may be gone.
func shorterLifetime(requested time.Duration, current renewableToken, hubTime time.Time) time.Duration {
	half := requested / 2
	if half < tokens.MinLifetime || !hubTime.Add(half).After(current.Expires) {
		return current.Lifetime()
	}
	return half
}
