package clusterimport

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/semaphore"
)

// slots limit the number of concurrent calls, in total and for each workspace. A workspace gets no further slot while it has as many as are free, so
// that only many workspaces together can occupy all of them. When a slot becomes free, the workspaces with waiting calls take turns.
type slots struct {
	total, perWorkspace int

	mu      sync.Mutex
	taken   int
	used    map[string]int             // by workspace
	waiting map[string][]chan struct{} // by workspace, the first to come first; a slot is given by closing the channel
	turns   []string                   // workspaces with waiting calls, the next first
}

func newSlots(total, perWorkspace int) *slots {
	return &slots{total: total, perWorkspace: perWorkspace, used: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// tryAcquire takes a slot for the workspace if one is free. It does not overtake a waiting call: give has given every free slot to the calls that may
// have one.
func (s *slots) tryAcquire(workspace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == s.total || s.used[workspace] >= min(s.perWorkspace, s.total-s.taken) {
		return false
	}
	s.taken++
	s.used[workspace]++
	return true
}

// acquire waits for a slot; it returns false if ctx ends first.
func (s *slots) acquire(ctx context.Context, workspace string) bool {
	given := make(chan struct{})
	s.mu.Lock()
	if len(s.waiting[workspace]) == 0 {
		s.turns = append(s.turns, workspace)
	}
	s.waiting[workspace] = append(s.waiting[workspace], given)
	s.give()
	s.mu.Unlock()

	select {
	case <-given:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.waiting[workspace], given); at >= 0 {
		s.setWaiting(workspace, slices.Delete(s.waiting[workspace], at, at+1))
	} else {
		s.free(workspace) // give has given the slot in the meantime
	}
	return false
}

func (s *slots) release(workspace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free(workspace)
}

func (s *slots) free(workspace string) {
	s.taken--
	if s.used[workspace]--; s.used[workspace] == 0 {
		delete(s.used, workspace)
	}
	s.give()
}

// give gives the free slots to the next workspaces that may have them.
func (s *slots) give() {
	for s.taken < s.total {
		most := min(s.perWorkspace, s.total-s.taken)
		turn := slices.IndexFunc(s.turns, func(workspace string) bool { return s.used[workspace] < most })
		if turn < 0 {
			return
		}
		workspace := s.turns[turn]
		s.turns = append(slices.Delete(s.turns, turn, turn+1), workspace)
		s.taken++
		s.used[workspace]++
		close(s.waiting[workspace][0])
		s.setWaiting(workspace, s.waiting[workspace][1:])
	}
}

func (s *slots) setWaiting(workspace string, waiting []chan struct{}) {
	if len(waiting) > 0 {
		s.waiting[workspace] = waiting
		return
	}
	delete(s.waiting, workspace)
	s.turns = slices.DeleteFunc(s.turns, func(other string) bool { return other == workspace })
}

// workspaceSemaphores has a semaphore of size largeResponses for each workspace. The zero workspaceSemaphores are ready to use.
type workspaceSemaphores struct{ byWorkspace sync.Map }

func (s *workspaceSemaphores) of(workspace string) *semaphore.Weighted {
	found, _ := s.byWorkspace.LoadOrStore(workspace, semaphore.NewWeighted(largeResponses))
	return found.(*semaphore.Weighted)
}
