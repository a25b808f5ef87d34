package clusterregistrationtoken

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/registration"
)

// roomDelay is when a token is looked at again on which more requests wait to be counted than it can name at once.
const roomDelay = 250 * time.Millisecond

func keyOf(token *fleet.ClusterRegistrationToken) types.NamespacedName {
	return types.NamespacedName{Namespace: token.Namespace, Name: token.Name}
}

// count is what became of the requests that ask to be counted.
type count struct {
	answered []registration.Use // who need not ask again once the status is written
	next     time.Duration      // when the others have their turn; 0 where there are none
}

// countUses puts the requests that ask for it into the token's status, which is written once for all of them. That write
// names the version it is based on; so it is one step from "not counted" to "counted", whoever else writes and wherever
// the hub is cut off.
func (h *handler) countUses(ctx context.Context, token *fleet.ClusterRegistrationToken) (count, error) {
	asking := h.TokenUsage.Of(keyOf(token))
	if len(asking) == 0 {
		return count{}, nil
	}
	before := registration.UsesOf(token)
	settled, err := h.settled(ctx, token)
	if err != nil {
		return count{}, fmt.Errorf("counting the uses of ClusterRegistrationToken %s/%s: %w", token.Namespace, token.Name, err)
	}
	willing := slices.DeleteFunc(slices.Clone(asking), func(use registration.Use) bool { return !h.isUncounted(use, token) })
	uses, added, waiting := before.Settle(settled).Add(willing)
	if len(added) > 0 {
		now := metav1.NewTime(h.Clock.Now())
		token.Status.Uses, token.Status.PendingUses = uses.Count, uses.Pending
		token.Status.LastUsed, token.Status.LastCluster = &now, added[len(added)-1].Cluster
	}
	if len(waiting) == 0 {
		return count{answered: asking}, nil
	}
	return count{
		answered: slices.DeleteFunc(asking, func(use registration.Use) bool { return slices.Contains(waiting, use) }),
		next:     roomDelay,
	}, nil
}

// isUncounted looks at the request itself: it may have asked a moment before its own status came to say that it is counted,
// and the token names it no longer.
func (h *handler) isUncounted(use registration.Use, token *fleet.ClusterRegistrationToken) bool {
	request := h.request(use.UID)
	return request != nil && request.DeletionTimestamp == nil && request.Status.TokenUID != string(token.UID)
}

// request reads the cache; nil means that it has none.
func (h *handler) request(uid string) *fleet.ClusterRegistration {
	found, err := h.requests.GetByIndex(index.ByUID, uid)
	if err != nil || len(found) == 0 {
		return nil
	}
	return found[0]
}

// settled knows which of the requests that the token names it need not name any longer: those whose own status says that
// they are counted, and those that are gone. Only the API server knows that one is gone: the cache of a hub that has just
// started may not have it yet.
func (h *handler) settled(ctx context.Context, token *fleet.ClusterRegistrationToken) (func(uid string) bool, error) {
	gone := map[string]bool{}
	for _, uid := range token.Status.PendingUses {
		if h.request(uid) == nil {
			gone[uid] = true
		}
	}
	if len(gone) > 0 {
		all, err := h.Metadata.Resource(requestResource).Namespace(token.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range all.Items {
			delete(gone, string(all.Items[i].UID))
		}
	}
	return func(uid string) bool {
		request := h.request(uid)
		return gone[uid] || request != nil && request.Status.TokenUID == string(token.UID)
	}, nil
}

var requestResource = fleet.SchemeGroupVersion.WithResource("clusterregistrations")
