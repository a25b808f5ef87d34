package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// heartbeat reports at once and then at every check-in. What fails is tried again soon, not at the next check-in, so that
// a hub that comes back hears of all its agents within minutes.
func (l *life) heartbeat(ctx context.Context, s *session) error {
	suspicion := l.config.Timing.suspicion()
	pauses := l.config.Timing.retry()
	for ctx.Err() == nil {
		err := s.beat(ctx, l.config.Clock.Now(), l.config.Namespace)
		if suspicion.observe(Classify(err), l.config.Clock.Now()) {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		next := spread(l.config.CheckinInterval)
		if err == nil {
			pauses = l.config.Timing.retry()
		} else if ctx.Err() == nil {
			next = min(next, pauses.Step())
			l.log.Warnf("Heartbeat of cluster %s/%s failed, next try in %s: %v",
				s.credential.clusterNamespace, s.credential.clusterName, next.Round(time.Millisecond), err)
		}
		pause(ctx, l.config.Clock, next, nil)
	}
	return nil
}

// beat patches only what it reports: the hub and other components own the rest of the status.
func (s *session) beat(ctx context.Context, now time.Time, agentNamespace string) error {
	patch, err := beatPatch(now, agentNamespace)
	if err != nil {
		return err
	}
	return s.hub.patchClusterStatus(ctx, s.credential.clusterNamespace, s.credential.clusterName, patch)
}

// beatPatch is a merge patch, which works whether the Cluster has a status already or not.
func beatPatch(now time.Time, agentNamespace string) ([]byte, error) {
	return json.Marshal(map[string]any{"status": map[string]any{"agent": map[string]any{
		"lastSeen":  now.UTC().Format(time.RFC3339),
		"namespace": agentNamespace,
	}}})
}
