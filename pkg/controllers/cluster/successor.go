package cluster

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/access"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
)

// successorTime is how long a management server may take to make the Cluster anew that it has deleted in one namespace to
// move it to another.
const successorTime = 10 * time.Second

// awaitSuccessor finds out whether the agent stays with another Cluster. It then has nothing to leave for: the other Cluster
// gives it a new identity, and the old one dies with the namespace of this.
func (f *farewell) awaitSuccessor(ctx context.Context) result.Result {
	if managedElsewhere(f.cluster) || agentspec.LocalDisabled(f.Config.Get(), f.cluster) {
		f.nobody = true
		return gone
	}
	if f.localMoved() {
		f.nobody = true
		return gone
	}
	others, err := f.successors()
	if err != nil {
		return failed(err)
	}
	for _, other := range others {
		has, err := f.hasMember(ctx, other)
		switch {
		case err != nil:
			return failed(err)
		case has:
			f.nobody = true
			return gone
		}
	}
	return f.giveTime(len(others) > 0)
}

// giveTime waits for a Cluster that is still to come, or for one that is there to prove that it has the member.
func (f *farewell) giveTime(claimed bool) result.Result {
	patience := f.FarewellGrace / 3
	if !claimed {
		patience = min(successorTime, patience)
	}
	left := f.began().Add(patience).Sub(f.Clock.Now())
	if !claimed && f.cluster.Labels[fleet.ManagementClusterLabel] == "" || !hadAgent(f.cluster) || left <= 0 {
		return gone
	}
	if claimed {
		left = min(left, farewellPoll)
	}
	return result.Wait(fleet.ReasonFarewell,
		"looking whether the management server moves the cluster to another namespace; its agent would stay").In(left)
}

// successors are the Clusters that claim to have, or to be about to have, the agent of this one: they are of the same cluster,
// which the kubeconfig or a management server tells, and their agent lives in the same namespace there.
func (f *farewell) successors() (others []*fleet.Cluster, err error) {
	if name := f.cluster.Labels[fleet.ManagementClusterLabel]; name != "" {
		found, err := f.known.GetByIndex(index.ByManagementName, name)
		if err != nil {
			return nil, err
		}
		others = append(others, found...)
	}
	if secret := f.cluster.Spec.KubeConfigSecret; secret != "" {
		found, err := f.known.GetByIndex(index.ByKubeconfig, index.Key(index.KubeconfigNamespace(f.cluster), secret))
		if err != nil {
			return nil, err
		}
		others = append(others, found...)
	}
	return slices.DeleteFunc(others, func(other *fleet.Cluster) bool { return !f.takesOver(other) }), nil
}

func (f *farewell) takesOver(other *fleet.Cluster) bool {
	return other.UID != f.cluster.UID && other.DeletionTimestamp == nil &&
		agentspec.Namespace(f.Context, other) == agentspec.Namespace(f.Context, f.cluster)
}

// hasMember says whether a Cluster can prove its claim: the hub has installed its agent, or has heard of it, or it may use the
// kubeconfig of this one. Whoever may create Clusters somewhere could otherwise cancel the farewell of anybody's.
func (f *farewell) hasMember(ctx context.Context, other *fleet.Cluster) (bool, error) {
	if other.Status.AgentDeployedGeneration != nil || hadAgent(other) {
		return true, nil
	}
	namespace, name := index.KubeconfigNamespace(f.cluster), f.cluster.Spec.KubeConfigSecret
	switch {
	case name == "", other.Spec.KubeConfigSecret != name, index.KubeconfigNamespace(other) != namespace:
		return false, nil
	case access.Nearby(other):
		return true, nil
	}
	secret, err := f.Kubernetes.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && access.MayUse(other, secret), err
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
