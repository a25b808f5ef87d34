package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/view"
	clusternet "github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// TTL converts a duration for the spec of a token: 0 means that the token does not expire.
func TTL(d time.Duration) *metav1.Duration {
	if d == 0 {
		return nil
	}
	return &metav1.Duration{Duration: d}
}

// CreateToken creates a ClusterRegistrationToken.
func (h *Hub) CreateToken(ctx context.Context, namespace, name string, spec fleet.ClusterRegistrationTokenSpec) error {
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
	_, err := h.Fleet.ClusterRegistrationTokens(namespace).Create(ctx, token, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("ClusterRegistrationToken %s/%s already exists: choose another name, or revoke it first", namespace, name)
	case err != nil:
		return fmt.Errorf("create ClusterRegistrationToken %s/%s: %w", namespace, name, h.Explain(err, namespace))
	}
	return nil
}

// RequireClusternet fails if the hub does not serve the requests of Clusternet agents.
func (h *Hub) RequireClusternet() error {
	_, err := h.Kubernetes.Discovery().ServerResourcesForGroupVersion(clusternet.SchemeGroupVersion.String())
	switch {
	case apierrors.IsNotFound(err):
		return errors.New("the hub does not serve Clusternet agents: set the value clusternet.enabled=true of its chart, and run the command again")
	case err != nil:
		return fmt.Errorf("check whether the hub serves Clusternet agents: %w", err)
	}
	return nil
}

// AwaitToken waits until the hub has created the token's Secret. It fails if the hub refuses the token.
func (h *Hub) AwaitToken(ctx context.Context, namespace, name string) (*fleet.ClusterRegistrationToken, error) {
	return awaited[*fleet.ClusterRegistrationToken]{
		what: fmt.Sprintf("ClusterRegistrationToken %s/%s", namespace, name), get: h.Fleet.ClusterRegistrationTokens(namespace).Get, name: name,
		check: func(token *fleet.ClusterRegistrationToken) (bool, string, error) {
			v := view.OfToken(token)
			if v.State == view.StateFailed {
				return false, "", fmt.Errorf("the hub refuses it: %s: %s", v.Reason, v.Message)
			}
			return v.State == view.StateReady, v.Message, nil
		},
	}.wait(ctx)
}

// Values reads the values file for the chart fleet-agent from the token's Secret. The values contain a bearer token.
func (h *Hub) Values(ctx context.Context, token *fleet.ClusterRegistrationToken) ([]byte, error) {
	secret, err := h.Kubernetes.CoreV1().Secrets(token.Namespace).Get(ctx, token.Status.SecretName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s of the token: %w", token.Namespace, token.Status.SecretName, err)
	}
	values := secret.Data[registration.ValuesKey]
	if len(values) == 0 {
		return nil, fmt.Errorf("Secret %s/%s has no key %q: delete it, and the hub creates it again", secret.Namespace, secret.Name, registration.ValuesKey)
	}
	return values, nil
}
