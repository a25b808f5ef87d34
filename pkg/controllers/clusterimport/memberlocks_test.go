package clusterimport

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

func TestMemberLocks(t *testing.T) {
	var locks memberLocks
	t.Run("imports share a member", func(t *testing.T) {
		ran := false
		assert.Nil(t, locks.shared(t.Context(), "m", "ws", func(ctx context.Context) *failure {
			return locks.shared(ctx, "m", "ws", func(context.Context) *failure { ran = true; return nil })
		}))
		assert.True(t, ran)
		assert.Empty(t, locks.byMember, "nothing is kept for a member without calls")
	})
	for name, pair := range map[string][2]lockMember{
		"an import waits for a removal":                                          {locks.alone(patience), locks.shared},
		"a removal waits for an import":                                          {locks.shared, locks.alone(patience)},
		"removals wait for each other":                                           {locks.alone(patience), locks.alone(patience)},
		"a removal waits for calls of its own workspace even if it is impatient": {locks.shared, locks.alone(0)},
	} {
		t.Run(name, func(t *testing.T) {
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			pair[0](t.Context(), "m", "ws", func(ctx context.Context) *failure {
				assert.Nil(t, pair[1](ctx, "another", "ws", succeeds), "other members are independent")
				assert.NotNil(t, pair[1](ended, "m", "ws", mustNotRun(t)))
				return nil
			})
			assert.Empty(t, locks.byMember)
		})
	}
	t.Run("a removal does not wait for calls of other workspaces for longer than its patience", func(t *testing.T) {
		for _, held := range []lockMember{locks.shared, locks.alone(patience)} {
			ran := false
			held(t.Context(), "m", "mallory", func(ctx context.Context) *failure {
				ended, cancel := context.WithCancel(ctx)
				cancel()
				assert.NotNil(t, locks.alone(patience)(ended, "m", "alice", mustNotRun(t)))
				return locks.alone(time.Millisecond)(ctx, "m", "alice", func(context.Context) *failure {
					ran = true
					assert.NotNil(t, locks.shared(ended, "m", "bob", mustNotRun(t)), "an import that comes later waits for it")
					assert.NotNil(t, locks.shared(ended, "m", "mallory", mustNotRun(t)))
					return nil
				})
			})
			assert.True(t, ran)
			assert.Empty(t, locks.byMember)
		}
	})
	t.Run("the next call starts when the member is free", func(t *testing.T) {
		begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan *failure, 1)
		go locks.alone(patience)(t.Context(), "m", "ws", func(context.Context) *failure { close(begun); <-end; return nil })
		<-begun
		go func() { ended <- locks.shared(t.Context(), "m", "ws", succeeds) }()
		close(end)
		select {
		case problem := <-ended:
			assert.Nil(t, problem)
		case <-time.After(2 * time.Minute):
			t.Fatal("it was not started")
		}
	})
}

func TestLockedCall_blockedBy(t *testing.T) {
	shared := func(workspace string, isRunning bool) *lockedCall {
		return &lockedCall{workspace: workspace, isRunning: isRunning}
	}
	alone := func(workspace string, isRunning bool) *lockedCall {
		return &lockedCall{workspace: workspace, alone: true, isRunning: isRunning}
	}
	for _, row := range []struct {
		name          string
		before, after []*lockedCall
		call          *lockedCall
		impatient     bool
		admitted      bool
	}{
		{name: "first import", call: shared("a", false), admitted: true},
		{name: "import beside an import", before: []*lockedCall{shared("a", true)}, call: shared("b", false), admitted: true},
		{name: "import after a removal that waits", before: []*lockedCall{alone("a", false)}, call: shared("b", false)},
		{name: "import before a removal that waits", after: []*lockedCall{alone("a", false)}, call: shared("b", false), admitted: true},
		{name: "import before a removal that has not waited for it", after: []*lockedCall{alone("a", true)}, call: shared("b", false)},
		{name: "removal beside an import", before: []*lockedCall{shared("a", true)}, call: alone("b", false)},
		{name: "impatient removal beside an import", before: []*lockedCall{shared("a", true)}, call: alone("b", false), impatient: true, admitted: true},
		{name: "impatient removal after waiting removals", before: []*lockedCall{alone("a", false)}, call: alone("b", false), impatient: true, admitted: true},
		{name: "impatient removal, two imports, one of its workspace", before: []*lockedCall{shared("a", true), shared("b", true)}, call: alone("b", false), impatient: true},
		{name: "impatient import", before: []*lockedCall{alone("a", true)}, call: shared("b", false), impatient: true},
	} {
		calls := append(append(row.before, row.call), row.after...)
		assert.Equal(t, row.admitted, row.call.blockedBy(calls, !row.impatient) == nil, row.name)
	}
}

// A server that a kubeconfig of one workspace names reports the UID of another workspace's member, and calls to it do not end.
func TestRemoval_heldMember(t *testing.T) {
	var calls memberCalls
	victim, hostile := newFakeMember(t), newFakeMember(t)
	w := newWorkloads(victim)
	held, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 3 {
		begun := make(chan struct{})
		member := hostile.connect(t)
		running.Go(func() {
			calls.onMember(held, member, "mallory", calls.members.shared, func(ctx context.Context) *failure { close(begun); return hangs(ctx) })
		})
		<-begun
	}
	u := removal{
		member: victim.connect(t), cluster: deletedCluster(), namespaces: []string{system},
		releases: func(context.Context, *rest.Config, string) (helmReleases, error) { return w, nil }, deployments: deploymentsOf(),
	}
	ctx, end := context.WithTimeout(t.Context(), callTimeout) // the calls of the other workspace last longer
	defer end()
	assert.Nil(t, calls.onMember(ctx, u.member, "ws", calls.members.alone(pause), u.run))
	assert.NotContains(t, victim.paths(), "/apis/apps/v1/namespaces/"+system+"/deployments/fleet-agent")
	cancel()
	running.Wait()
}

// A user of one workspace writes the address of another workspace's member into a kubeconfig. That must not give
// this user the lock of the other workspace's member.
func TestOnMember(t *testing.T) {
	for _, row := range []struct {
		name      string
		uid       string // of Namespace kube-system behind the other connection
		forbidden bool
		excluded  bool
	}{
		{name: "the same cluster", uid: memberUID, excluded: true},
		{name: "another cluster that is said to have the same address", uid: "0b4f8f8e-6c0a-4b7e-9d7c-0123456789ab"},
		{name: "a cluster that does not show its UID", forbidden: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			var calls memberCalls
			victim, other := newFakeMember(t), newFakeMember(t)
			other.put("/api/v1/namespaces/kube-system", map[string]any{"kind": "Namespace", "metadata": map[string]any{"uid": row.uid}})
			if row.forbidden {
				other.fault = failAt(0, "forbid")
			}
			impostor := other.connect(t)
			impostor.server = victim.URL
			ran := false
			require.Nil(t, calls.onMember(t.Context(), impostor, "mallory", calls.members.alone(patience), func(context.Context) *failure {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				lock := func(ctx context.Context, member, workspace string, do func(context.Context) *failure) *failure {
					if row.excluded {
						cancel() // it would wait
					}
					return calls.members.shared(ctx, member, workspace, do)
				}
				problem := calls.onMember(ctx, victim.connect(t), "alice", lock, func(context.Context) *failure { ran = true; return nil })
				assert.Equal(t, row.excluded, problem != nil)
				return nil
			}))
			assert.Equal(t, !row.excluded, ran)
		})
	}
}

// The lock of a member that does not show its UID is named WORKSPACE/SERVER. A server must not be able to choose that name by reporting a text that is
// no UID.
func TestOnMember_noUID(t *testing.T) {
	for _, uid := range []string{
		"", "member", "alice/https://10.0.0.1", strings.ToUpper(memberUID), memberUID + "\n", "{" + memberUID + "}", strings.Repeat("a", 36), memberUID + memberUID,
	} {
		var calls memberCalls
		m := newFakeMember(t)
		m.put("/api/v1/namespaces/kube-system", map[string]any{"kind": "Namespace", "metadata": map[string]any{"uid": uid}})
		failed := calls.onMember(t.Context(), m.connect(t), "mallory", calls.members.shared, mustNotRun(t))
		require.NotNil(t, failed, uid)
		assert.Contains(t, failed.message, errNotKubernetes.Error())
	}
}
