package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-fleet/muster/pkg/release"
)

// keepRegistration does beside the work what is left to do about the registration: it removes the bootstrap Secret of a
// finished one, starts a new one when the hub asks for it, and goes over to another way to the hub when that works. It looks
// at the start, when something that an import writes changes, and while the other way does not work, later and later.
func (l *life) keepRegistration(ctx context.Context, current *session) error {
	pauses := l.config.Timing.retry()
	until, held := l.config.Clock.Now().Add(l.config.Timing.HelmWaits), false
	for proved := true; ctx.Err() == nil; proved = false { // a session begins with a credential that has just worked
		action, err := l.keep(ctx, current, proved, until)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errHelmWaits):
			held = true
			l.wait(ctx, until.Sub(l.config.Clock.Now()))
		case failed(err):
			l.wait(ctx, pauses.Step())
		case err != nil: // outdated
		case action == Register || action == ReplaceStored || action == MoveStored:
			return errReplaced
		case action == StayPut:
			if l.wait(ctx, pauses.Step()) {
				pauses = l.config.Timing.retry()
			}
		case held:
			held = false // what it was told elsewhere counts now that the bootstrap Secret is gone
		default:
			pauses = l.config.Timing.retry()
			l.awaitChange(ctx)
		}
	}
	return nil
}

func (l *life) awaitChange(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-l.changed:
	}
}

// keep is a turn of the switch within a session: whatever has become of the stored credential, the work goes on meanwhile.
func (l *life) keep(ctx context.Context, current *session, proved bool, until time.Time) (Action, error) {
	s, err := l.lookAround(ctx)
	if err != nil {
		l.log.Warnf("Cannot look after the registration: %v", err)
		return UseStored, err
	}
	if s.Stored == Present && !current.holds(s.stored) {
		// Somebody stored another one. It has to work before anything is removed on its account.
		return ReplaceStored, nil
	}
	if s.Leaving && Decide(s.Facts) == Register {
		// To be registered once this session is over: as long as it goes on, it tells the hub it leaves, and has the agent leave then.
		return ReplaceStored, nil
	}
	if s.Stored == Present && !s.Leaving {
		l.tryOther(ctx, s)
	}
	if ctx.Err() != nil {
		return UseStored, ctx.Err()
	}
	l.prove(ctx, s, proved)
	action := Decide(s.Facts)
	if action == WaitForHub {
		action = StayPut
	}
	l.note(action, s)
	s.session = current
	return action, l.keepUp(ctx, action, s, until)
}

// prove asks the hub only where the answer decides something: a bootstrap Secret that came meanwhile is removed as a leftover
// if the credential works, and may have been brought because it no longer does. A session notices that at its next request,
// which may be a check-in interval away.
func (l *life) prove(ctx context.Context, s *situation, proved bool) {
	if s.Hub = Accepts; proved || s.Stored != Present || s.Bootstrap != Present {
		return
	}
	h, answer, _ := l.askOn(ctx, s.stored.access, s.stored.mode)
	defer h.close()
	s.Hub = answer
}

func (l *life) keepUp(ctx context.Context, action Action, s *situation, until time.Time) error {
	switch action {
	case UseStored:
		return errors.Join(l.pin(ctx, s), l.tidy(ctx, s, until))
	case StayPut:
		return l.pin(ctx, s)
	case MoveStored:
		return l.move(ctx, s)
	case Register, ReplaceStored:
		l.announce(Register, s)
		return l.tryRegister(ctx, s)
	default:
		l.announce(action, s)
		return nil
	}
}

// errHelmWaits is why the bootstrap Secret stays for a moment.
var errHelmWaits = errors.New("whoever installs the agent may be waiting for all of its objects")

// helmWaits: `helm install --wait` succeeds when it sees every object of the release in order at the same time. It would wait
// in vain for a Secret that an agent which registers at once has removed before the agent's own Deployment was available.
func (l *life) helmWaits(s *situation, until time.Time) bool {
	return s.Bootstrap == Present && s.bootstrapSecret.Annotations[release.NameAnnotation] != "" && l.config.Clock.Now().Before(until)
}

// tidy removes what only a registration needs. A bootstrap Secret that cannot be read stays: it may be meant for later,
// and deleting it would take away what a person has to look at.
func (l *life) tidy(ctx context.Context, s *situation, until time.Time) error {
	err := l.member.forgetPending(ctx)
	l.vouching.set("")
	helmWaits := l.helmWaits(s, until)
	if err == nil && helmWaits {
		return errHelmWaits
	}
	if s.Bootstrap == Present && !helmWaits {
		err = errors.Join(err, l.member.remove(ctx, s.bootstrapSecret))
	}
	if err != nil {
		return l.untidy(err)
	}
	if s.Bootstrap == Malformed {
		l.log.Warnf("Leaving a bootstrap Secret that cannot be used: %v", s.bootstrapErr)
	}
	return nil
}

func (l *life) untidy(err error) error {
	err = fmt.Errorf("removing what is left of the registration: %w", err)
	l.log.Warn(err)
	return err
}
