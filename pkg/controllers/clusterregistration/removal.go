package clusterregistration

import (
	"context"
	"fmt"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/registration"
)

// credentialLifetime is how long a credential Secret stays on the hub. An agent that waits looks for it every half minute, and one
// that could not for half an hour makes another request; after that it only waits to be stolen.
const credentialLifetime = 40 * time.Minute

// farewellLook is how often it is looked whether an agent has left that had to keep what its deleted request was given.
const farewellLook = 10 * time.Second

// secretsByRequest finds credential Secrets by the key of their request.
const secretsByRequest = "muster.fleet.cattle.io/secret-by-request"

func requestOfSecret(secret *corev1.Secret) ([]string, error) {
	key := requestKeyOf(secret)
	if secret.Type != registration.SecretTypeCredential || key.Name == "" {
		return nil, nil
	}
	return []string{index.Key(key.Namespace, key.Name)}, nil
}

func requestKeyOf(secret *corev1.Secret) types.NamespacedName {
	a := secret.Annotations
	if name := a[fleet.ClusterRegistrationAnnotation]; name != "" {
		return types.NamespacedName{Namespace: a[fleet.ClusterRegistrationNamespaceAnnotation], Name: name}
	}
	return types.NamespacedName{Namespace: a[ownerAnnotations[0]], Name: a[ownerAnnotations[1]]}
}

// removeUnlessNeeded looks again later where an agent still has to leave. The deletion of the cluster namespace brings the
// request back sooner.
func (h *handler) removeUnlessNeeded(ctx context.Context, key string) error {
	namespace, name := kv.RSplit(key, "/")
	if h.Left.Take(types.NamespacedName{Namespace: namespace, Name: name}) {
		return h.remove(ctx, key)
	}
	needed, err := h.agents.Need(ctx, namespace, name)
	if err != nil {
		return err
	}
	if needed {
		h.requests.EnqueueAfter(namespace, name, farewellLook)
		return nil
	}
	return h.remove(ctx, key)
}

// remove takes back everything a request was given. Most of it has no owner reference, for it is in other namespaces; the
// sets find it by label, also what a release with the shorter set ID made.
func (h *handler) remove(ctx context.Context, key string) error {
	namespace, name := kv.RSplit(key, "/")
	for _, id := range []string{registration.OwnedSetID(setID, namespace, name), setID} {
		if err := h.sets.Remove(ctx, id, key, requestKind); err != nil {
			return fmt.Errorf("removing what ClusterRegistration %s was given: %w", key, err)
		}
	}
	secrets, err := h.secrets.GetByIndex(secretsByRequest, key)
	if err != nil {
		return err
	}
	for _, secret := range secrets {
		if err := h.deleteSecret(ctx, secret); err != nil {
			return err
		}
	}
	return nil
}

func (h *handler) deleteSecret(ctx context.Context, secret *corev1.Secret) error {
	err := h.Kubernetes.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &secret.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting credential Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

// expireCredential removes a credential Secret at the end of its time, and a refusal with its request.
func (h *handler) expireCredential(_ string, secret *corev1.Secret) (*corev1.Secret, error) {
	if secret == nil || secret.DeletionTimestamp != nil || !h.isCredential(secret) {
		return secret, nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	if isRefusal(secret) {
		return secret, h.dropRefusal(ctx, secret)
	}
	left := credentialLifetime - h.Clock.Since(secret.CreationTimestamp.Time)
	if left > 0 {
		h.Core.Secret().EnqueueAfter(secret.Namespace, secret.Name, left)
		return secret, nil
	}
	return secret, h.deleteSecret(ctx, secret)
}

func (h *handler) isCredential(secret *corev1.Secret) bool {
	return secret.Namespace == h.RegistrationNamespace() && secret.Type == registration.SecretTypeCredential &&
		(secret.Labels[fleet.ClusterLabel] != "" || isRefusal(secret))
}
