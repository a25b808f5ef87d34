// Package bundle deploys Bundles to Clusters. It is a sub-reconciler of controller cluster for the BundleDeployments of one Cluster,
// and a controller of its own for the status of Bundles.
//
//	register.go   Register: the caches, indexes and event handlers of the Deployer
//	deploy.go     Reconcile: the BundleDeployments of one Cluster, from its Bundles to its status
//	bundle.go     onBundle: the status of one Bundle, and which Clusters to enqueue if the Bundle changes
//	report.go     Reporter: the status of a Cluster whose BundleDeployments Fleet's own controllers make
//	events.go     the event handlers: they enqueue Clusters and Bundles, or note a change for a pass over the workspace
//	dependents.go the pass over a workspace: which Clusters and Bundles depend on the changes
//	plan.go       the plan of one generation of a Bundle, and the options for a Cluster
//	budget.go     the limit of the memory of the caches of plans
//	targets.go    which targets of a Bundle match a Cluster
//	rollout.go    which Clusters of a Bundle with a rollout strategy may be updated now
//	templates.go  Helm values with templates
//	values.go     the Secret with the Helm values of a BundleDeployment
//	reduce.go     what the caches keep of a BundleDeployment, and the patch of its spec
//	stored.go     the limit of what is stored for the Clusters of a workspace
//	copies.go     copies of the Secrets and ConfigMaps that a Bundle names
//	contents.go   Contents: their creation, and the deletion of those that no BundleDeployment needs
//	summary.go    the sums over BundleDeployments in the status of Clusters and Bundles
//	index.go      indexes, and the names in BundleDeployments
package bundle

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
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
	// seen has the revision of each Bundle for which its Clusters were enqueued last.
	seen map[key]revision
	// changedAt has the Bundles whose status is out of date, with the time of the first change that it does not show.
	changedAt map[key]time.Time
	// rollouts has, by Bundle and Cluster, the last decision about each Cluster that is not updated yet.
	rollouts map[key]map[key]rolloutStep
	// limited has, by Bundle and Cluster, what the limit of the workspace keeps from the Cluster: see noteLimit.
	limited map[key]map[key]string

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
		plans:           newPlans(),
		written:         expectations.New(c.Clock),
		deleted:         expectations.New(c.Clock),
		writtenBundles:  expectations.New(c.Clock),
		changes:         &enqueue.Changes[changedObjects]{Queue: bundles, MarkAll: (*changedObjects).markAll},
		seen:            map[key]revision{},
		changedAt:       map[key]time.Time{},
		rollouts:        map[key]map[key]rolloutStep{},
		limited:         map[key]map[key]string{},
	}
	d.addIndexes()
	bundles.OnChange(ctx, name, app.Handler(c.Passes, name, d.onBundle))
	deployments.OnChange(ctx, finalizerName, app.Handler(c.Passes, finalizerName, d.removeFinalizer))

	// The informers were not stopped yet, so that adding a handler does not fail.
	_, _ = deployments.Informer().AddEventHandler(d.deploymentEvents())
	_, _ = clusters.Informer().AddEventHandler(d.clusterEvents())
	_, _ = c.Fleet.ClusterGroup().Informer().AddEventHandler(d.groupEvents())
	_, _ = c.Contents.AddEventHandler(d.contentEvents())
	_, _ = c.Secrets.AddEventHandler(d.secretEvents())
	_, _ = c.Secrets.AddEventHandler(d.copyEvents(secretKind))
	_, _ = c.ConfigMaps.AddEventHandler(d.copyEvents(configMapKind))
	enqueue.OnDamage(c.RBAC.Role(), clusters, agentrole.ClusterOfObjects)
	enqueue.OnDamage(c.RBAC.RoleBinding(), clusters, agentrole.ClusterOfObjects)
	return d
}

// Start starts the deletion of Contents that no BundleDeployment needs, until ctx ends.
func (d *Deployer) Start(ctx context.Context) { d.contents.start(ctx) }

// Wait returns when the goroutines of Start have ended.
func (d *Deployer) Wait() { d.contents.running.Wait() }

// Forget drops the variants of a deleted Cluster. The events of deleted BundleDeployments and Secrets drop the rest of its state.
func (d *Deployer) Forget(k string) {
	namespace, name, _ := cache.SplitMetaNamespaceKey(k)
	d.plans.memory.forgetCluster(key{Namespace: namespace, Name: name})
	d.sizes.set(namespace, registration.ClusterNamespace(namespace, name), func() int64 { return 0 })
	d.forgetLimits(key{Namespace: namespace, Name: name})
}

// Condition returns the type of the condition that Reconcile reports.
func (d *Deployer) Condition() string { return fleet.ConditionReady }
