package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// life is the agent between its start and its end.
type life struct {
	config  Config
	log     logrus.FieldLogger
	member  *member
	changed <-chan struct{} // what an import writes has changed
	notice  notice
	refusal refusal
	// instance tells this process from another one with the same identity.
	instance string
	vouching vouching
	denial   denial
	plain    sync.Once // the warning of a way that is not encrypted
	waiting  waiting
	// deploy carries out BundleDeployments.
	deploy deployment
}

// errWaiting is the outcome of a turn that could do nothing but wait; what for was logged already.
var errWaiting = errors.New("waiting")

// run takes turns until ctx ends. It pauses after one that came to nothing, longer each time, and at most until somebody
// changes what an import writes.
func (l *life) run(ctx context.Context) {
	pauses := l.config.Timing.retry()
	unused := false // registered since the last session
	for ctx.Err() == nil {
		action, err := l.turn(ctx)
		used := action.works()
		if used {
			pauses = l.config.Timing.retry()
		}
		registered := (action == Register || action == MoveStored) && err == nil
		// Two of them without a session in between could go round for ever, each with a request to the hub.
		if failed(err) || registered && unused {
			l.wait(ctx, pauses.Step())
		}
		unused = !used && (unused || registered)
	}
}

// failed: what is outdated did not fail, there is something better to do at once.
func failed(err error) bool { return err != nil && !errors.Is(err, errOutdated) }

func (l *life) wait(ctx context.Context, d time.Duration) (woken bool) {
	return pause(ctx, l.config.Clock, d, l.changed)
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
	l.note(action, s)
	l.reportRefusal(ctx, action, s)
	return action, l.carryOut(ctx, action, s)
}

func (l *life) carryOut(ctx context.Context, action Action, s *situation) error {
	switch action {
	case UseStored, ReplaceStored, StayPut:
		return l.work(ctx, s)
	case MoveStored:
		return l.move(ctx, s)
	case Register:
		return l.tryRegister(ctx, s)
	case Leave:
		return l.leave(ctx, s)
	default:
		return errWaiting
	}
}

// work goes on until the session ends, and sees to it that a farewell of the hub is not forgotten.
func (l *life) work(ctx context.Context, s *situation) error {
	err := l.session(ctx, s)
	if errors.Is(err, errFarewell) {
		return l.beginLeaving(ctx)
	}
	return err
}

// tryRegister logs what went wrong, in words that other components look for in the log.
func (l *life) tryRegister(ctx context.Context, s *situation) error {
	err := l.register(ctx, s)
	switch {
	case err == nil:
		l.log.Infof("Registered; credential stored in Secret %s/%s", l.member.namespace, registration.CredentialSecret)
	case errors.Is(err, errLookAgain):
		l.log.Info("Something that an import writes has changed: looking at the refused registration again")
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
	sources   sources
	other     *way     // to go instead of the stored one, if any
	hub       *hub     // of the stored credential
	session   *session // that goes on meanwhile; nil while none does

	storedSecret, bootstrapSecret *corev1.Secret
	storedErr, bootstrapErr       error // why it is Malformed
	hubErr, thereErr              error // what the hub answered
	unpinned                      bool  // the stored Secret does not say which TLS mode it works in
}

// look reads what is on the member and asks the hub with the stored credential, if there is one: on another way first, if
// the agent was told of one.
func (l *life) look(ctx context.Context) (*situation, error) {
	s, err := l.lookAround(ctx)
	if err != nil || s.Stored != Present || s.Leaving {
		return s, err
	}
	if l.tryOther(ctx, s); s.There == Accepts {
		return s, nil
	}
	s.hub, s.Hub, s.hubErr = l.askOn(ctx, s.stored.access, s.stored.mode)
	if s.Hub != Accepts && s.other == nil {
		s.other = s.sources.fallback(s.stored)
		l.tryOther(ctx, s)
	}
	return s, nil
}

// askOn asks the hub at one place. The connection is the caller's to close; nil when none could be prepared, which is no
// verdict on the credential.
func (l *life) askOn(ctx context.Context, access hubAccess, mode config.TLSMode) (*hub, Answer, error) {
	h, err := l.dial(access, mode)
	if err != nil {
		return nil, Unreachable, err
	}
	answer, err := l.ask(ctx, h)
	return h, answer, err
}

// lookAround reads what is on the member. It never returns nil.
func (l *life) lookAround(ctx context.Context) (*situation, error) {
	s := &situation{}
	if err := l.read(ctx, s); err != nil {
		return s, err
	}
	if s.Stored == Present {
		s.unpinned = s.stored.mode == ""
		s.stored.mode = provedMode(s.stored, s.config.AgentTLSMode)
	}
	var err error
	if s.Leaving = marked(s.storedSecret); s.Leaving {
		s.RegisterAnew = s.comesAnew()
	} else if s.Stored == Present {
		s.RegisterAnew, err = l.asksAnew(ctx, s)
		s.other = s.sources.wanted(s.stored)
	}
	return s, err
}

func (l *life) read(ctx context.Context, s *situation) (err error) {
	if s.config, err = l.member.agentConfig(ctx); err != nil {
		return err
	}
	if s.sources.location, err = l.member.hubLocation(ctx); err != nil {
		return err
	}
	if s.storedSecret, err = l.member.secret(ctx, registration.CredentialSecret); err != nil {
		return err
	}
	if s.bootstrapSecret, err = l.member.secret(ctx, registration.BootstrapSecret); err != nil {
		return err
	}
	s.stored, s.Stored, s.storedErr = examine(s.storedSecret, parseStored)
	s.bootstrap, s.Bootstrap, s.bootstrapErr = examine(s.bootstrapSecret, parseBootstrap)
	s.sources.mode = s.config.AgentTLSMode
	return nil
}

// asksAnew says whether the bootstrap Secret is for another registration than the stored one. If not, it is a source of
// where the hub is.
func (l *life) asksAnew(ctx context.Context, s *situation) (bool, error) {
	if s.Bootstrap != Present {
		return false, nil
	}
	if anew(s.stored, s.bootstrap) {
		return true, nil
	}
	abandoned, err := l.member.abandoned(ctx, s.bootstrap, s.config)
	if !abandoned {
		s.sources.bootstrap = s.bootstrap
	}
	return abandoned, err
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
		l.refusal.log(l.log, err)
		pause(ctx, l.config.Clock, l.config.Timing.RefusalPause, nil)
	}
}
