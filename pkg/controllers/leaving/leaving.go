// Package leaving tells which Clusters are saying farewell to their agent. What the agent needs for that has to stay until
// then, whoever deletes it.
package leaving

import (
	"context"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Is says whether the Cluster is deleted and its farewell not over. With its namespace, it is to be deleted any moment:
// Kubernetes deletes what is in a namespace in no order.
func Is(cluster *fleet.Cluster, withNamespace bool) bool {
	return (withNamespace || cluster.DeletionTimestamp != nil) && slices.Contains(cluster.Finalizers, fleet.ClusterFinalizer)
}

// WithNamespace asks the API server whether a namespace of Clusters is being deleted. It is for the rare moments when
// something of an agent is deleted, and not in any cache.
func WithNamespace(ctx context.Context, client kubernetes.Interface, name string) (bool, error) {
	namespace, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("looking whether Namespace %s is being deleted: %w", name, err)
	}
	return namespace.DeletionTimestamp != nil, nil
}

// Left are the requests that the end of a farewell deletes: their agents need what they were given no more, and nobody has to
// look whether they do. It is lost with the process; whoever does not know of a request looks. The zero Left is ready to use.
type Left struct{ requests sync.Map }

// Add notes a request that is deleted now.
func (l *Left) Add(request types.NamespacedName) { l.requests.Store(request, true) }

// Take says whether a request was noted, and forgets it.
func (l *Left) Take(request types.NamespacedName) bool {
	_, noted := l.requests.LoadAndDelete(request)
	return noted
}
