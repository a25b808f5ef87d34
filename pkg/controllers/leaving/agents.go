package leaving

import (
	"context"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// Agents tells which of them still have to leave with what they were given.
type Agents struct {
	Kubernetes kubernetes.Interface
	Accounts   corecontrollers.ServiceAccountCache
	Clusters   fleetcontrollers.ClusterClient
}

// Need says whether an agent is to leave with what a request was given. Kubernetes deletes requests before their Cluster
// when that is deleted in the foreground, or together with its namespace; an agent without identity could not be asked to
// remove what it deployed. What the agent has goes with the cluster namespace then, and the rest when the Cluster is gone.
func (a Agents) Need(ctx context.Context, namespace, request string) (bool, error) {
	accounts, err := a.Accounts.GetByIndex(index.ByRequest, index.Key(namespace, request))
	if err != nil || len(accounts) == 0 {
		return false, err
	}
	withNamespace, err := WithNamespace(ctx, a.Kubernetes, namespace)
	if err != nil {
		return false, err
	}
	for _, account := range accounts {
		// The cache may not know yet that the Cluster is deleted.
		cluster, err := a.Clusters.Get(namespace, account.Annotations[fleet.ClusterAnnotation], metav1.GetOptions{})
		switch {
		case err == nil && Is(cluster, withNamespace):
			return true, nil
		case err != nil && !apierrors.IsNotFound(err):
			return false, err
		}
	}
	return false, nil
}
