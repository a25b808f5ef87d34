package clusterregistration

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// quarantine brings every request that has an identity in the namespace of a Cluster back at once when that is put into
// quarantine or released: its rights are taken away or given back. Clusters change with each heartbeat, and a granted
// request is looked at for no other change of its Cluster's spec.
func (h *handler) quarantine(before, after any) {
	was, isCluster := before.(*fleet.Cluster)
	now, isStill := after.(*fleet.Cluster)
	if !isCluster || !isStill || was.Spec.Quarantined == now.Spec.Quarantined {
		return
	}
	accounts, _ := h.accounts.List(registration.ClusterNamespace(now.Namespace, now.Name), labels.Everything())
	for _, account := range accounts {
		for _, request := range requestOf(account) {
			h.requests.EnqueueAfter(request.Namespace, request.Name, 0)
		}
	}
}

// onQuarantine watches Clusters. An error is of an informer that was stopped already; then there is nothing to bring back.
func (h *handler) onQuarantine(clusters enqueue.Source) {
	_, _ = clusters.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: h.quarantine})
}

// cutOff takes the rights from a request that is quarantined between getting them and being granted.
func (p *pass) cutOff(ctx context.Context) result.Result {
	if p.cluster == nil || !p.cluster.Spec.Quarantined {
		return ok
	}
	if _, err := p.accounts.Get(p.clusterNamespace(), p.accountName()); err != nil {
		return ok
	}
	return p.ensureRights(ctx)
}
