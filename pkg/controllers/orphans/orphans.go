// Package orphans deletes objects that the hub has created for an owner that no longer exists: a Cluster whose finalizer
// a user has removed, or a request that was deleted while no hub was running. It walks over the caches periodically, and checks
// two kinds shortly after the deletion of a Cluster. It deletes nothing because of a cache alone: the API server must confirm that the
// owner does not exist.
package orphans

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// firstWalk is the time from the start of the hub to the first walk. The other controllers delete most orphans earlier.
	firstWalk = 10 * time.Second
	// walkInterval is the time between two walks.
	walkInterval = 30 * time.Minute
	// retryInterval is the time to the next walk if orphans are left.
	retryInterval = time.Minute
	// deletionDelay is the time from the deletion of a Cluster to the check of its objects. Most of them are deleted by then.
	deletionDelay = 10 * time.Second
	// A walk pauses after each batch of objects, because other work of the hub is more urgent.
	batch = 500
	pause = 20 * time.Millisecond
	// jitter varies the interval, so that the walks do not always coincide with other periodic work.
	jitter = 0.2
)

// Names of kinds in the metrics.
const (
	namespaceKind = "Namespace"
	bundleKind    = "Bundle"
)

// Collector deletes orphans.
type Collector struct {
	*app.Context
	kinds  []ownedKind
	owners map[string]ownerKind // by kind
	// isNeeded reports whether an agent still needs the objects that were created for a deleted request.
	isNeeded func(ctx context.Context, namespace, request string) (finalizing.IdentityNeed, error)
	// kept counts the objects that the walk keeps because the kind of their owner was deleted. Only the goroutine of the walk uses it.
	kept    int
	tasks   workqueue.TypedDelayingInterface[types.NamespacedName]
	running sync.WaitGroup
}

// ownedKind is a kind of objects that the hub creates for owners.
type ownedKind struct {
	name     string
	resource schema.GroupVersionResource
	cache    cache.Store
	ownerOf  func(object any) ownerKey
}

// ownerKind is a kind of owners.
type ownerKind struct {
	resource schema.GroupVersionResource
	cache    cache.Store
}

// walk is the task to check everything. Each other task is the name of a deleted Cluster.
var walk types.NamespacedName

// Register returns a Collector that watches the deletion of Clusters. Call Start when the caches are filled. The work ends with
// ctx.
func Register(ctx context.Context, c *app.Context) *Collector {
	fleetKind, coreKind, rbacKind := fleet.SchemeGroupVersion.WithResource, corev1.SchemeGroupVersion.WithResource, rbacv1.SchemeGroupVersion.WithResource
	o := newCollector(c)
	o.isNeeded = finalizing.IdentityChecker{
		Kubernetes: c.Kubernetes, Accounts: c.Core.ServiceAccount().Cache(), Clusters: c.FleetClient, KindDeleted: c.KindDeleted, Clock: c.Clock,
	}.NeedsIdentity
	o.owners = map[string]ownerKind{
		kindCluster: {fleetKind("clusters"), c.Fleet.Cluster().Informer().GetStore()},
		kindRequest: {fleetKind("clusterregistrations"), c.Fleet.ClusterRegistration().Informer().GetStore()},
		kindToken:   {fleetKind("clusterregistrationtokens"), c.Fleet.ClusterRegistrationToken().Informer().GetStore()},
	}
	// Kinds that grant rights come first. BundleDeployments are deleted with their Namespace, and Contents with the
	// BundleDeployments.
	o.kinds = []ownedKind{
		kindOf("ServiceAccount", coreKind("serviceaccounts"), c.Core.ServiceAccount().Informer(), ownerOfRights),
		kindOf("ClusterRoleBinding", rbacKind("clusterrolebindings"), c.RBAC.ClusterRoleBinding().Informer(), ownerOfRights),
		kindOf("RoleBinding", rbacKind("rolebindings"), c.RBAC.RoleBinding().Informer(), ownerOfRights),
		kindOf("Role", rbacKind("roles"), c.RBAC.Role().Informer(), ownerOfRights),
		kindOf("Secret", coreKind("secrets"), c.Core.Secret().Informer(), ownerOfCredential(c.RegistrationNamespace())),
		kindOf("ClusterRegistration", fleetKind("clusterregistrations"), c.Fleet.ClusterRegistration().Informer(), ownerOfRequest),
		kindOf(bundleKind, fleetKind("bundles"), c.Fleet.Bundle().Informer(), ownerOfBundle),
		kindOf(namespaceKind, coreKind("namespaces"), c.Core.Namespace().Informer(), ownerOfNamespace),
	}
	context.AfterFunc(ctx, o.tasks.ShutDown)
	// AddEventHandler returns an error only for an informer that was stopped.
	_, _ = c.Fleet.Cluster().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
		if key, err := cache.DeletionHandlingObjectToName(object); err == nil {
			o.tasks.AddAfter(types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, deletionDelay)
		}
	}})
	return o
}

func newCollector(c *app.Context) *Collector {
	return &Collector{
		Context: c,
		tasks:   workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: c.Clock}),
	}
}

func kindOf[T any](name string, resource schema.GroupVersionResource, informer cache.SharedIndexInformer, ownerOf func(T) ownerKey) ownedKind {
	return ownedKind{name: name, resource: resource, cache: informer.GetStore(), ownerOf: func(object any) ownerKey {
		if typed, ok := object.(T); ok {
			return ownerOf(typed)
		}
		return none
	}}
}

// Start starts the work, until ctx ends.
func (c *Collector) Start(ctx context.Context) {
	c.running.Go(func() {
		for {
			task, stopped := c.tasks.Get()
			if stopped || ctx.Err() != nil {
				return
			}
			c.do(ctx, task)
			c.tasks.Done(task)
		}
	})
	c.tasks.AddAfter(walk, firstWalk)
}

// Wait returns when the work has ended.
func (c *Collector) Wait() { c.running.Wait() }

// do carries out a task.
func (c *Collector) do(ctx context.Context, task types.NamespacedName) {
	if task != walk {
		c.checkCluster(ctx, task)
		return
	}
	next := walkInterval
	if left := c.checkAll(ctx); left > 0 {
		logrus.Warnf("%d orphans could not be removed; retrying", left)
		next = retryInterval
	}
	c.tasks.AddAfter(walk, wait.Jitter(next, jitter))
}

// checkAll checks all objects in the caches. It returns the number of orphans that it could not delete.
func (c *Collector) checkAll(ctx context.Context) (left int) {
	for _, k := range c.kinds {
		leftOfKind := 0
		c.kept = 0
		for i, object := range k.cache.List() {
			if i > 0 && i%batch == 0 {
				select {
				case <-ctx.Done():
				case <-c.Clock.After(pause):
				}
			}
			if ctx.Err() != nil {
				return left + leftOfKind
			}
			if !c.check(ctx, k, object) {
				leftOfKind++
			}
		}
		c.Metrics.OrphansLeft.WithLabelValues(k.name).Set(float64(leftOfKind))
		left += leftOfKind
		if c.kept > 0 {
			logrus.Warnf("%d orphans of kind %s stay, because a CustomResourceDefinition was deleted after they were created; they are deleted with their owners "+
				"when these are created again, or by a person", c.kept, k.name)
		}
	}
	return left
}

// checkCluster checks the two objects of a deleted Cluster that only its finalizer deletes.
func (c *Collector) checkCluster(ctx context.Context, cluster types.NamespacedName) {
	keys := map[string]string{
		namespaceKind: registration.ClusterNamespace(cluster.Namespace, cluster.Name),
		bundleKind:    cluster.Namespace + "/" + registration.AgentBundleName(cluster.Name),
	}
	for _, k := range c.kinds {
		if object, exists, err := k.cache.GetByKey(keys[k.name]); exists && err == nil {
			c.check(ctx, k, object)
		}
	}
}

// check deletes an object if it is an orphan. It returns false for an orphan that it could not delete: because the API server does not
// answer, because the deletion fails, or because an agent still needs the object.
func (c *Collector) check(ctx context.Context, k ownedKind, object any) (done bool) {
	defer guard.Recover(guard.Task, object, nil)
	m, ok := object.(metav1.Object)
	o := k.ownerOf(object)
	if !ok || o == none || m.GetDeletionTimestamp() != nil {
		return true
	}
	if _, exists, err := c.owners[o.kind].cache.GetByKey(o.namespace + "/" + o.name); exists || err != nil {
		return true
	}
	deleted, err := c.deleteOrphan(ctx, k, m, o)
	if err != nil {
		logrus.Warnf("Orphan %s %s/%s: %v", k.name, m.GetNamespace(), m.GetName(), err)
	}
	return deleted && err == nil
}

// deleteOrphan deletes an object whose owner is not in the cache, if the API server confirms that there is no such owner. An
// owner that was created again with the same name keeps the object: its controller creates objects of the same names. done is also true for an object that
// stays because the kind of its owner was deleted.
func (c *Collector) deleteOrphan(ctx context.Context, k ownedKind, m metav1.Object, o ownerKey) (done bool, err error) {
	_, lookup := c.Metadata.Resource(c.owners[o.kind].resource).Namespace(o.namespace).Get(ctx, o.name, metav1.GetOptions{})
	if lookup == nil {
		return true, nil
	}
	unconfirmed := fmt.Errorf("looking for its owner, %s %s/%s: %w", o.kind, o.namespace, o.name, lookup)
	if !apierrors.IsNotFound(lookup) {
		return false, unconfirmed
	}
	// An agent that is asked to uninstall itself needs the rights of its request. Objects whose owner is gone only because its kind is stay: all agents
	// would lose their identity. The objects of an agent that has registered again, or whose Cluster is gone, do not stay.
	if o.kind == kindRequest && writes.IsMissing(lookup) {
		needed, err := c.isNeeded(ctx, o.namespace, o.name)
		if err != nil || needed == finalizing.IdentityUninstalling {
			return false, err
		}
		if needed == finalizing.IdentityKept {
			c.kept++
			return true, nil
		}
	} else {
		kindDeleted, err := c.KindDeleted(ctx, c.owners[o.kind].resource.Resource, m.GetCreationTimestamp(), c.Clock.Now())
		switch {
		case err != nil:
			return false, err
		case kindDeleted:
			c.kept++
			return true, nil
		case !writes.IsMissing(lookup): // the kind exists, so this answer says nothing about the owner
			return false, unconfirmed
		}
	}
	err = c.Metadata.Resource(k.resource).Namespace(m.GetNamespace()).Delete(ctx, m.GetName(), writes.IfUID(m))
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it is gone, or another object has its name
		return true, nil
	case err != nil:
		return false, fmt.Errorf("deleting it, because %s %s/%s does not exist: %w", o.kind, o.namespace, o.name, err)
	}
	c.Metrics.OrphansCollected.WithLabelValues(k.name).Inc()
	logrus.Infof("Deleted %s %s/%s, because %s %s/%s does not exist", k.name, m.GetNamespace(), m.GetName(), o.kind, o.namespace, o.name)
	return true, nil
}
