package clusterimport

import (
	"context"
	"sync"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// turns keep the farewell of one Cluster and the import of another from working on the same member at once: the farewell
// looks whose the agent is and then removes it, and an import in between would lose the agent it has just installed. Imports
// do not wait for each other. The zero turns are ready to use.
type turns struct {
	mu sync.Mutex
	by map[string]*turn // server
}

type turn struct {
	among int
	alone bool
	freed chan struct{}
}

// among is the call, made while nobody is alone on the server.
func (t *turns) among(server string, run call) call { return t.call(server, false, run) }

// alone is the call, made while there is no other on the server.
func (t *turns) alone(server string, run call) call { return t.call(server, true, run) }

func (t *turns) call(server string, alone bool, run call) call {
	return func(ctx context.Context) callResult {
		if !t.take(ctx, server, alone) {
			return callResult{failure: failed(fleet.ReasonMemberError, "another call to %s takes its time; it is tried again", server)}
		}
		defer t.give(server, alone)
		return run(ctx)
	}
}

// take waits for a turn, at most until ctx ends.
func (t *turns) take(ctx context.Context, server string, alone bool) bool {
	for ctx.Err() == nil {
		freed := t.try(server, alone)
		if freed == nil {
			return true
		}
		select {
		case <-freed:
		case <-ctx.Done():
		}
	}
	return false
}

// try takes a turn, or returns what is closed when it is worth another try.
func (t *turns) try(server string, alone bool) (freed chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.by[server]
	switch {
	case now == nil:
		now = &turn{freed: make(chan struct{})}
		if t.by == nil {
			t.by = map[string]*turn{}
		}
		t.by[server] = now
	case now.alone || alone:
		return now.freed
	}
	now.alone = alone
	now.among++
	return nil
}

func (t *turns) give(server string, alone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.by[server]
	now.among--
	if alone {
		now.alone = false
	}
	if now.among == 0 {
		delete(t.by, server)
		close(now.freed)
	}
}
