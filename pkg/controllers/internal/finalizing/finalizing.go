// Package finalizing decides which Clusters are being finalized. Until the finalizer is removed, the objects with which the agent
// reaches the hub must remain, even if Kubernetes deletes them in another order. It also has the result of a farewell.
package finalizing

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// InProgress reports whether the Cluster is deleted and still has its finalizer. If the Cluster's namespace is being deleted, the
// Cluster is about to be deleted too: Kubernetes deletes the objects in a namespace in no particular order.
func InProgress(cluster *fleet.Cluster, isNamespaceDeleting bool) bool {
	return (isNamespaceDeleting || cluster.DeletionTimestamp != nil) && slices.Contains(cluster.Finalizers, fleet.ClusterFinalizer)
}

// IsNamespaceBeingDeleted asks the API server about a namespace of Clusters. A namespace that is gone is not being deleted. No cache contains
// these namespaces, and the question is rare: it is asked when an object of an agent is deleted.
func IsNamespaceBeingDeleted(ctx context.Context, client kubernetes.Interface, name string) (bool, error) {
	namespace, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("checking whether Namespace %s is being deleted: %w", name, err)
	}
	return namespace.DeletionTimestamp != nil, nil
}

// IdentityChecker finds out whether an agent still needs its identity, although its request is gone.
type IdentityChecker struct {
	Kubernetes kubernetes.Interface
	Accounts   corecontrollers.ServiceAccountCache
	Clusters   fleetclient.ClustersGetter
	// KindDeleted is Context.KindDeleted in package app.
	KindDeleted func(ctx context.Context, resource string, since metav1.Time, seen time.Time) (bool, error)
	Clock       clock.PassiveClock
}

// IdentityNeed is whether an agent still needs the identity of a request that is gone.
type IdentityNeed int

const (
	// IdentityUnused is returned for an agent that does not.
	IdentityUnused IdentityNeed = iota
	// IdentityUninstalling is returned while the agent may have to uninstall itself.
	IdentityUninstalling
	// IdentityKept is returned if the request is gone because the kind of requests was deleted.
	IdentityKept
)

// NeedsIdentity returns whether an agent still needs the rights and the credential of a request. If a Cluster is deleted in the foreground, or
// together with its namespace, Kubernetes deletes the requests before the Cluster; an agent without its identity could not be asked
// to remove what it deployed. Its identity is then deleted with the cluster namespace. If the kind of requests was deleted, nobody has denied the agent
// its identity: it keeps it until it has registered again, its Cluster is deleted, or a person deletes the ServiceAccount.
func (a IdentityChecker) NeedsIdentity(ctx context.Context, namespace, request string) (IdentityNeed, error) {
	accounts, err := index.AccountsByRequest.Find(a.Accounts, index.Key(namespace, request))
	if err != nil || len(accounts) == 0 {
		return IdentityUnused, err
	}
	isNamespaceDeleting, err := IsNamespaceBeingDeleted(ctx, a.Kubernetes, namespace)
	if err != nil {
		return IdentityUnused, err
	}
	isRegisteredAgain := true
	newest := accounts[0].CreationTimestamp
	for _, account := range accounts {
		if newest.Before(&account.CreationTimestamp) {
			newest = account.CreationTimestamp
		}
		// The cache may not show yet that the Cluster is deleted.
		cluster, err := a.Clusters.Clusters(namespace).Get(ctx, account.Annotations[fleet.ClusterAnnotation], metav1.GetOptions{})
		switch {
		case err == nil && InProgress(cluster, isNamespaceDeleting):
			return IdentityUninstalling, nil
		case err == nil && cluster.DeletionTimestamp == nil:
			used := cluster.Status.Agent.Registration
			isRegisteredAgain = isRegisteredAgain && used != "" && used != request
		case err != nil && !writes.IsMissing(err):
			return IdentityUnused, err
		}
	}
	if isRegisteredAgain { // or there is no Cluster
		return IdentityUnused, nil
	}
	kindDeleted, err := a.KindDeleted(ctx, "clusterregistrations", newest, a.Clock.Now())
	if err != nil || !kindDeleted {
		return IdentityUnused, err
	}
	return IdentityKept, nil
}

// RequestsDeletedWithCluster are the requests that finalizing deletes: their agents are done, so NeedsIdentity need not be called for them. They
// are lost when the process ends; NeedsIdentity is called for unknown requests. The zero RequestsDeletedWithCluster are ready to use.
type RequestsDeletedWithCluster struct{ requests sync.Map }

// Add records a request that is being deleted.
func (d *RequestsDeletedWithCluster) Add(request types.NamespacedName) {
	d.requests.Store(request, true)
}

// Take reports whether a request was recorded, and removes it.
func (d *RequestsDeletedWithCluster) Take(request types.NamespacedName) bool {
	_, recorded := d.requests.LoadAndDelete(request)
	return recorded
}

// Farewell is the result of one of the two ways to remove an agent and its Helm releases from the member of a deleted Cluster: by the agent itself,
// or by the hub with the kubeconfig. The zero value is NotNeeded.
type Farewell struct {
	state farewellState
	// Reason is a constant of the API package, and Message is for people. Only a farewell that is waiting or given up has them.
	Reason, Message string
	// After is the time after which a farewell that is waiting is tried again even without an event.
	After time.Duration
}

type farewellState int

const (
	notNeeded farewellState = iota
	removed
	waiting
	givenUp
)

// NotNeeded means that nothing can be removed in this way: the Cluster names no kubeconfig, or the agent cannot be asked because there is none.
func NotNeeded() Farewell { return Farewell{state: notNeeded} }

// Removed means that nothing is left on the member: nothing was installed there, or the releases are uninstalled, and the agent is removed or, if it
// does that itself, about to be. Namespaces and resources that are to be kept stay.
func Removed() Farewell { return Farewell{state: removed} }

// Waiting means that the removal goes on. Its end is an event; the Cluster is enqueued after the given time at the latest.
func Waiting(reason, message string, after time.Duration) Farewell {
	return Farewell{state: waiting, Reason: reason, Message: message, After: after}
}

// GivenUp means that something may be left on the member, and that it is not tried again. The deletion of the Cluster goes on.
func GivenUp(reason, message string) Farewell {
	return Farewell{state: givenUp, Reason: reason, Message: message}
}

// IsRemoved reports a result of Removed.
func (f Farewell) IsRemoved() bool { return f.state == removed }

// IsWaiting reports a result of Waiting.
func (f Farewell) IsWaiting() bool { return f.state == waiting }

// IsGivenUp reports a result of GivenUp.
func (f Farewell) IsGivenUp() bool { return f.state == givenUp }
