// Package cluster gives every Cluster its namespace, writes its status, and removes what belongs to it when it goes. It is
// the only writer of a Cluster's status on the hub: other controllers contribute Steps.
package cluster

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// Step is one controller's contribution to the status of a Cluster.
type Step interface {
	// Condition is the type of the condition that reports the outcome.
	Condition() string
	// Reconcile looks at the Cluster and changes its status as it should be; the Cluster is a copy, and writing it is not
	// the step's business. It must not wait for anything: what takes long reports Wait and enqueues the Cluster later.
	Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result
	// Forget drops what the step remembers of a Cluster that is gone, named by its key.
	Forget(key string)
}

// Leaver is a Step that is asked about Clusters as well that are handed to another controller, to take back what it made.
type Leaver interface {
	Step
	// Leaves does nothing.
	Leaves()
}

// Parting is a Step that has something to take back from the member when its Cluster is deleted.
type Parting interface {
	Step
	// Part does so. Done says that nothing is left there; Wait, that it is under way; Stalled, that something may be left, and
	// nothing more is tried; Skip, that the step has no way to the member. From until on it must not wait any more. It may be
	// called again after each of them.
	Part(ctx context.Context, cluster *fleet.Cluster, until time.Time) result.Result
}

// Witness is a Step that hears the agents of Clusters.
type Witness interface {
	Step
	// HasClones says whether two agents check in for the Cluster.
	HasClones(cluster *fleet.Cluster) bool
}

const name = "cluster"

type handler struct {
	*app.Context
	clusters   fleetcontrollers.ClusterController
	known      fleetcontrollers.ClusterCache
	requests   fleetcontrollers.ClusterRegistrationCache
	namespaces corecontrollers.NamespaceCache
	bundles    fleetcontrollers.BundleCache
	// deployments is nil where Bundles are left to others: there would be too many to keep in memory for a farewell now and then.
	deployments fleetcontrollers.BundleDeploymentCache
	steps       []Step
	fresh       expectations.Expectations
	started     time.Time // when this hub began to work
}

// Register sets up the controller with the steps of others, which follow its own. It watches Clusters; their namespaces,
// to make them again; requests, whose refusal is shown on the Cluster; and the BundleDeployments of agents that were asked to
// leave.
func Register(ctx context.Context, c *app.Context, steps ...Step) {
	clusters, namespaces, requests := c.Fleet.Cluster(), c.Core.Namespace(), c.Fleet.ClusterRegistration()
	h := &handler{
		Context:    c,
		clusters:   clusters,
		known:      clusters.Cache(),
		requests:   requests.Cache(),
		namespaces: namespaces.Cache(),
		bundles:    c.Fleet.Bundle().Cache(),
		started:    c.Clock.Now(),
	}
	h.steps = append([]Step{namespaceStep{h, expectations.New(c.Clock)}}, steps...)
	h.steps = append(h.steps, registeredStep{h})

	// The only handler of the kind: lasso takes handlers out of its list while others of the same kind may still be running,
	// so with two of them a hub that is stopping could skip or repeat one.
	clusters.OnChange(ctx, name, guard.Handler(c.Passes, name, h.onChange))
	enqueue.OnAnyChange(namespaces, clusters, clusterOfNamespace)
	enqueue.OnTransition(requests, clusters, h.clustersOfRequest)
	if !c.DisableBundles {
		h.deployments = c.Fleet.BundleDeployment().Cache()
		enqueue.OnAnyChange(c.Fleet.BundleDeployment(), clusters, h.clusterOfFarewell)
	}
}

// clustersOfRequest finds the Clusters whose status may tell of a request: of its coming, its going, and its fate.
func (h *handler) clustersOfRequest(before, after *fleet.ClusterRegistration) []types.NamespacedName {
	if before != nil && after != nil && before.Spec.ClientID == after.Spec.ClientID && reflect.DeepEqual(before.Status, after.Status) {
		return nil
	}
	var keys []types.NamespacedName
	for _, request := range []*fleet.ClusterRegistration{before, after} {
		if request == nil {
			continue
		}
		found, _ := h.known.GetByIndex(index.ByClientID, index.Key(request.Namespace, request.Spec.ClientID))
		keys = append(keys, Keys(found)...)
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(keys)
}

// Keys are the names of Clusters.
func Keys(clusters []*fleet.Cluster) []types.NamespacedName {
	keys := make([]types.NamespacedName, 0, len(clusters))
	for _, c := range clusters {
		keys = append(keys, types.NamespacedName{Namespace: c.Namespace, Name: c.Name})
	}
	return keys
}

func clusterOfNamespace(namespace *corev1.Namespace) []types.NamespacedName {
	a := namespace.Annotations
	if a[fleet.ClusterAnnotation] == "" {
		return nil
	}
	return []types.NamespacedName{{Namespace: a[fleet.ClusterNamespaceAnnotation], Name: a[fleet.ClusterAnnotation]}}
}
