package agent

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// life is the agent between its start and its end.
type life struct {
	config           Config
	log              logrus.FieldLogger
	member           *member
	bootstrapChanged <-chan struct{}
}

// errWaiting is the outcome of a turn that could do nothing but wait; what for was logged already.
var errWaiting = errors.New("waiting")

// run takes turns until ctx ends. It pauses after one that came to nothing, longer each time, and at most until a new
// bootstrap Secret comes.
func (l *life) run(ctx context.Context) {
	pauses := l.config.Timing.retry()
	unused := false // registered since the last session
	for ctx.Err() == nil {
		action, err := l.turn(ctx)
		used := action == UseStored || action == ReplaceStored
		if used {
			pauses = l.config.Timing.retry()
		}
		registered := action == Register && err == nil
		// Two registrations without a session in between could go round for ever, each with a request to the hub.
		if failed(err) || registered && unused {
			l.wait(ctx, pauses.Step())
		}
		unused = !used && (unused || registered)
	}
}

// failed: what is outdated did not fail, there is something better to do at once.
func failed(err error) bool { return err != nil && !errors.Is(err, errOutdated) }

func (l *life) wait(ctx context.Context, d time.Duration) (woken bool) {
	return pause(ctx, l.config.Clock, d, l.bootstrapChanged)
}

// turn looks, decides and carries out what was decided. nil means to go on at once.
func (l *life) turn(ctx context.Context) (Action, error) {
	s, err := l.look(ctx)
	defer func() { s.hub.close() }()
	if err != nil {
		l.complain(ctx, err)
		return WaitForHub, err
	}
	action := Decide(s.Facts)
	if ctx.Err() != nil {
		return action, ctx.Err()
	}
	l.announce(action, s)
	return action, l.carryOut(ctx, action, s)
}

func (l *life) carryOut(ctx context.Context, action Action, s *situation) error {
	switch action {
	case UseStored, ReplaceStored:
		return l.session(ctx, s)
	case Register:
		return l.tryRegister(ctx, s)
	default:
		return errWaiting
	}
}

// tryRegister logs what went wrong, in words that other components look for in the log.
func (l *life) tryRegister(ctx context.Context, s *situation) error {
	err := l.register(ctx, s)
	switch {
	case err == nil:
		l.log.Infof("Registered; credential stored in Secret %s/%s", l.member.namespace, registration.CredentialSecret)
	case errors.Is(err, errOutdated):
		l.log.Info("Secret fleet-agent-bootstrap has changed: starting over with it")
	default:
		l.complain(ctx, err)
	}
	return err
}

func (l *life) complain(ctx context.Context, err error) {
	if ctx.Err() == nil {
		l.log.Errorf("Failed to register agent: %v", err)
	}
}

// situation is what a turn found: the facts to decide by, and what they were taken from to act on.
type situation struct {
	Facts
	config    config.Agent
	stored    *stored
	bootstrap *bootstrap
	hub       *hub // of the stored credential

	bootstrapSecret         *corev1.Secret
	storedErr, bootstrapErr error // why it is Malformed
	hubErr                  error // what the hub answered
}

// look reads what is on the member and asks the hub with the stored credential, if there is one.
func (l *life) look(ctx context.Context) (*situation, error) {
	s, err := l.lookAround(ctx)
	if err != nil || s.Stored != Present {
		return s, err
	}
	s.hub, err = l.dial(s.stored.access, s.config.AgentTLSMode)
	if err != nil {
		// No CA to trust in the stored kubeconfig, say: the credential cannot be used as it is.
		s.Stored, s.storedErr = Malformed, err
		return s, nil
	}
	s.Hub, s.hubErr = l.ask(ctx, s.hub)
	return s, nil
}

// lookAround reads what is on the member. It never returns nil.
func (l *life) lookAround(ctx context.Context) (*situation, error) {
	s := &situation{}
	var err error
	if s.config, err = l.member.agentConfig(ctx); err != nil {
		return s, err
	}
	credential, err := l.member.secret(ctx, registration.CredentialSecret)
	if err != nil {
		return s, err
	}
	s.bootstrapSecret, err = l.member.secret(ctx, registration.BootstrapSecret)
	if err != nil {
		return s, err
	}
	s.stored, s.Stored, s.storedErr = examine(credential, parseStored)
	s.bootstrap, s.Bootstrap, s.bootstrapErr = examine(s.bootstrapSecret, parseBootstrap)
	if s.Stored == Present && s.Bootstrap == Present {
		s.HubMoved = s.stored.access.elsewhere(s.bootstrap.hubAccess())
		s.RegisterAnew = anew(s.stored, s.bootstrap)
		if !s.RegisterAnew {
			s.RegisterAnew, err = l.member.abandoned(ctx, s.bootstrap, s.config)
		}
	}
	return s, err
}

func examine[T any](secret *corev1.Secret, parse func(*corev1.Secret) (*T, error)) (*T, Presence, error) {
	if secret == nil {
		return nil, Absent, nil
	}
	parsed, err := parse(secret)
	if err != nil {
		return nil, Malformed, err
	}
	return parsed, Present, nil
}

// anew: only a hub that says which registration it wants can want another one. A bootstrap Secret that does not say so, of
// a chart that was upgraded say, is no reason to give up a credential that works.
func anew(s *stored, b *bootstrap) bool {
	return b.registration != "" && b.registration != s.registration
}

// ask finds out what the hub thinks of the credential. A refusal is asked for again until it is certain.
func (l *life) ask(ctx context.Context, h *hub) (Answer, error) {
	suspicion := l.config.Timing.suspicion()
	for {
		err := h.probe(ctx)
		answer := Classify(err)
		if answer != Refuses || suspicion.observe(answer, l.config.Clock.Now()) {
			return answer, err
		}
		l.log.Warnf("The hub refuses the stored credential (%v): asking again to be certain", err)
		pause(ctx, l.config.Clock, l.config.Timing.RefusalPause, nil)
	}
}
