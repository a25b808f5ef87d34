// Package cluster has the controller of Clusters: it creates the namespace of each Cluster, writes its status, and removes the objects that
// belong to it when it is deleted. Other controllers contribute to the status as SubReconcilers; only package clusternet writes heartbeats there
// itself. The flow of a reconciliation is reconcile in reconcile.go, the flow of a deletion is finalize in finalize.go.
package cluster

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const name = "cluster"

type handler struct {
	*app.Context
	queue          fleetcontrollers.ClusterController
	clusters       fleetcontrollers.ClusterCache
	requests       fleetcontrollers.ClusterRegistrationCache
	namespaces     corecontrollers.NamespaceCache
	bundles        fleetcontrollers.BundleCache
	deployments    fleetcontrollers.BundleDeploymentCache
	subReconcilers SubReconcilers
	written        expectations.Expectations  // versions of Clusters
	created        *expectations.Expectations // namespaces that the cache does not contain yet
	deletions      sync.Map                   // of *seenDeletion, by the key of the Cluster
	changedSecrets *enqueue.Changes[changedSecrets]
}

// changedSecrets are the Secrets of a namespace that have changed since the last call of enqueueImported.
type changedSecrets = enqueue.ChangedNames

// Register sets up the controller. It watches Clusters; their namespaces, to create them again; requests, because a refused request
// is shown on its Cluster; the BundleDeployments of agents that were asked to uninstall themselves; and kubeconfig Secrets, by metadata only.
func Register(ctx context.Context, c *app.Context, subReconcilers SubReconcilers) {
	clusters, namespaces, requests := c.Fleet.Cluster(), c.Core.Namespace(), c.Fleet.ClusterRegistration()
	h := &handler{
		Context:        c,
		queue:          clusters,
		clusters:       clusters.Cache(),
		requests:       requests.Cache(),
		namespaces:     namespaces.Cache(),
		bundles:        c.Fleet.Bundle().Cache(),
		deployments:    c.Fleet.BundleDeployment().Cache(),
		subReconcilers: subReconcilers,
		created:        expectations.New(c.Clock),
		changedSecrets: &enqueue.Changes[changedSecrets]{Queue: clusters, MarkAll: (*changedSecrets).MarkAll},
	}

	// There is only one handler for this kind: lasso removes handlers from its list while others of the same kind may still be
	// running, so a hub that stops could skip or repeat one of several handlers.
	clusters.OnChange(ctx, name, app.Handler(c.Passes, name, h.onChange))
	enqueue.OnAnyChange(namespaces, clusters, clusterOfNamespace)
	enqueue.OnTransition(requests, clusters, h.clustersOfRequest)
	enqueue.OnAnyChange(c.Fleet.BundleDeployment(), clusters, h.clusterOfUninstallingAgent)
	enqueue.OnEvent(enqueue.Metadata{SharedIndexInformer: c.SecretMetadata}, h.noteSecret)
}

// noteSecret notes a Secret, which may be a kubeconfig: many Clusters may name the same one.
func (h *handler) noteSecret(before, after *metav1.PartialObjectMetadata) {
	secret := cmp.Or(after, before)
	h.changedSecrets.Note(secret.Namespace, func(c *changedSecrets) { c.Add(secret.Name) })
}

// enqueueImported enqueues the Clusters whose kubeconfig is one of the Secrets.
func (h *handler) enqueueImported(namespace string, secrets changedSecrets) {
	for name := range secrets.ByName {
		found, _ := h.clusters.GetByIndex(index.ByKubeconfig, index.Key(namespace, name))
		for _, c := range found {
			h.queue.EnqueueAfter(c.Namespace, c.Name, 0)
		}
	}
	if secrets.All {
		enqueue.All(h.clusters, h.queue, func(c *fleet.Cluster) bool {
			return c.Spec.KubeConfigSecret != "" && index.KubeconfigNamespace(c) == namespace
		})
	}
}

// onChange reconciles or finalizes a Cluster. The queue of Clusters also has the keys of namespaces in which Secrets have changed.
func (h *handler) onChange(key string, cluster *fleet.Cluster) (*fleet.Cluster, error) {
	if h.changedSecrets.HandleKey(key, h.enqueueImported) {
		return nil, nil
	}
	if cluster == nil {
		for _, sub := range h.subReconcilers.of(&fleet.Cluster{}) {
			sub.Forget(key)
		}
		h.deletions.Delete(key)
		if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
			h.NamespaceKeys.Forget(namespace, name)
		}
		return nil, nil
	}
	defer h.subReconcilers.Import.BeginPass(cluster)()
	if h.written.IsStale(cluster) {
		return cluster, nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	if cluster.DeletionTimestamp != nil {
		return h.finalize(ctx, cluster)
	}
	return h.reconcile(ctx, cluster)
}

// clustersOfRequest finds the Clusters whose status depends on a request that was created, deleted or decided.
func (h *handler) clustersOfRequest(before, after *fleet.ClusterRegistration) []types.NamespacedName {
	if before != nil && after != nil && before.Spec.ClientID == after.Spec.ClientID && reflect.DeepEqual(before.Status, after.Status) {
		return nil
	}
	var keys []types.NamespacedName
	for _, request := range []*fleet.ClusterRegistration{before, after} {
		if request == nil {
			continue
		}
		found, _ := index.ClustersByClientID.Find(h.clusters, index.Key(request.Namespace, request.Spec.ClientID))
		imported, _ := h.clusters.GetByIndex(index.ByImportToken, index.Key(request.Namespace, request.Labels[fleet.RegistrationTokenLabel]))
		keys = append(append(keys, index.Names(found)...), index.Names(imported)...)
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(keys)
}

// clusterOfNamespace finds the Cluster of a cluster namespace. The annotations of another Namespace may name a Cluster of any workspace.
func clusterOfNamespace(namespace *corev1.Namespace) []types.NamespacedName {
	cluster := types.NamespacedName{Namespace: namespace.Annotations[fleet.WorkspaceAnnotation], Name: namespace.Annotations[fleet.ClusterAnnotation]}
	if cluster.Name == "" || registration.ClusterNamespace(cluster.Namespace, cluster.Name) != namespace.Name {
		return nil
	}
	return []types.NamespacedName{cluster}
}

// clusterOfUninstallingAgent finds the Cluster whose agent was asked to uninstall itself. It uses the annotations of the namespace,
// because the labels of the BundleDeployment may contain a shortened name.
func (h *handler) clusterOfUninstallingAgent(deployment *fleet.BundleDeployment) []types.NamespacedName {
	if deployment.Annotations[fleet.FarewellAnnotation] == "" {
		return nil
	}
	namespace, err := h.namespaces.Get(deployment.Namespace)
	if err != nil {
		return nil
	}
	return clusterOfNamespace(namespace)
}

// SubReconciler is one controller's contribution to the status of a Cluster.
type SubReconciler interface {
	// Reconcile changes the status of the Cluster, which is a copy; the controller of Clusters writes it. Reconcile does not
	// block: a sub-reconciler that takes long returns Wait and enqueues the Cluster later.
	Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result
	// Forget drops what the sub-reconciler keeps in memory of a deleted Cluster, identified by its key.
	Forget(key string)
}

// AgentInstaller is the sub-reconciler that installs the agent on the member.
type AgentInstaller interface {
	SubReconciler
	// BeginPass begins a pass over the Cluster, during which the other methods are called. The end of a pass frees what it has reserved and not used.
	BeginPass(cluster *fleet.Cluster) (end func())
	// Uninstall removes the agent of a deleted Cluster, and what it deployed, from the member. The farewell is not needed if the Cluster names no
	// kubeconfig. After the deadline it is not waiting. Uninstall may be called again after each result.
	Uninstall(ctx context.Context, cluster *fleet.Cluster, deadline time.Time) (finalizing.Farewell, error)
	// AgentBelongsTo asks the member of a deleted Cluster whether the agent there belongs to one of the other Clusters. belongs is false too
	// while the member has not answered; the answer enqueues the Cluster. canAsk is false if it cannot be asked: the Cluster
	// names no kubeconfig, or the Secret is gone. Without other Clusters, the member is not asked, and canAsk is true.
	AgentBelongsTo(ctx context.Context, cluster *fleet.Cluster, others []*fleet.Cluster) (belongs, canAsk bool, err error)
}

// Liveness is the sub-reconciler that evaluates heartbeats.
type Liveness interface {
	SubReconciler
	// RecordAndCopy notes a heartbeat that the agent has written to the status, or copies what it has written to its Lease to the status, before the
	// SubReconcilers are called.
	RecordAndCopy(cluster *fleet.Cluster)
	// HasClones reports whether two agents send heartbeats with the identity of the Cluster.
	HasClones(cluster *fleet.Cluster) bool
	// Instances names the agent processes that have recently sent heartbeats, sorted, with their credentials if they differ in nothing else.
	Instances(cluster *fleet.Cluster) []string
}

// SubReconcilers are the controllers that contribute to the status of a Cluster, in the order in which they are called.
type SubReconcilers struct {
	Import      AgentInstaller
	AgentBundle SubReconciler
	Bundles     SubReconciler
	Liveness    Liveness
}

// conditionReconciler is a sub-reconciler with the type of the condition that reports its result.
type conditionReconciler struct {
	SubReconciler
	condition string
}

// of returns the sub-reconcilers for a Cluster. For a Cluster that is assigned to another controller, Import and AgentBundle are called too:
// they drop the kubeconfig and delete the agent's Bundle.
func (s SubReconcilers) of(cluster *fleet.Cluster) []conditionReconciler {
	all := []conditionReconciler{{s.Import, fleet.ConditionImported}, {s.AgentBundle, fleet.ConditionReconciled}}
	if managedElsewhere(cluster) {
		return all
	}
	return append(all, conditionReconciler{s.Bundles, fleet.ConditionReady}, conditionReconciler{s.Liveness, fleet.ConditionConnected})
}

func managedElsewhere(cluster *fleet.Cluster) bool {
	return cluster.Labels[fleet.ClusterManagementLabel] != ""
}
