package agent

import (
	"context"
	"fmt"
	"time"
)

// heartbeat reports at once, at every check-in, and when another way to the hub begins or ceases to be in question. What
// fails is tried again soon, not at the next check-in, so that a hub that comes back hears of all its agents within minutes.
func (l *life) heartbeat(ctx context.Context, s *session) error {
	suspicion := l.config.Timing.suspicion()
	pauses := l.config.Timing.comeback(l.config.CheckinInterval)
	for ctx.Err() == nil {
		pending, news := l.notice.get()
		err := s.beat(ctx, l.report(ctx, s, pending))
		if suspicion.observe(Classify(err), l.config.Clock.Now()) {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		next := spread(l.config.CheckinInterval)
		if err == nil {
			pauses = l.config.Timing.comeback(l.config.CheckinInterval)
		} else if ctx.Err() == nil {
			next = min(next, pauses.Step())
			l.log.Warnf("Heartbeat of cluster %s/%s failed, next try in %s: %v",
				s.credential.clusterNamespace, s.credential.clusterName, next.Round(time.Millisecond), err)
		}
		pause(ctx, l.config.Clock, next, news)
	}
	return nil
}

// beat patches only what it reports: the hub and other components own the rest of the status.
func (s *session) beat(ctx context.Context, r report) error {
	patch, err := r.patch()
	if err != nil {
		return err
	}
	return s.hub.patchClusterStatus(ctx, s.credential.clusterNamespace, s.credential.clusterName, patch)
}
