package clusterregistration

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// dependentsOfQuarantine returns every request that has a ServiceAccount in the namespace of a Cluster when that is put into
// quarantine or released: rights withdraws the rights of its agent or gives them back. No other change of a Cluster's spec enqueues a
// granted request.
func (h *handler) dependentsOfQuarantine(before, after *fleet.Cluster) (keys []types.NamespacedName) {
	if before == nil || after == nil || before.Spec.Quarantined == after.Spec.Quarantined {
		return nil
	}
	accounts, _ := h.accounts.List(clusterNamespace(after), labels.Everything())
	for _, account := range accounts {
		keys = append(keys, requestOf(account)...)
	}
	return keys
}

// cutOff withdraws the rights of a request that got them before its Cluster was put into quarantine, and is not granted yet.
func (h *handler) cutOff(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, token *fleet.ClusterRegistrationToken,
) result.Result {
	if _, err := h.accounts.Get(clusterNamespace(cluster), accountName(request)); err != nil {
		return ok
	}
	return h.ensureRights(ctx, request, cluster, token)
}
