// Package bundle deploys Bundles to Clusters. It is a sub-reconciler of controller cluster for the BundleDeployments of one Cluster,
// and a controller of its own for the status of Bundles.
//
//	register.go   Register: the caches and event handlers of the Deployer; they enqueue Clusters and Bundles, or note a change for a pass over the
//	              workspace
//	deploy.go     Reconcile: the BundleDeployments of one Cluster, from its Bundles to its status
//	bundle.go     onBundle: the status of one Bundle, and which Clusters to enqueue if the Bundle changes
//	report.go     Reporter: the status of a Cluster whose BundleDeployments Fleet's own controllers make
//	dependents.go the pass over a workspace: which Clusters and Bundles depend on the changes
//	plan.go       the plan of one generation of a Bundle, and the options for a Cluster
//	plancache.go  the limit of the memory of the caches of plans
//	targets.go    which targets of a Bundle match a Cluster
//	rollout.go    which Clusters of a Bundle with a rollout strategy may be updated now
//	bundlevalues.go the Helm values of a Bundle that are in a Secret
//	values.go     the Secret with the Helm values of a BundleDeployment
//	reduce.go     what the caches keep of a BundleDeployment, and the patch of its spec
//	storage.go    the limit of what is stored for the Clusters of a workspace
//	copies.go     copies of the Secrets and ConfigMaps that a Bundle names
//	contents.go   Contents: their creation, and the deletion of those that no BundleDeployment needs
//	index.go      indexes, and the names in BundleDeployments
//
// Package templates renders the templates in Helm values. Package rollup of the controllers has the sums over BundleDeployments in the status of Clusters
// and Bundles.
package bundle

import (
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/rollup"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	name          = "bundle"
	finalizerName = "bundle-deployment-finalizer"
)

// Deployer deploys Bundles. It contributes condition Ready, summary, resource counts and display to the status of a Cluster.
type Deployer struct {
	*app.Context
	clusters, bundles enqueue.Enqueuer // the work queues
	clusterCache      fleetcontrollers.ClusterCache
	groupCache        fleetcontrollers.ClusterGroupCache
	groupSelectors    *clustergroup.Selectors
	bundleCache       fleetcontrollers.BundleCache
	deploymentCache   fleetcontrollers.BundleDeploymentCache

	contents *contents
	values   *valueSecrets
	copies   *copies
	roles    roles
	plans    *plans

	// Expectations about BundleDeployments: written has the keys of created and the versions of patched ones, deleted the UIDs of deleted ones.
	written, deleted *expectations.Expectations
	// writtenBundles has the versions of Bundles.
	writtenBundles *expectations.Expectations

	// changes are the objects that event handlers have noted for enqueueDependents.
	changes *enqueue.Changes[changedObjects]

	mu sync.Mutex
	// seen has the version of each Bundle for which its Clusters were enqueued last.
	seen map[key]bundleVersion
	// changedAt has the Bundles whose status is out of date, with the time of the first change that it does not show.
	changedAt map[key]time.Time
	// rollouts has, by Bundle and Cluster, the last decision about each Cluster that is not updated yet.
	rollouts map[key]map[key]rolloutStep
	// overStorage has, by Cluster and Bundle, what the storage limit of the workspace keeps from the Cluster: see noteStorageLimits.
	overStorage map[key]map[key]storageExcess
	// renderErrors has, by Cluster, a digest of the errors of the templates that cannot be rendered for it: see noteRenderErrors.
	renderErrors map[key][sha256.Size]byte
	// refusals has, by Cluster, the names of Bundles of which it has no BundleDeployment because of an error: see noteRefusals.
	refusals map[key][]string
	// retained has, by retainedKey, the kindDeletedError of each BundleDeployment that stays because a kind was deleted.
	retained *utilcache.Expiring

	sizes storedBytes
}

// roles grants the agent of a Cluster the right to read Secrets and ConfigMaps of the cluster namespace.
type roles interface {
	AllowObjects(ctx context.Context, cluster *fleet.Cluster, secrets, configMaps []string) error
}

// Register registers the controllers of Bundles and BundleDeployments. Beside these two kinds they watch Clusters and
// ClusterGroups, which targets select; Contents, Secrets and ConfigMaps, by metadata only; and the Roles by which agents read them.
func Register(ctx context.Context, c *app.Context, groupSelectors *clustergroup.Selectors) *Deployer {
	clusters, bundles, deployments := c.Fleet.Cluster(), c.Fleet.Bundle(), c.Fleet.BundleDeployment()
	d := &Deployer{
		Context:         c,
		clusters:        clusters,
		bundles:         bundles,
		clusterCache:    clusters.Cache(),
		groupCache:      c.Fleet.ClusterGroup().Cache(),
		groupSelectors:  groupSelectors,
		bundleCache:     bundles.Cache(),
		deploymentCache: deployments.Cache(),
		contents:        newContents(c, deployments.Cache()),
		values:          newValueSecrets(c),
		copies:          &copies{c},
		roles:           agentrole.NewReadRights(c),
		plans:           newPlans(c),
		written:         expectations.New(c.Clock),
		deleted:         expectations.New(c.Clock),
		retained:        utilcache.NewExpiringWithClock(c.Clock),
		writtenBundles:  expectations.New(c.Clock),
		changes:         &enqueue.Changes[changedObjects]{Queue: bundles, MarkAll: (*changedObjects).markAll},
		seen:            map[key]bundleVersion{},
		changedAt:       map[key]time.Time{},
		rollouts:        map[key]map[key]rolloutStep{},
		overStorage:     map[key]map[key]storageExcess{},
		renderErrors:    map[key][sha256.Size]byte{},
		refusals:        map[key][]string{},
	}
	d.addIndexes()
	bundles.OnChange(ctx, name, app.Handler(c.Passes, name, d.onBundle))
	deployments.OnChange(ctx, finalizerName, app.Handler(c.Passes, finalizerName, d.removeFinalizer))

	// The informers were not stopped yet, so that adding a handler does not fail.
	_, _ = deployments.Informer().AddEventHandler(d.deploymentEvents())
	_, _ = clusters.Informer().AddEventHandler(d.clusterEvents())
	_, _ = c.Fleet.ClusterGroup().Informer().AddEventHandler(d.groupEvents())
	_, _ = c.ContentMetadata.AddEventHandler(d.contentEvents())
	_, _ = c.SecretMetadata.AddEventHandler(d.secretEvents())
	_, _ = c.SecretMetadata.AddEventHandler(d.copyEvents(secretKind))
	_, _ = c.ConfigMapMetadata.AddEventHandler(d.copyEvents(configMapKind))
	enqueue.OnDamage(c.RBAC.Role(), clusters, c.RepairDelay(), agentrole.ClusterOfObjects)
	enqueue.OnDamage(c.RBAC.RoleBinding(), clusters, c.RepairDelay(), agentrole.ClusterOfObjects)
	return d
}

// StartContentDeletion starts the deletion of Contents that no BundleDeployment needs, until ctx ends.
func (d *Deployer) StartContentDeletion(ctx context.Context) { d.contents.start(ctx) }

// WaitContentDeletion returns when the deletion of Contents has ended.
func (d *Deployer) WaitContentDeletion() { d.contents.running.Wait() }

// Forget drops the variants of a deleted Cluster. The events of deleted BundleDeployments and Secrets drop the rest of its state.
func (d *Deployer) Forget(k string) {
	namespace, name, _ := cache.SplitMetaNamespaceKey(k)
	cluster := key{Namespace: namespace, Name: name}
	d.plans.memory.forgetCluster(cluster)
	clusters := func() int {
		left, _ := d.clusterCache.List(namespace, labels.Everything())
		return len(left)
	}
	d.sizes.forget(namespace, registration.ClusterNamespace(namespace, name), clusters, d.Clock.Now())
	d.noteStorageLimits(cluster, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.renderErrors, cluster)
	delete(d.refusals, cluster)
}

// deploymentEvents enqueues the Bundle and the Cluster of a BundleDeployment that changes their status. At the start of the hub all Bundles
// and Clusters are enqueued anyway.
func (d *Deployer) deploymentEvents() enqueue.EventHandler[*fleet.BundleDeployment] {
	return enqueue.EventHandler[*fleet.BundleDeployment]{
		Added: func(deployment *fleet.BundleDeployment, atStart bool) {
			d.written.Observed(keyOf(deployment).String())
			if !atStart {
				d.bundleChanged(bundleOf(deployment))
				d.enqueueCluster(deployment.Namespace, d.StatusDelay())
			}
		},
		Changed: func(before, after *fleet.BundleDeployment) {
			inStatus := changesStatus(before, after)
			if inStatus {
				d.bundleChanged(bundleOf(before))
				d.bundleChanged(bundleOf(after))
			}
			if inStatus || lacksDisplay(after) || before.Generation != after.Generation || !maps.Equal(before.Labels, after.Labels) ||
				(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) {
				d.enqueueCluster(after.Namespace, d.StatusDelay())
			}
			needed := contentsOf(after)
			for _, content := range contentsOf(before) {
				if !slices.Contains(needed, content) {
					d.contents.checkLater(content)
				}
			}
		},
		Deleted: func(deployment *fleet.BundleDeployment) {
			d.written.Observed(keyOf(deployment).String())
			d.deleted.Observed(string(deployment.UID))
			d.bundleChanged(bundleOf(deployment))
			d.enqueueCluster(deployment.Namespace, d.StatusDelay())
			for _, content := range contentsOf(deployment) {
				d.contents.checkLater(content)
			}
		},
	}
}

// changesStatus reports whether a change of a BundleDeployment changes the status of its Bundle or of its Cluster. Most reports of an agent do not.
func changesStatus(before, after *fleet.BundleDeployment) bool {
	stateBefore, stateAfter := fleetstatus.BundleState(before.Spec, before.Status), fleetstatus.BundleState(after.Spec, after.Status)
	return bundleOf(before) != bundleOf(after) || clusterOf(before) != clusterOf(after) || before.Status.ResourceCounts != after.Status.ResourceCounts ||
		before.Spec.DeploymentID != after.Spec.DeploymentID || // the rollout of the Bundle goes on
		!equality.Semantic.DeepEqual(rollup.NonReady("", before, stateBefore), rollup.NonReady("", after, stateAfter))
}

// clusterEvents notes a Cluster whose labels, quarantine, pause, cluster namespace or deletion has changed, because the events of its BundleDeployments are not
// enough: none is written if, for example, a Cluster to which nothing is deployed yet is quarantined, deleted or no longer selected, or if the rollout of a
// Bundle no longer waits for a Cluster.
func (d *Deployer) clusterEvents() enqueue.EventHandler[*fleet.Cluster] {
	note := func(before *fleet.Cluster) {
		d.changes.Note(before.Namespace, func(c *changedObjects) { c.clusters.Add(before.Name, before.Labels, len(before.Labels), maps.Equal) })
	}
	return enqueue.EventHandler[*fleet.Cluster]{
		Added: func(cluster *fleet.Cluster, atStart bool) {
			if !atStart && cluster.Spec.Quarantined {
				note(cluster)
			}
		},
		Changed: func(before, after *fleet.Cluster) {
			if before.Spec.MetadataTooLarge != after.Spec.MetadataTooLarge || before.Spec.Quarantined != after.Spec.Quarantined || before.Spec.Paused != after.Spec.Paused ||
				isUnprocessed(before) != isUnprocessed(after) || !maps.Equal(before.Labels, after.Labels) ||
				(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) {
				note(before)
			}
		},
		Deleted: note,
	}
}

// groupEvents notes a ClusterGroup that may select other Clusters, or that other targets and partitions may select.
func (d *Deployer) groupEvents() enqueue.EventHandler[*fleet.ClusterGroup] {
	isSame := func(a, b *fleet.ClusterGroup) bool {
		return isSameGroupVersion(a, b) && a.Spec.MetadataTooLarge == b.Spec.MetadataTooLarge
	}
	note := func(before *fleet.ClusterGroup) {
		d.changes.Note(before.Namespace, func(c *changedObjects) {
			version := &fleet.ClusterGroup{ObjectMeta: metav1.ObjectMeta{UID: before.UID, Generation: before.Generation, Labels: before.Labels}, Spec: before.Spec}
			c.groups.Add(before.Name, version, clustergroup.Size(before)+len(before.Labels), isSame)
		})
	}
	return enqueue.EventHandler[*fleet.ClusterGroup]{
		Added: func(group *fleet.ClusterGroup, atStart bool) {
			if !atStart { // a group that did not exist selected no Cluster
				note(&fleet.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Namespace: group.Namespace, Name: group.Name}})
			}
		},
		Changed: func(before, after *fleet.ClusterGroup) {
			if !isSame(before, after) {
				note(before)
			}
		},
		Deleted: note,
	}
}

// isSameGroupVersion reports whether two versions of a ClusterGroup select the same Clusters, and are selected by the same targets.
func isSameGroupVersion[A, B metav1.Object](a A, b B) bool {
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() && maps.Equal(a.GetLabels(), b.GetLabels())
}

// contentEvents checks each Content that exists or appears, because the hub may have been stopped before it wrote the
// BundleDeployment that names it. It enqueues the Clusters that need a deleted Content, so that it is created again.
func (d *Deployer) contentEvents() enqueue.EventHandler[*metav1.PartialObjectMetadata] {
	return enqueue.EventHandler[*metav1.PartialObjectMetadata]{
		Added: func(c *metav1.PartialObjectMetadata, _ bool) {
			d.contents.made.Observed(c.Name)
			d.contents.checkLater(c.Name)
		},
		Deleted: func(c *metav1.PartialObjectMetadata) {
			d.contents.forget(c.Name)
			for _, dependent := range d.contents.dependentsOf(c.Name) {
				d.enqueueCluster(dependent.Namespace, 0)
			}
		},
	}
}

// secretEvents enqueues the Cluster of a BundleDeployment if another client changes or deletes the Secret with its Helm values, and the Bundle whose
// values are in a Secret.
func (d *Deployer) secretEvents() enqueue.EventHandler[*metav1.PartialObjectMetadata] {
	return enqueue.EventHandler[*metav1.PartialObjectMetadata]{
		Added: func(secret *metav1.PartialObjectMetadata, atStart bool) {
			if !atStart {
				d.bundleValuesChanged(keyOf(secret))
			}
		},
		Changed: func(_, after *metav1.PartialObjectMetadata) {
			d.bundleValuesChanged(keyOf(after))
			if d.hasValues(keyOf(after)) && d.values.noteChange(after) {
				d.enqueueCluster(after.Namespace, 0)
			}
		},
		Deleted: func(secret *metav1.PartialObjectMetadata) {
			d.bundleValuesChanged(keyOf(secret))
			d.values.forget(keyOf(secret))
			if d.hasValues(keyOf(secret)) {
				d.enqueueCluster(secret.Namespace, 0)
			}
		},
	}
}

// copyEvents notes a Secret or ConfigMap that may have to be copied, and enqueues the Cluster of a copy that is deleted. A copy that another
// client changes stays changed until its source changes.
func (d *Deployer) copyEvents(kind string) enqueue.EventHandler[*metav1.PartialObjectMetadata] {
	note := func(object *metav1.PartialObjectMetadata) {
		d.changes.Note(object.Namespace, func(c *changedObjects) {
			source := changedSource{copySource{kind: kind, name: object.Name}, object.UID}
			c.sources.Add(kind+"/"+object.Name, source, 0, func(a, b changedSource) bool { return a == b })
		})
	}
	return enqueue.EventHandler[*metav1.PartialObjectMetadata]{
		Added: func(object *metav1.PartialObjectMetadata, atStart bool) {
			if !atStart {
				note(object)
			}
		},
		Changed: func(_, after *metav1.PartialObjectMetadata) { note(after) },
		Deleted: func(object *metav1.PartialObjectMetadata) {
			note(object)
			if isCopy(object) {
				d.enqueueCluster(object.Namespace, 0)
			}
		},
	}
}

// bundleValuesChanged enqueues the Bundle of that key if its Helm values are in the Secret of its name, and lets the pass read them again.
func (d *Deployer) bundleValuesChanged(k key) {
	if b, err := d.bundleCache.Get(k.Namespace, k.Name); err == nil && b.Spec.ValuesHash != "" {
		d.plans.forget(k)
		d.bundleChanged(k)
	}
}

// hasValues reports whether there is a BundleDeployment of that key with Helm values.
func (d *Deployer) hasValues(k key) bool {
	deployment, err := d.deploymentCache.Get(k.Namespace, k.Name)
	return err == nil && deployment.Spec.ValuesHash != ""
}

// bundleChanged marks the status of a Bundle as out of date, and enqueues the Bundle. A Bundle that is being deleted waits for
// its last BundleDeployment and not for more changes.
func (d *Deployer) bundleChanged(k key) {
	b, err := d.bundleCache.Get(k.Namespace, k.Name)
	if err != nil {
		return
	}
	delay := d.StatusDelay()
	if b.DeletionTimestamp != nil {
		delay = 0
	}
	d.markChanged(k)
	d.bundles.EnqueueAfter(k.Namespace, k.Name, delay)
}

// markChanged notes the time of the first change that the status of a Bundle does not show.
func (d *Deployer) markChanged(k key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changedAt[k].IsZero() {
		d.changedAt[k] = d.Clock.Now()
	}
}

func (d *Deployer) enqueueCluster(namespace string, delay time.Duration) {
	enqueueClusterOf(namespace, d.clusterCache, d.clusters, delay)
}

// enqueueClusterOf enqueues the Cluster of a cluster namespace.
func enqueueClusterOf(namespace string, clusters fleetcontrollers.ClusterCache, queue enqueue.Enqueuer, delay time.Duration) {
	found, _ := clustersByClusterNamespace.Find(clusters, namespace)
	for _, cluster := range found {
		queue.EnqueueAfter(cluster.Namespace, cluster.Name, delay)
	}
}
