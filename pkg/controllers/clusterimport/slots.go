package clusterimport

import (
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"
)

// slots limit the number of concurrent calls, in total and for each workspace. A workspace gets no further slot while it has as many as are free, so
// that only many workspaces together can occupy all of them. When a slot becomes free, the workspaces with waiting calls take turns. The lock of
// memberCalls guards the slots.
type slots struct {
	total, perWorkspace int
	taken               int
	used                map[string]int       // by workspace
	waiting             map[string][]callKey // by workspace, the first to come first
	turns               []string             // workspaces with waiting calls, the next first
}

func newSlots(total, perWorkspace int) *slots {
	return &slots{total: total, perWorkspace: perWorkspace, used: map[string]int{}, waiting: map[string][]callKey{}}
}

// take takes a slot if one is free that the workspace may have. It does not overtake a waiting call: after each release, next is called until it has
// given every free slot to the calls that may have one.
func (s *slots) take(workspace string) bool {
	if s.used[workspace] >= min(s.perWorkspace, s.total-s.taken) {
		return false
	}
	s.taken++
	s.used[workspace]++
	return true
}

func (s *slots) release(workspace string) {
	s.taken--
	if s.used[workspace]--; s.used[workspace] == 0 {
		delete(s.used, workspace)
	}
}

// join puts a call at the end of the queue of its workspace.
func (s *slots) join(key callKey) {
	workspace := key.cluster.Namespace
	if len(s.waiting[workspace]) == 0 {
		s.turns = append(s.turns, workspace)
	}
	s.waiting[workspace] = append(s.waiting[workspace], key)
}

// leave takes a call out of the queue.
func (s *slots) leave(key callKey) {
	workspace := key.cluster.Namespace
	s.setWaiting(workspace, slices.DeleteFunc(s.waiting[workspace], func(other callKey) bool { return other == key }))
}

func (s *slots) setWaiting(workspace string, calls []callKey) {
	s.waiting[workspace] = calls
	if len(calls) == 0 {
		delete(s.waiting, workspace)
		s.turns = slices.DeleteFunc(s.turns, func(other string) bool { return other == workspace })
	}
}

// next takes a free slot for the next waiting call that may have it, and takes the call out of the queue.
func (s *slots) next() (key callKey, ok bool) {
	turn := slices.IndexFunc(s.turns, s.take)
	if turn < 0 {
		return key, false
	}
	workspace := s.turns[turn]
	s.turns = append(slices.Delete(s.turns, turn, turn+1), workspace)
	key = s.waiting[workspace][0]
	s.setWaiting(workspace, s.waiting[workspace][1:])
	return key, true
}

// workspaceSemaphores has a semaphore of size largeResponses for each workspace. The zero workspaceSemaphores are ready to use.
type workspaceSemaphores struct{ byWorkspace sync.Map }

func (s *workspaceSemaphores) of(workspace string) *semaphore.Weighted {
	found, _ := s.byWorkspace.LoadOrStore(workspace, semaphore.NewWeighted(largeResponses))
	return found.(*semaphore.Weighted)
}
