// Package bundle deploys Bundles: it decides which Bundles are for which Cluster, keeps a BundleDeployment for each in the
// Cluster's own namespace, keeps the resources in Contents that all Clusters share, and sums up what the agents report. Its
// unit of work is one Cluster: an event touches the Clusters it concerns and no other.
package bundle

import (
	"context"
	"sync"

	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/contentrole"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/guard"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

const (
	name          = "bundle"
	finalizerName = "bundle-deployment-finalizer"
)

// Step is the contribution of Bundles to the status of a Cluster: condition Ready, summary, resource counts and display.
type Step struct {
	*app.Context
	clusters    fleetcontrollers.ClusterController
	known       fleetcontrollers.ClusterCache
	bundles     fleetcontrollers.BundleController
	bundleCache fleetcontrollers.BundleCache
	groups      fleetcontrollers.ClusterGroupCache
	deployments fleetcontrollers.BundleDeploymentController
	deployed    fleetcontrollers.BundleDeploymentCache

	contents *contents
	roles    roles
	plans    plans
	tally    *tally
	counting cache.ResourceEventHandlerRegistration

	created, deleted *expectations.Expectations // BundleDeployments
	fresh            expectations.Expectations
	freshDeployments expectations.Expectations

	mu        sync.Mutex
	announced map[key]announcement
}

// Register sets up the step for the cluster controller. It watches Bundles; BundleDeployments, for what agents report and
// to repair them; ClusterGroups; Contents, by metadata only; and the ClusterRoles by which agents read those. Start begins the watch of Contents;
// Wait waits for it.
func Register(ctx context.Context, c *app.Context) *Step {
	clusters, bundles, deployments := c.Fleet.Cluster(), c.Fleet.Bundle(), c.Fleet.BundleDeployment()
	s := &Step{
		Context:     c,
		clusters:    clusters,
		known:       clusters.Cache(),
		bundles:     bundles,
		bundleCache: bundles.Cache(),
		groups:      c.Fleet.ClusterGroup().Cache(),
		deployments: deployments,
		deployed:    deployments.Cache(),
		contents:    newContents(c),
		roles:       contentrole.New(c),
		tally:       newTally(),
		created:     expectations.New(c.Clock),
		deleted:     expectations.New(c.Clock),
		announced:   map[key]announcement{},
	}
	s.addIndexes()
	bundles.OnChange(ctx, name, guard.Handler(c.Passes, name, s.onBundle))
	deployments.OnChange(ctx, finalizerName, guard.Handler(c.Passes, finalizerName, s.dropFinalizer))
	enqueue.OnDamage(c.RBAC.ClusterRole(), clusters, contentrole.ClusterOf)
	enqueue.OnDamage(c.RBAC.ClusterRoleBinding(), clusters, contentrole.ClusterOf)
	s.watch()
	return s
}

func (s *Step) addIndexes() {
	s.bundleCache.AddIndexer(byTarget, bundleByTarget)
	s.deployed.AddIndexer(byBundle, deploymentByBundle)
	s.deployed.AddIndexer(byContent, deploymentByContent)
	s.known.AddIndexer(byDisplayName, clusterByDisplayName)
	s.known.AddIndexer(byClusterNamespace, clusterByClusterNamespace)
}

// watch adds informers' own handlers. Their errors are of informers that were stopped already; then there is nothing to see.
func (s *Step) watch() {
	s.counting, _ = s.deployments.Informer().AddEventHandler(typed[*fleet.BundleDeployment]{
		added: s.deploymentAdded, changed: s.deploymentChanged, gone: s.deploymentGone,
	})
	_, _ = s.Fleet.ClusterGroup().Informer().AddEventHandler(typed[*fleet.ClusterGroup]{
		added: s.groupAdded, changed: s.groupChanged, gone: s.groupGone,
	})
	_, _ = s.contents.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: s.contentAdded, DeleteFunc: s.contentGone,
	})
}

// Start begins to collect the Contents that nobody needs, until ctx ends.
func (s *Step) Start(ctx context.Context) { s.contents.start(ctx) }

// Wait returns when what Start began has ended.
func (s *Step) Wait() { s.contents.done.Wait() }
