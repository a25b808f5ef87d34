package cluster

import (
	"context"
	"slices"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/index"
	"github.com/muster-fleet/muster/pkg/controllers/outcome"
)

// successorTime is how long a management server may take to make the Cluster anew that it has deleted in one namespace to
// move it to another.
const successorTime = 10 * time.Second

// awaitSuccessor finds out whether the agent stays with another Cluster. It then has nothing to leave for: the other Cluster
// gives it a new identity, and the old one dies with the namespace of this.
func (f *farewell) awaitSuccessor(context.Context) outcome.Outcome {
	if managedElsewhere(f.cluster) || agentspec.LocalDisabled(f.Config.Get(), f.cluster) {
		f.nobody = true
		return gone
	}
	found, err := f.successor()
	if err != nil {
		return failed(err)
	}
	if found {
		f.nobody = true
		return gone
	}
	patience := min(successorTime, f.FarewellGrace/3)
	left := f.began().Add(patience).Sub(f.Clock.Now())
	if f.cluster.Labels[fleet.ManagementClusterLabel] == "" || !hadAgent(f.cluster) || left <= 0 {
		return gone
	}
	return outcome.Wait(fleet.ReasonFarewell,
		"looking whether the management server moves the cluster to another namespace; its agent would stay").In(left)
}

// successor says whether another Cluster has, or is to have, the agent of this one: it is of the same cluster, which the
// kubeconfig or a management server tells, and its agent lives in the same namespace there.
func (f *farewell) successor() (bool, error) {
	if f.localMoved() {
		return true, nil
	}
	var others []*fleet.Cluster
	if name := f.cluster.Labels[fleet.ManagementClusterLabel]; name != "" {
		found, err := f.known.GetByIndex(index.ByManagementName, name)
		if err != nil {
			return false, err
		}
		others = found
	}
	if secret := f.cluster.Spec.KubeConfigSecret; secret != "" {
		found, err := f.known.GetByIndex(index.ByKubeconfig, index.Key(index.KubeconfigNamespace(f.cluster), secret))
		if err != nil {
			return false, err
		}
		others = append(others, found...)
	}
	return slices.ContainsFunc(others, f.takesOver), nil
}

func (f *farewell) takesOver(other *fleet.Cluster) bool {
	return other.UID != f.cluster.UID && other.DeletionTimestamp == nil &&
		agentspec.Namespace(f.Context, other) == agentspec.Namespace(f.Context, f.cluster)
}

// Names under which the hub registers its own cluster.
const (
	localCluster = "local"
	localSecret  = "local-cluster"
)

// localMoved says whether this was the hub's own cluster, which the configuration has in another namespace now.
func (f *farewell) localMoved() bool {
	own := f.Config.Get().Bootstrap
	return f.cluster.Name == localCluster && f.cluster.Spec.KubeConfigSecret == localSecret &&
		own.Enabled() && own.Namespace != f.cluster.Namespace
}
