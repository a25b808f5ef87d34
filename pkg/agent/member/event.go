package member

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/registration"
)

// RecordEvent writes an event on the agent's Deployment, where people look first. There is one Event object for each reason;
// it counts its occurrences, as Kubernetes' own events do.
func (m *Member) RecordEvent(ctx context.Context, at time.Time, kind, reason, message string) error {
	now := metav1.NewTime(at)
	events := m.Core.CoreV1().Events(m.Namespace)
	involved, _ := m.DeploymentReference(ctx) // an event without the UID is still listed
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: m.Namespace, Name: registration.AgentName + "." + strings.ToLower(reason)},
		InvolvedObject: involved,
		Type:           kind, Reason: reason, Message: Brief(message),
		Source:         corev1.EventSource{Component: registration.AgentName},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	_, err := events.Create(ctx, event, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	earlier, err := events.Get(ctx, event.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading Event %s/%s: %w", m.Namespace, event.Name, err)
	}
	earlier.InvolvedObject, earlier.Message = event.InvolvedObject, event.Message
	earlier.LastTimestamp, earlier.Count = now, earlier.Count+1
	_, err = events.Update(ctx, earlier, metav1.UpdateOptions{})
	return err
}

// DeploymentReference returns a reference to the agent's Deployment. The UID is empty if there is no Deployment or it cannot be read.
func (m *Member) DeploymentReference(ctx context.Context) (corev1.ObjectReference, error) {
	reference := corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: m.Namespace, Name: registration.AgentName}
	deployment, err := m.Core.AppsV1().Deployments(m.Namespace).Get(ctx, registration.AgentName, metav1.GetOptions{})
	switch {
	case err == nil:
		reference.UID = deployment.UID
	case !apierrors.IsNotFound(err):
		return reference, fmt.Errorf("reading Deployment %s/%s: %w", m.Namespace, registration.AgentName, err)
	}
	return reference, nil
}

// Brief cuts a text that may contain a page of HTML from a proxy, so that it fits into an event or a status.
func Brief(text string) string {
	const most = 400
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}
