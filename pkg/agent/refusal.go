package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Reasons of the events on the agent's Deployment.
const (
	// reasonRefused: the hub does not know the stored credential any more, and there is nothing to register with.
	reasonRefused = "CredentialRefused"
	// reasonAccepted: after that, a credential works again.
	reasonAccepted = "CredentialAccepted"
)

// refusal remembers that a refusal was told, so that an agent nobody wants any more does not fill the log with it.
type refusal struct{ told bool }

// log says that one answer was a refusal.
func (r *refusal) log(log logrus.FieldLogger, err error) {
	const text = "The hub refuses the stored credential (%v): asking again to be certain"
	if r.told {
		log.Debugf(text, err)
		return
	}
	log.Warnf(text, err)
}

// reportRefusal tells, where a person looks first, that the agent lost its identity, and later that it has one again.
func (l *life) reportRefusal(ctx context.Context, action Action, s *situation) {
	switch {
	case action == ReportRefused && !l.refusal.told:
		l.refusal.told = true
		_, text := announcement(action, s, l.member.namespace)
		l.event(ctx, corev1.EventTypeWarning, reasonRefused, text)
	case action.works() && l.refusal.told:
		l.refusal.told = false
		_, text := announcement(action, s, l.member.namespace)
		l.event(ctx, corev1.EventTypeNormal, reasonAccepted, text)
	}
}

// event that cannot be written is only logged: it is a courtesy, and the log has the same.
func (l *life) event(ctx context.Context, kind, reason, message string) {
	if err := l.member.recordEvent(ctx, metav1.NewTime(l.config.Clock.Now()), kind, reason, message); err != nil && ctx.Err() == nil {
		l.log.Debugf("Cannot write the event %s: %v", reason, err)
	}
}

// recordEvent writes an event on the agent's Deployment. There is one object for each reason, which counts, as those of
// Kubernetes do.
func (m *member) recordEvent(ctx context.Context, now metav1.Time, kind, reason, message string) error {
	events := m.core.CoreV1().Events(m.namespace)
	involved, _ := m.deploymentReference(ctx) // the name will do
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: m.namespace, Name: registration.AgentName + "." + strings.ToLower(reason)},
		InvolvedObject: involved,
		Type:           kind, Reason: reason, Message: brief(message),
		Source:         corev1.EventSource{Component: registration.AgentName},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err := events.Create(ctx, event, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	earlier, err := events.Get(ctx, event.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading Event %s/%s: %w", m.namespace, event.Name, err)
	}
	earlier.InvolvedObject, earlier.Message = event.InvolvedObject, event.Message
	earlier.LastTimestamp, earlier.Count = now, earlier.Count+1
	_, err = events.Update(ctx, earlier, metav1.UpdateOptions{})
	return err
}

// deploymentReference has the UID, by which kubectl describe finds events; without it they are found by name. It has none where
// there is no Deployment, and where that cannot be read.
func (m *member) deploymentReference(ctx context.Context) (corev1.ObjectReference, error) {
	reference := corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: m.namespace, Name: registration.AgentName}
	deployment, err := m.core.AppsV1().Deployments(m.namespace).Get(ctx, registration.AgentName, metav1.GetOptions{})
	switch {
	case err == nil:
		reference.UID = deployment.UID
	case !apierrors.IsNotFound(err):
		return reference, fmt.Errorf("reading Deployment %s/%s: %w", m.namespace, registration.AgentName, err)
	}
	return reference, nil
}
