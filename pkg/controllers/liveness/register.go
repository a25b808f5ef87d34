// Package liveness says on each Cluster whether its agent is connected: from a heartbeat until as many of the next were
// missed as the configuration allows. It writes on transitions only; a heartbeat costs the hub no request.
package liveness

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
)

// Register sets up the step for the cluster controller. It watches nothing: heartbeats arrive with the Clusters it is asked
// about, and the ends of their graces come from a queue ordered by time, which stops when ctx ends; Wait waits for that.
func Register(ctx context.Context, c *app.Context, audible *Audible) *Step {
	s := newStep(c, c.Fleet.Cluster(), audible)
	context.AfterFunc(ctx, s.moments.ShutDown)
	s.running.Go(s.run)
	c.Config.OnChange(s.reconsider)
	return s
}

func newStep(c *app.Context, clusters enqueue.Enqueuer, audible *Audible) *Step {
	return &Step{
		Context:  c,
		clusters: clusters,
		audible:  audible,
		moments:  workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[types.NamespacedName]{Clock: c.Clock}),
		beats:    map[types.NamespacedName]beat{},

		instances: map[types.NamespacedName]*instances{},
	}
}
