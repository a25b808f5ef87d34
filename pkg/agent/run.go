package agent

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/muster-fleet/muster/pkg/agent/deploy"
)

// Run lives the agent's life until ctx ends, and then returns nil with nothing left running. It returns an error when the
// configuration is wrong or the Lease was lost: the process should end then and be started again. Everything else that
// can go wrong, on the member or the hub, it waits out.
func Run(ctx context.Context, c Config) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	m, err := newMember(c)
	if err != nil {
		return err
	}
	defer m.close()
	c.Log.Infof("Agent %s starting in namespace %s (scope %q)", c.Version, c.Namespace, c.Scope)
	return lead(ctx, c, func(ctx context.Context) error {
		live(ctx, c, m, deploy.Run)
		return nil
	})
}

// deployment is deploy.Run, or what a test has instead; nil deploys nothing.
type deployment func(context.Context, deploy.Config) error

// live watches what an import writes and runs the loop beside it.
func live(ctx context.Context, c Config, m *member, deploying deployment) {
	ctx, stop := context.WithCancel(ctx)
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	for _, object := range m.imported() {
		watching.Go(func() { m.watchOne(ctx, object, changed) })
	}
	defer watching.Wait()
	defer stop()
	l := &life{config: c, log: c.Log, member: m, changed: changed, deploy: deploying, instance: string(uuid.NewUUID())}
	l.run(ctx)
}
