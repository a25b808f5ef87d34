package cluster

import (
	"context"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/removal"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// SubReconciler is one controller's contribution to the status of a Cluster.
type SubReconciler interface {
	// Condition is the type of the condition that reports the result.
	Condition() string
	// Reconcile changes the status of the Cluster, which is a copy; the controller of Clusters writes it. Reconcile does not
	// block: a sub-reconciler that takes long returns Wait and enqueues the Cluster later.
	Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result
	// Forget drops what the sub-reconciler keeps in memory of a deleted Cluster, identified by its key.
	Forget(key string)
}

// AgentInstaller is the sub-reconciler that installs the agent on the member.
type AgentInstaller interface {
	SubReconciler
	// Uninstall removes the agent of a deleted Cluster, and what it deployed, from the member. It returns NotNeeded if the Cluster names no
	// kubeconfig. After the deadline it does not return UnderWay. It may be called again after each state.
	Uninstall(ctx context.Context, cluster *fleet.Cluster, deadline time.Time) (removal.Progress, error)
	// AgentBelongsTo asks the member of a deleted Cluster whether the agent there belongs to one of the other Clusters. belongs is false too
	// while the member has not answered; the answer enqueues the Cluster. canAsk is false if the Cluster names no kubeconfig, or if its
	// Secret in the same namespace is gone.
	AgentBelongsTo(ctx context.Context, cluster *fleet.Cluster, others []*fleet.Cluster) (belongs, canAsk bool, err error)
}

// Liveness is the sub-reconciler that evaluates heartbeats.
type Liveness interface {
	SubReconciler
	// CopyReport copies what the agent has written to its Lease to the status, before the SubReconcilers are called.
	CopyReport(cluster *fleet.Cluster)
	// HasClones reports whether two agents send heartbeats with the identity of the Cluster.
	HasClones(cluster *fleet.Cluster) bool
}

// SubReconcilers are the controllers that contribute to the status of a Cluster, in the order in which they are called.
type SubReconcilers struct {
	Import      AgentInstaller
	AgentBundle SubReconciler
	Bundles     SubReconciler
	Liveness    Liveness
}

// of returns the sub-reconcilers for a Cluster. For a Cluster that is assigned to another controller, Import and AgentBundle are called too:
// they drop the kubeconfig and delete the agent's Bundle.
func (s SubReconcilers) of(cluster *fleet.Cluster) []SubReconciler {
	all := []SubReconciler{s.Import, s.AgentBundle}
	if managedElsewhere(cluster) {
		return all
	}
	return append(all, s.Bundles, s.Liveness)
}

func managedElsewhere(cluster *fleet.Cluster) bool {
	return cluster.Labels[fleet.ClusterManagementLabel] != ""
}
