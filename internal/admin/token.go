package admin

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// TTL is that of a token's spec: nil, for a token that does not end, where the time is 0.
func TTL(d time.Duration) *metav1.Duration {
	if d == 0 {
		return nil
	}
	return &metav1.Duration{Duration: d}
}

// CreateToken makes a ClusterRegistrationToken.
func (h *Hub) CreateToken(ctx context.Context, namespace, name string, spec fleet.ClusterRegistrationTokenSpec) error {
	token := &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}
	_, err := h.Fleet.ClusterRegistrationTokens(namespace).Create(ctx, token, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("ClusterRegistrationToken %s/%s exists already: choose another name, or revoke it first", namespace, name)
	case err != nil:
		return fmt.Errorf("create ClusterRegistrationToken %s/%s: %w", namespace, name, Explain(err, namespace))
	}
	return nil
}

// AwaitToken waits until the hub has made the token's Secret. It gives up when the hub says that it never will.
func (h *Hub) AwaitToken(ctx context.Context, namespace, name string) (*fleet.ClusterRegistrationToken, error) {
	what := fmt.Sprintf("ClusterRegistrationToken %s/%s", namespace, name)
	var last string
	token, err := await(ctx, h.Fleet.ClusterRegistrationTokens(namespace), &fleet.ClusterRegistrationToken{}, name, false, func(token *fleet.ClusterRegistrationToken) (bool, error) {
		v := view.OfToken(token)
		if v.State == view.StateFailed {
			return false, fmt.Errorf("the hub refuses it: %s: %s", v.Reason, v.Message)
		}
		if v.Message != "" {
			last = v.Message
		}
		return v.State == view.StateReady, nil
	})
	if err != nil {
		return nil, waitError(ctx, what, last, err)
	}
	return token, nil
}

// Values reads the values file for the chart fleet-agent, which contains a bearer token, from the token's Secret.
func (h *Hub) Values(ctx context.Context, token *fleet.ClusterRegistrationToken) ([]byte, error) {
	secret, err := h.Kubernetes.CoreV1().Secrets(token.Namespace).Get(ctx, token.Status.SecretName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s of the token: %w", token.Namespace, token.Status.SecretName, err)
	}
	return valuesOf(secret)
}

func valuesOf(secret *corev1.Secret) ([]byte, error) {
	values := secret.Data[registration.ValuesKey]
	if len(values) == 0 {
		return nil, fmt.Errorf("Secret %s/%s has no key %q: delete it, and the hub makes it again", secret.Namespace, secret.Name, registration.ValuesKey)
	}
	return values, nil
}
