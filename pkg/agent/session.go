package agent

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// session is the time during which the agent is registered with one credential.
type session struct {
	hub        *hub
	credential *stored // as the session began with it; its token may have been renewed since
	tokens
}

// A part is a piece of work that goes on for a whole session. It returns when ctx ends, or earlier to end the session.
type part struct {
	name string
	run  func(ctx context.Context, s *session) error
}

// parts are all that run while the agent is registered.
func (l *life) parts() []part {
	return []part{
		{"heartbeat", l.heartbeat},
		{"registration", l.keepRegistration},
		{"renewal", l.renew},
		{"deploy", l.deployBundles},
	}
}

var (
	// errReplaced ends a session because another credential is stored now.
	errReplaced = errors.New("another credential is stored")
	// errRefused ends a session because the hub refuses the credential.
	errRefused = errors.New("the hub refuses the credential")
)

// session runs all parts until the first one ends. nil means that there is a new credential to go on with, or that ctx
// ended.
func (l *life) session(ctx context.Context, s *situation) error {
	group, groupCtx := errgroup.WithContext(ctx)
	current := newSession(s.hub, s.stored)
	for _, p := range l.parts() {
		group.Go(func() error {
			if err := p.run(groupCtx, current); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			return nil
		})
	}
	err := group.Wait()
	if err == nil || errors.Is(err, errReplaced) || ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, errFarewell) {
		return err
	}
	l.log.Warnf("Starting over: %v", err)
	return err
}
