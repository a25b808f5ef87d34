package clusterregistration

import (
	"context"
	"fmt"
	"time"

	"github.com/rancher/wrangler/v3/pkg/kv"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
)

// uninstallPoll is the interval at which the hub checks whether an agent, whose request is deleted, has uninstalled itself.
const uninstallPoll = 10 * time.Second

// removeUnlessNeeded deletes the objects of a deleted request, unless its agent still needs them to uninstall itself. The deletion of the
// cluster namespace then enqueues the request sooner than the timer.
func (h *handler) removeUnlessNeeded(ctx context.Context, key string) error {
	namespace, name := kv.RSplit(key, "/")
	if !h.DeletedRequests.Take(types.NamespacedName{Namespace: namespace, Name: name}) {
		needed, err := h.agents.Need(ctx, namespace, name)
		if err != nil {
			return err
		}
		if needed {
			h.queue.EnqueueAfter(namespace, name, uninstallPoll)
			return nil
		}
	}
	return h.remove(ctx, key)
}

// remove deletes all objects of a request. Most of them are in other namespaces and have no owner reference; the sets find them by label,
// including the objects of Fleet's hub, whose set ID lacks the key.
func (h *handler) remove(ctx context.Context, key string) error {
	namespace, name := kv.RSplit(key, "/")
	for _, id := range []string{registration.OwnedSetID(setID, namespace, name), setID} {
		if err := h.sets.Remove(ctx, id, key, requestKind); err != nil {
			return fmt.Errorf("deleting the rights of ClusterRegistration %s: %w", key, err)
		}
	}
	secrets, err := h.credentialsOf(key)
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
