package deploy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/release"
)

// stallTracker reports that nothing can be deployed: a step that each deployment needs has failed, or has not ended, for Timing.Stalled. All
// steps concern the member. If the hub does not answer, no report arrives there, and a hub that answers again needs none.
type stallTracker struct {
	mutex   sync.Mutex
	clock   clock.WithTicker
	delay   time.Duration
	report  func(string)
	log     logrus.FieldLogger
	failing map[deployStep]stepFailure
	stalled bool // a failure was reported
}

// deployStep is a step without which the agent deploys nothing, as its report names it.
type deployStep string

const (
	readHistoryKey deployStep = "reading the history key on the member"
	listRevisions  deployStep = "listing the Secrets of Helm releases on the member"
	watchRevisions deployStep = "watching the Secrets of Helm releases on the member"
)

// deploySteps are all steps, in the order of a start.
var deploySteps = []deployStep{readHistoryKey, listRevisions, watchRevisions}

// stepFailure is the time since which a step fails, with the last error.
type stepFailure struct {
	since time.Time
	text  string
}

// newStallTracker returns a tracker for which no step has ended yet.
func newStallTracker(c Config) *stallTracker {
	s := &stallTracker{clock: c.Clock, delay: c.Timing.Stalled, report: c.ReportStalled, log: c.Log, failing: map[deployStep]stepFailure{}}
	for _, step := range deploySteps {
		s.failing[step] = stepFailure{since: c.Clock.Now(), text: "this has not ended yet"}
	}
	return s
}

// reportSlowStart reports the steps that have not ended when the time is up. An attempt may wait for an answer of the member for longer.
func (s *stallTracker) reportSlowStart(ctx context.Context) {
	timer := s.clock.NewTimer(s.delay)
	defer timer.Stop()
	select {
	case <-timer.C():
		s.mutex.Lock()
		defer s.mutex.Unlock()
		s.reportFailing()
	case <-ctx.Done():
	}
}

// note records the result of a step, unless the run has ended: then the end is the cause of the error.
func (s *stallTracker) note(ctx context.Context, step deployStep, err error) {
	if ctx.Err() != nil {
		return
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	failure, fails := s.failing[step]
	switch {
	case err == nil && !fails:
		return
	case err == nil:
		delete(s.failing, step)
	default:
		if !fails {
			failure.since = s.clock.Now()
		}
		failure.text = release.Explain(err)
		s.failing[step] = failure
	}
	s.reportFailing()
}

// reportFailing reports the first step that has failed for long enough, or that none fails. It reports nothing while a step has failed only for
// a shorter time: an earlier run may have reported that failure. It is called with the lock held.
func (s *stallTracker) reportFailing() {
	now := s.clock.Now()
	long := slices.IndexFunc(deploySteps, func(step deployStep) bool {
		failure, fails := s.failing[step]
		return fails && now.Sub(failure.since) >= s.delay
	})
	switch {
	case long >= 0:
		text := fmt.Sprintf("%s: %s", deploySteps[long], s.failing[deploySteps[long]].text)
		if !s.stalled {
			s.log.Warnf("Nothing can be deployed: %s", text)
		}
		s.stalled = true
		s.report(text)
	case len(s.failing) == 0:
		s.stalled = false
		s.report("")
	}
}

// noteErrors notes the results of the lists and watches of the revisions. A watch that begins without a list sends the list.
func (s *stallTracker) noteErrors(revisions *cache.ListWatch) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := revisions.ListWithContext(ctx, o)
			s.note(ctx, listRevisions, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := revisions.WatchWithContext(ctx, o)
			s.note(ctx, watchRevisions, err)
			if err == nil {
				s.note(ctx, listRevisions, nil)
			}
			return events, err
		},
	}
}
