package clusterregistration

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
)

// helpedByToken finds the requests that a change of a token may help. One that only counted uses helps those it counted: in a
// storm on one token every request would be looked at again with each of its counts.
func (h *handler) helpedByToken(before, after *fleet.ClusterRegistrationToken) []types.NamespacedName {
	switch {
	case after == nil:
		return h.waitingForToken(before)
	case before == nil || !onlyCounted(before, after):
		return h.waitingForToken(after)
	}
	return h.counted(before, after)
}

// onlyCounted says whether nothing but the uses of a token changed, of which it has any number.
func onlyCounted(before, after *fleet.ClusterRegistrationToken) bool {
	was, is := before.Status, after.Status
	was.Uses, was.PendingUses, was.LastUsed, was.LastCluster = is.Uses, is.PendingUses, is.LastUsed, is.LastCluster
	return after.Spec.UsageLimit == nil && (before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) &&
		before.Generation == after.Generation && reflect.DeepEqual(before.Spec, after.Spec) && reflect.DeepEqual(was, is) &&
		maps.Equal(before.Labels, after.Labels) && maps.Equal(before.Annotations, after.Annotations)
}

// counted are the requests that the token names now and did not before.
func (h *handler) counted(before, after *fleet.ClusterRegistrationToken) (keys []types.NamespacedName) {
	for _, uid := range after.Status.PendingUses {
		if slices.Contains(before.Status.PendingUses, uid) {
			continue
		}
		requests, _ := h.cache.GetByIndex(index.ByUID, uid)
		keys = append(keys, ungranted(requests)...)
	}
	return keys
}
