package clusterregistrationtoken

import (
	"fmt"

	"github.com/rancher/wrangler/v3/pkg/kv"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/writes"
	"github.com/muster-fleet/muster/pkg/shard"
)

func shardOf(key string, _ *fleet.ClusterRegistrationToken) shard.Shard {
	return shard.Of(kv.RSplit(key, "/"))
}

// onOthers counts the uses of a token that another hub looks after, for the requests that are this one's: a request asks the
// hub that has judged it. That each is counted once, and none too many, follows from the version that the write names; of two
// hubs that count at the same time one comes too late, and looks again.
func (h *handler) onOthers(key string, token *fleet.ClusterRegistrationToken) (*fleet.ClusterRegistrationToken, error) {
	if token == nil {
		h.forget(key) // its shard may have been this hub's
		return nil, nil
	}
	if token.DeletionTimestamp != nil || h.fresh.IsStale(token) || len(h.Uses.Of(keyOf(token))) == 0 {
		return token, nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	after := token.DeepCopy()
	counted, failure := h.countUses(ctx, after)
	if failure != nil {
		return token, failure
	}
	latest, written, err := writes.Status(h.tokens, token, after)
	switch {
	case h.isTooLate(err):
		h.tokens.EnqueueAfter(token.Namespace, token.Name, wait.Jitter(tooLate, 1))
		return token, nil
	case err != nil:
		return token, fmt.Errorf("counting uses: %w", err)
	}
	h.Uses.Done(keyOf(token), counted.answered)
	if written {
		h.fresh.Wrote(latest)
	}
	h.lookAgain(token, nil, counted.next)
	return latest, nil
}

// isTooLate says whether a write failed for what is no failure where several hubs share the work.
func (h *handler) isTooLate(err error) bool { return h.Shards.Shares() && apierrors.IsConflict(err) }

// isOthers says whether a request that has asked is another hub's by now: it asks there.
func (h *handler) isOthers(request *fleet.ClusterRegistration) bool {
	return !h.Shards.Holds(shard.OfRequest(request))
}
