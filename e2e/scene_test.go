//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/rand"
)

// scenePrefix is the prefix of the ID of every scene.
const scenePrefix = "e2e-"

// scene is one test: numbered steps, and names of its own on both clusters.
type scene struct {
	*testing.T
	*suite
	id       string // part of the name of each object that the scene creates
	started  time.Time
	steps    int
	collect  sync.Once
	down     *cluster    // the crashed cluster
	enrolled []*enrolled // the Clusters that the scene has created
}

// begin starts a scene on a hub with the charts of this commit. Other scenes may use it at the same time.
func begin(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	s := beginOn(t, shared.beside(t))
	s.ensureInstalled(t)
	return s
}

// beginAlone is begin for a scene that stops, disconnects or reconfigures a cluster.
func beginAlone(t *testing.T) *scene {
	t.Helper()
	s := beginBare(t)
	s.ensureInstalled(t)
	return s
}

// beginBare starts a scene, alone, on a hub where nothing may be installed.
func beginBare(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	return beginOn(t, shared.alone(t))
}

func beginOn(t *testing.T, pair *suite) *scene {
	t.Helper()
	pair.ensureStarted(t)
	s := &scene{T: t, suite: pair, id: scenePrefix + rand.String(5), started: time.Now()}
	// A hub that does not start is the most likely failure, and happens before there is anything to undo.
	t.Cleanup(s.collectIfFailed)
	return s
}

// step runs one step, and logs its number and duration even if it fails.
func (s *scene) step(what string, do func()) {
	s.Helper()
	s.steps++
	began, done := time.Now(), false
	number := s.steps
	defer func() {
		result := "ok"
		if !done {
			result = "FAILED"
		}
		s.Logf("%6.1fs  %2d. %s: %s (%.1fs)", time.Since(s.started).Seconds(), number, what, result, time.Since(began).Seconds())
	}()
	do()
	done = true
}

// undo registers the reversal of a step for the end of the scene, in reverse order, even if the scene fails. Before the first reversal after
// a failure, the state of both clusters is collected.
func (s *scene) undo(what string, do func(ctx context.Context) error) {
	s.Cleanup(func() {
		s.Helper()
		s.collectIfFailed()
		ctx, cancel := context.WithTimeout(context.Background(), 3*patience) // of several steps
		defer cancel()
		began := time.Now()
		if err := do(ctx); err != nil {
			s.Errorf("at the end: %s: %v", what, err)
			s.collectIfFailed()
		}
		s.Logf("%6.1fs  at the end: %s (%.1fs)", time.Since(s.started).Seconds(), what, time.Since(began).Seconds())
	})
}

func (s *scene) collectIfFailed() {
	s.Helper()
	if !s.Failed() {
		return
	}
	s.collect.Do(func() {
		dir := filepath.Join(s.options.output, s.Name())
		if err := s.suite.collect(dir); err != nil {
			s.Logf("not everything could be collected: %v", err)
		}
		s.Logf("logs, events and objects of both clusters are in %s", dir)
	})
}

// fail ends the scene.
func (s *scene) fail(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// name returns a name of this scene.
func (s *scene) named(what string) string { return fmt.Sprintf("%s-%s", s.id, what) }
