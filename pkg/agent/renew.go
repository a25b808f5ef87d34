package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Reasons of the events on the agent's Deployment.
const (
	// reasonExpiring: the credential could not be renewed for so long that its end comes near.
	reasonExpiring = "CredentialExpiring"
	// reasonRenewed: after that, it was.
	reasonRenewed = "CredentialRenewed"
)

// longestSleep bounds a wait for the moment of a renewal. A timer does not run while a machine sleeps; the clock does.
const longestSleep = 5 * time.Minute

// renew keeps the credential of the session from coming to its end. Whatever goes wrong, the present one works until then.
// One that does not end, or lives for years, is not renewed: the hub that gave it has no agents that renew.
func (l *life) renew(ctx context.Context, s *session) error {
	for ctx.Err() == nil {
		t, limited := termOf(s.token())
		if !limited {
			<-ctx.Done()
			return nil
		}
		l.sleepUntil(ctx, s, t.renewal(l.config.Timing.RenewAfter))
		if err := l.renewUntilItWorks(ctx, s, t); err != nil {
			return err
		}
		l.rest(ctx, t)
	}
	return nil
}

// rest keeps an agent whose clock is ahead by more than a credential lives, and that cannot know it, from renewing all the time.
func (l *life) rest(ctx context.Context, t term) {
	const share = 2
	early := time.Duration(float64(t.life()) * l.config.Timing.RenewAfter / share)
	pause(ctx, l.config.Clock, min(early, longestSleep), nil)
}

// sleepUntil waits for a moment by the hub's clock.
func (l *life) sleepUntil(ctx context.Context, s *session, moment time.Time) {
	for ctx.Err() == nil {
		left := moment.Sub(l.hubTime(s))
		if left <= 0 {
			return
		}
		pause(ctx, l.config.Clock, min(left, longestSleep), nil)
	}
}

// hubTime is what the hub's clock shows, as far as its answers tell: tokens begin and end by that.
func (l *life) hubTime(s *session) time.Time {
	now := l.config.Clock.Now()
	if skew := s.clockSkew(); skew != nil {
		return now.Add(-skew.Duration)
	}
	return now
}

// renewUntilItWorks returns an error only when the session is over, because another credential was stored.
func (l *life) renewUntilItWorks(ctx context.Context, s *session, t term) error {
	r := &renewing{life: l, session: s, term: t, asks: t.life(), pauses: l.config.Timing.renewal(t.life())}
	for ctx.Err() == nil {
		err := r.once(ctx)
		switch {
		case err == nil:
			r.succeeded(ctx)
			return nil
		case errors.Is(err, errReplaced):
			return err
		}
		next := r.pauses.Step()
		r.failed(ctx, err, next)
		pause(ctx, l.config.Clock, next, nil)
	}
	return nil
}

// renewing is one renewal, however many tries it takes.
type renewing struct {
	*life
	session *session
	term    term
	asks    time.Duration // the lifetime to ask for
	pauses  *wait.Backoff
	told    bool   // by an event
	token   string // that works and is not stored yet
	ends    time.Time
}

// once gets, uses and stores another token, in this order, and then goes over to it.
func (r *renewing) once(ctx context.Context) error {
	if r.token == "" {
		token, ends, err := r.request(ctx)
		if err != nil {
			return err
		}
		if err := r.tryOut(ctx, r.session.credential.renewed(token)); err != nil {
			return err
		}
		r.token, r.ends = token, ends
	}
	r.session.expect(r.token)
	if err := r.store(ctx); err != nil {
		return err
	}
	r.session.goOver(r.token)
	return nil
}

// request asks the hub for a token of the same ServiceAccount that lives as long. Where a policy gives none for so long, by a
// limit that came later, the next try asks for less.
func (r *renewing) request(ctx context.Context) (string, time.Time, error) {
	claims := r.term.claims
	issuer := credential.Issuer{Client: r.session.hub.core.CoreV1(), Clock: r.config.Clock}
	issued, err := issuer.Request(ctx, credential.Account{Namespace: claims.Namespace, Name: claims.ServiceAccount}, r.asks)
	if err != nil {
		if limitsLifetime(err) {
			r.asks = r.less()
		}
		return "", time.Time{}, err
	}
	fresh, limited := termOf(issued.Token.Reveal())
	if !limited || fresh.claims.UID != claims.UID || !fresh.expires.After(r.term.expires) {
		return "", time.Time{}, fmt.Errorf("the hub answered with a token that is not of this agent, or does not end later than %s", stamp(r.term.expires))
	}
	return issued.Token.Reveal(), fresh.expires, nil
}

// limitsLifetime is false where the right to ask is missing: a quarantine takes that away and gives it back, and no lifetime is
// short enough meanwhile.
func limitsLifetime(err error) bool {
	const missingRight = `cannot create resource "serviceaccounts/token"`
	if !fromAPIServer(err) {
		return false
	}
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) && !strings.Contains(err.Error(), missingRight)
}

// less is the half, and the whole lifetime again where the half ends before the present token does: such a token is of no use,
// and what refused the longer ones may be gone.
func (r *renewing) less() time.Duration {
	half := r.asks / 2
	if half < credential.MinLifetime || !r.hubTime(r.session).Add(half).After(r.term.expires) {
		return r.term.life()
	}
	return half
}

func (r *renewing) tryOut(ctx context.Context, renewed *stored) error {
	h, answer, err := r.askOn(ctx, renewed.access, renewed.mode)
	defer h.close()
	if answer != Accepts {
		return fmt.Errorf("the new token does not work (%s): %w", answer, err)
	}
	return nil
}

// store changes nothing but the token of what is stored now. A Secret that is gone is not made again: whoever took it away
// wants the agent to register.
func (r *renewing) store(ctx context.Context) error {
	secret, err := r.member.secret(ctx, registration.CredentialSecret)
	if err != nil {
		return err
	}
	current, presence, _ := examine(secret, parseStored)
	switch {
	case presence != Present:
		return fmt.Errorf("Secret %s/%s, which is to keep the new token, is %s", r.member.namespace, registration.CredentialSecret, presence)
	case current.access.token == r.token:
		return nil // a write whose answer was lost
	case !r.session.holds(current):
		return errReplaced
	}
	renewed, err := current.renewed(r.token).secret(r.member.namespace, secret)
	if err != nil {
		return err
	}
	return r.member.write(ctx, renewed, true)
}

func (r *renewing) succeeded(ctx context.Context) {
	text := "The credential for the hub was renewed; it ends at " + stamp(r.ends)
	r.log.Info(text)
	if r.told {
		r.event(ctx, corev1.EventTypeNormal, reasonRenewed, text)
	}
	r.notice.poke()
}

// failed tells of it in the log, and when half of the time that is left for it is over, where a person looks first.
func (r *renewing) failed(ctx context.Context, err error, next time.Duration) {
	if ctx.Err() != nil {
		return
	}
	text := fmt.Sprintf("The credential for the hub, which ends at %s, could not be renewed: %v", stamp(r.term.expires), err)
	r.log.Warnf("%s; next try in %s", text, next.Round(time.Millisecond))
	if r.told || r.hubTime(r.session).Before(r.term.alarm(r.config.Timing.RenewAfter)) {
		return
	}
	r.told = true
	r.event(ctx, corev1.EventTypeWarning, reasonExpiring, text)
}
