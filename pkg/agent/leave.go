package agent

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/registration"
)

// leavingAnnotation on Secret fleet-agent says that the agent has begun to remove itself. Its value is the UID of the
// bootstrap Secret that was there then, which is a leftover; one that comes later is a new beginning.
const (
	leavingAnnotation = "muster.fleet.cattle.io/leaving"
	noBootstrap       = "-"
)

// errFarewell ends a session because the hub said farewell and everything deployed is gone.
var errFarewell = errors.New("the hub says farewell")

func marked(secret *corev1.Secret) bool {
	return secret != nil && secret.Annotations[leavingAnnotation] != ""
}

// comesAnew says that somebody installed the agent again after it had begun to leave.
func (s *situation) comesAnew() bool {
	if s.Bootstrap != Present {
		return false
	}
	return s.storedSecret.Annotations[leavingAnnotation] != string(s.bootstrapSecret.UID) ||
		s.Stored == Present && anew(s.stored, s.bootstrap)
}

// beginLeaving writes the mark. Nothing of the agent is removed before it is written.
func (l *life) beginLeaving(ctx context.Context) error {
	l.log.Info("The hub has said farewell and everything it deployed is gone: this agent removes itself")
	err := l.mark(ctx)
	if err != nil {
		l.complainLeaving(ctx, err)
	}
	return err
}

// mark makes the agent go on with leaving whatever happens to it: once the hub has forgotten it, nobody would tell it again.
func (l *life) mark(ctx context.Context) error {
	secret, err := l.member.secret(ctx, registration.CredentialSecret)
	if err != nil || marked(secret) {
		return err
	}
	if secret == nil {
		return fmt.Errorf("Secret %s/%s, which is to say that the agent leaves, is gone", l.member.namespace, registration.CredentialSecret)
	}
	bootstrap, err := l.member.secret(ctx, registration.BootstrapSecret)
	if err != nil {
		return err
	}
	value := noBootstrap
	if bootstrap != nil {
		value = string(bootstrap.UID)
	}
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[leavingAnnotation] = value
	return l.member.write(ctx, secret, true)
}

// leave removes the agent from its cluster, and then waits to be stopped. Nothing is gone before the last request, which
// deletes one object that owns all others; Kubernetes' garbage collector removes them. So the agent needs no right that it
// has just deleted, and it can be killed, or told to stay, at any moment before.
func (l *life) leave(ctx context.Context, s *situation) error {
	owner, err := l.member.pack(ctx, l.config.Scope)
	if err == nil {
		err = l.member.removeLeftover(ctx, s)
	}
	if err != nil {
		l.complainLeaving(ctx, err)
		return err
	}
	if again, err := l.lookAround(ctx); err != nil || Decide(again.Facts) != Leave {
		return err
	}
	if err := l.member.removeAll(ctx, owner, l.config.Scope); err != nil {
		l.complainLeaving(ctx, err)
		return err
	}
	l.log.Infof("The agent has left: its objects in Namespace %s are being removed, the Namespace stays", l.member.namespace)
	<-ctx.Done()
	return ctx.Err()
}

func (l *life) complainLeaving(ctx context.Context, err error) {
	if ctx.Err() == nil {
		l.log.Errorf("Cannot leave yet: %v", err)
	}
}

// removeLeftover deletes the bootstrap Secret that was there when the agent began to leave.
func (m *member) removeLeftover(ctx context.Context, s *situation) error {
	if s.bootstrapSecret == nil || string(s.bootstrapSecret.UID) != s.storedSecret.Annotations[leavingAnnotation] {
		return nil
	}
	return m.remove(ctx, s.bootstrapSecret)
}

// stay takes everything back that leave has done before its last request; the mark last, because while it is there somebody
// looks after the rest.
func (l *life) stay(ctx context.Context, s *situation) error {
	if !s.Leaving {
		return nil
	}
	l.log.Infof("Secret %s/%s came after the hub had said farewell: this agent stays and registers again",
		l.member.namespace, registration.BootstrapSecret)
	if err := l.member.unpack(ctx, l.config.Scope); err != nil {
		return err
	}
	secret, err := l.member.secret(ctx, registration.CredentialSecret)
	if err != nil || secret == nil {
		return err
	}
	delete(secret.Annotations, leavingAnnotation)
	return l.member.write(ctx, secret, true)
}
