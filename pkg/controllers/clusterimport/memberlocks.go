package clusterimport

import (
	"context"
	"slices"
	"sync"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// onMember runs do while it holds the lock of the member, shared or alone, and then closes the connection. Its request for the UID of the
// member is the first request of a call, so it also shows whether the server answers.
func (c *memberCalls) onMember(
	ctx context.Context, m *memberClient, workspace string, lock lockMember, do func(context.Context) *failure,
) *failure {
	defer m.close()
	uid, err := m.uid(ctx)
	if err != nil {
		return diagnose(m.server, "connecting to the member", err)
	}
	member := string(uid)
	if member == "" { // no other workspace uses this lock: a UID has no slash
		member = workspace + "/" + m.server
	}
	return lock(ctx, member, workspace, do)
}

// lockMember is memberLocks.shared, or what memberLocks.alone returns.
type lockMember = func(ctx context.Context, member, workspace string, do func(context.Context) *failure) *failure

// memberLocks are read-write locks, one for each member, that a removal passes after a while. The UID of the Namespace kube-system identifies a member. The address of the server does
// not: a member has several addresses, and a user of one workspace could hold the lock of another workspace's member by writing its address
// into a kubeconfig. A removal locks its member exclusively: it first checks which Cluster the agent belongs to and then
// removes the agent, and would remove an agent that an import of another Cluster installed in between. Imports share the lock. The removal of
// agents from earlier namespaces shares it too: it checks whose agent is there again before it deletes anything, and must not keep imports waiting. The zero memberLocks are ready to use.
//
// A call waits for those that came before it. A removal waits for calls of other workspaces only for the time that alone is given, and then runs
// beside them; later calls wait for it. Otherwise a server that reports the UID of another member, and holds its calls for a minute, would prevent
// the removal, which has half that time.
type memberLocks struct {
	mu       sync.Mutex
	byMember map[string][]*lockedCall // that hold the lock or wait for it, in the order in which they came
}

type lockedCall struct {
	workspace        string
	alone, isRunning bool
	ended            chan struct{}
}

// shared runs do while no call has the member exclusively.
func (l *memberLocks) shared(ctx context.Context, member, workspace string, do func(context.Context) *failure) *failure {
	return l.locked(ctx, member, &lockedCall{workspace: workspace}, nil, do)
}

// alone returns a function that runs do while no other call uses the member. It waits for calls of other workspaces for the given time at most.
func (l *memberLocks) alone(patience time.Duration) lockMember {
	return func(ctx context.Context, member, workspace string, do func(context.Context) *failure) *failure {
		patient, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return l.locked(ctx, member, &lockedCall{workspace: workspace, alone: true}, patient.Done(), do)
	}
}

func (l *memberLocks) locked(
	ctx context.Context, member string, call *lockedCall, impatient <-chan struct{}, do func(context.Context) *failure,
) *failure {
	call.ended = make(chan struct{})
	l.mu.Lock()
	if l.byMember == nil {
		l.byMember = map[string][]*lockedCall{}
	}
	l.byMember[member] = append(l.byMember[member], call)
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(call.ended)
		l.byMember[member] = slices.DeleteFunc(l.byMember[member], func(other *lockedCall) bool { return other == call })
		if len(l.byMember[member]) == 0 {
			delete(l.byMember, member)
		}
	}()

	for isPatient := true; ; {
		l.mu.Lock()
		other := call.blockedBy(l.byMember[member], isPatient)
		call.isRunning = other == nil
		l.mu.Unlock()
		if other == nil {
			return do(ctx)
		}
		select {
		case <-other.ended:
		case <-impatient:
			isPatient, impatient = false, nil
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return transientf(fleet.ReasonMemberError, "timed out waiting for another call to this member to end")
		}
	}
}

// blockedBy returns one of the calls beside which this one may not run.
func (c *lockedCall) blockedBy(calls []*lockedCall, isPatient bool) *lockedCall {
	cameBefore := true
	for _, other := range calls {
		switch {
		case other == c:
			cameBefore = false
		case !c.alone && !other.alone: // they share the lock
		case !cameBefore && !other.isRunning: // the other one waits for this one
		case c.alone && !isPatient && other.workspace != c.workspace:
		default:
			return other
		}
	}
	return nil
}
