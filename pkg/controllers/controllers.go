// Package controllers sets up the controllers of the hub. Each has a package of its own below this one, in which Register lists
// everything that the controller watches; package hub fills the caches before Register and starts the workers after it.
package controllers

import (
	"context"

	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/audience"
	"github.com/muster-fleet/muster/pkg/controllers/bootstrap"
	"github.com/muster-fleet/muster/pkg/controllers/bundle"
	"github.com/muster-fleet/muster/pkg/controllers/cluster"
	"github.com/muster-fleet/muster/pkg/controllers/clustergroup"
	"github.com/muster-fleet/muster/pkg/controllers/clusterimport"
	"github.com/muster-fleet/muster/pkg/controllers/clusternet"
	"github.com/muster-fleet/muster/pkg/controllers/clusterregistration"
	"github.com/muster-fleet/muster/pkg/controllers/clusterregistrationtoken"
	"github.com/muster-fleet/muster/pkg/controllers/internal/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/liveness"
	"github.com/muster-fleet/muster/pkg/controllers/manageagent"
	"github.com/muster-fleet/muster/pkg/controllers/orphans"
	"github.com/muster-fleet/muster/pkg/controllers/settings"
)

// Controllers are the registered controllers of one hub. The fields are the parts that have goroutines beside the work queues.
type Controllers struct {
	imports   *clusterimport.Importer
	bundles   *bundle.Deployer // nil when Bundles are left to Fleet's own controllers
	connected *liveness.Detector
	orphans   *orphans.Collector
	audiences *audience.Updater
}

// IndexesRegistered reports whether the caches of c have served a hub before. They do not accept the indexes a second time.
func IndexesRegistered(c *app.Context) bool { return index.Registered(c.Fleet) }

// Register registers all controllers of the hub. The configuration is loaded first, because the controllers read it.
func Register(ctx context.Context, c *app.Context, reachability *liveness.APIReachability, disableBootstrap bool) (*Controllers, error) {
	watcher, err := settings.Load(ctx, c)
	if err != nil {
		return nil, err
	}
	index.Register(c.Fleet, c.Core)
	c.Backlog = backlog.New(c.Fleet.ClusterRegistration().Cache(), c.Fleet.Cluster().Cache(), c.Clock, c.OriginPolicies)
	clusterregistrationtoken.Register(ctx, c)
	clusterregistration.Register(ctx, c)

	// These controllers contribute to the status of a Cluster. The controller of Clusters calls them in this order.
	all := &Controllers{
		imports:   clusterimport.Register(ctx, c),
		connected: liveness.Register(ctx, c, reachability),
	}
	subReconcilers := cluster.SubReconcilers{Import: all.imports, AgentBundle: manageagent.Register(ctx, c), Liveness: all.connected}
	if c.DisableBundles {
		subReconcilers.Bundles = bundle.RegisterReporter(c)
	} else {
		selectors := &clustergroup.Selectors{}
		clustergroup.Register(ctx, c, selectors)
		all.bundles = bundle.Register(ctx, c, selectors)
		subReconcilers.Bundles = all.bundles
	}
	agentrole.Register(ctx, c)
	cluster.Register(ctx, c, subReconcilers)
	if c.Clusternet != nil {
		clusternet.Register(ctx, c)
	}

	all.orphans = orphans.Register(ctx, c)
	all.audiences = audience.Register(c)
	var next settings.Next
	if !disableBootstrap {
		next = bootstrap.New(c)
	}
	watcher.Register(ctx, next)
	return all, nil
}

// Start starts the goroutines beside the work queues. They end with ctx.
func (c *Controllers) Start(ctx context.Context) {
	if c.bundles != nil {
		c.bundles.StartContentDeletion(ctx)
	}
	c.orphans.Start(ctx)
	c.audiences.Start(ctx)
}

// Wait returns when all goroutines have ended. Call it when the context of Register and Start has ended, and no handler runs.
func (c *Controllers) Wait() {
	c.imports.Wait()
	c.connected.Wait()
	c.orphans.Wait()
	c.audiences.Wait()
	if c.bundles != nil {
		c.bundles.WaitContentDeletion()
	}
}
