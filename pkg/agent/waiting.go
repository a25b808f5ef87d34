package agent

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// waiting is the request this process has sent and looked after ever since. The hub keeps a credential for 40 minutes: who has looked
// all the time knows that there was none, and that whoever approves the request later finds its agent waiting. A request from before a
// restart or an outage may have been granted meanwhile, and what it was given be gone.
type waiting struct {
	request     string
	since, last time.Time
}

func (w *waiting) begins(request string, now time.Time) {
	*w = waiting{request: request, since: now, last: now}
}

// hears is told that there is no credential yet; longest is how long one may come and go unseen.
func (w *waiting) hears(now time.Time, longest time.Duration) {
	if now.Sub(w.last) > longest {
		*w = waiting{}
	}
	w.last = now
}

// missedNothing says whether no credential can have come for the request.
func (w *waiting) missedNothing(request string) bool { return w.request == request }

// looks are the pauses between looks for a credential: short while it may come at any moment, and long once it seems that a person
// has to decide.
type looks struct {
	soon, late *wait.Backoff
	until      time.Time // it is late
}

func (a *attempt) looks() *looks {
	begun := a.config.Clock.Now()
	if a.waiting.missedNothing(a.pending.name) {
		begun = a.waiting.since
	}
	t := a.config.Timing
	return &looks{soon: t.poll(), late: backoff(t.PollMax, t.PollLate, pollFactor), until: begun.Add(t.PollSoon)}
}

func (l *looks) next(now time.Time) time.Duration {
	if now.Before(l.until) {
		return l.soon.Step()
	}
	return l.late.Step()
}

// leaveOff has the next attempt send the same request where it is certain that this one still waits: one more each time would be there
// for a person to choose from, and an approval of any but the last would give to nobody. Another one is made where this one may have
// been answered in vain, or says of the cluster what is not true any more.
func (a *attempt) leaveOff(ctx context.Context) error {
	config, err := a.member.agentConfig(ctx)
	if a.waiting.missedNothing(a.pending.name) && (err != nil || a.pending.saysOf(config.Labels)) {
		return nil
	}
	return a.member.forgetPending(ctx)
}
