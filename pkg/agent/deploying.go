package agent

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/agent/deploy"
)

// deployBundles carries out the BundleDeployments of the session's cluster.
func (l *life) deployBundles(ctx context.Context, s *session) error {
	if l.deploy == nil {
		<-ctx.Done()
		return nil
	}
	settings, err := l.member.agentConfig(ctx)
	if err != nil {
		l.log.Warnf("Deploying without what the agent's configuration says: %v", err)
	}
	err = l.deploy(ctx, deploy.Config{
		Hub: s.hub.fleet, Watching: s.hub.watching, HubCore: s.hub.core,
		Namespace:        s.hub.namespace,
		ClusterNamespace: s.credential.clusterNamespace,
		ClusterName:      s.credential.clusterName,
		Member:           rest.AddUserAgent(rest.CopyConfig(l.config.Member), "fleetagent/"+l.config.Version),
		AgentNamespace:   l.config.Namespace,
		Workers:          l.config.Workers,
		DriftWorkers:     l.config.DriftWorkers,
		Resync:           settings.GarbageCollectionInterval.Duration,
		Judge:            l.judge(),
		Leaving:          l.mark,
		Log:              l.log,
		Clock:            l.config.Clock,
	})
	if errors.Is(err, deploy.ErrFarewell) {
		return fmt.Errorf("%w: %w", errFarewell, err)
	}
	return err
}

// judge takes refusals in a row for a refusal, as the heartbeat does.
func (l *life) judge() func(error) error {
	shared := &verdicts{suspicion: l.config.Timing.suspicion(), now: l.config.Clock.Now}
	return shared.judge
}
