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

// roomDelay is the time after which a token is enqueued that has more uncounted requests than its status can name at once.
const roomDelay = 250 * time.Millisecond

func keyOf(token *fleet.ClusterRegistrationToken) types.NamespacedName {
	return types.NamespacedName{Namespace: token.Namespace, Name: token.Name}
}

// count is the result of countUses.
type count struct {
	answered []registration.Use // counted or refused, once the status is written
	next     time.Duration      // the time after which the others are counted; 0 if there are none
}

// countUses adds the requests that ask for a use of the token to its status, which is written once for all of them. The write names the version
// that it is based on, so a request becomes counted in one step, even if others write or the hub is killed.
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
	uncounted := slices.DeleteFunc(slices.Clone(asking), func(use registration.Use) bool { return !h.isUncounted(use, token) })
	uses, added, waiting := before.Settle(settled).Add(uncounted)
	if len(added) > 0 {
		now := metav1.NewTime(h.Clock.Now())
		token.Status.Uses, token.Status.PendingUses = uses.Count, uses.Pending
		token.Status.LastUsed, token.Status.LastCluster = &now, added[len(added)-1].Cluster
	}
	if len(waiting) == 0 {
		return count{answered: asking}, nil
	}
	waits := make(map[string]bool, len(waiting)) // by UID; in a storm of registrations there are thousands
	for _, use := range waiting {
		waits[use.UID] = true
	}
	return count{answered: slices.DeleteFunc(asking, func(use registration.Use) bool { return waits[use.UID] }), next: roomDelay}, nil
}

// isUncounted checks the status of the request: since the request asked, it may have been counted, and the token may no longer name it.
func (h *handler) isUncounted(use registration.Use, token *fleet.ClusterRegistrationToken) bool {
	request, err := h.requests.Get(token.Namespace, use.Name)
	return err == nil && string(request.UID) == use.UID && request.DeletionTimestamp == nil && request.Status.TokenUID != string(token.UID)
}

// request reads the cache. It returns nil if there is no such request.
func (h *handler) request(uid string) *fleet.ClusterRegistration {
	found, err := index.RequestsByUID.Find(h.requests, uid)
	if err != nil || len(found) == 0 {
		return nil
	}
	return found[0]
}

// settled returns a function that reports whether the token need no longer name a request, because the status of the request records the use or
// the request was deleted. If the cache lacks a request, it reads from the API server: the cache of a hub that has just started may be behind.
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
