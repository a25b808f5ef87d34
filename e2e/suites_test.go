//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/providers"
)

// suites are the pairs of clusters that scenes use at the same time.
type suites struct {
	options  options
	provider clusters.Provider
	pairs    []*suite

	mu    sync.Mutex
	atEnd bool // all tests have ended, and the clusters are kept for inspection
}

// shared is created by TestMain, because clusters are too expensive for each test.
var shared *suites

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	early, cancel := clusters.Early()
	defer cancel()
	s, err := newSuites()
	if err != nil {
		return failed("", err)
	}
	defer func() {
		if err := s.provider.Close(); err != nil {
			code = failed("removing the clusters", err)
		}
	}()
	over := make(chan struct{})
	defer close(over)
	go s.closeEarly(early, over)

	shared = s
	code = m.Run()
	s.wait()
	if err := together(s.started(), (*suite).finish); err != nil {
		return failed("the end of the suite", errors.Join(err, together(s.started(), func(s *suite) error {
			return s.collect(filepath.Join(s.options.output, "end"))
		})))
	}
	return code
}

func failed(when string, err error) int {
	fmt.Fprintf(os.Stderr, "e2e: %s: FAILED: %v\n", when, err)
	return 1
}

// closeEarly removes the clusters when the suite is interrupted or out of time, because m.Run does not return then.
func (s *suites) closeEarly(early context.Context, over <-chan struct{}) {
	select {
	case <-over:
	case <-early.Done():
		if s.isAtEnd() {
			return
		}
		os.Exit(clusters.EndEarly(early, s.provider.Close))
	}
}

func newSuites() (*suites, error) {
	o, err := readOptions()
	if err != nil {
		return nil, err
	}
	provider, err := providers.FromEnvironment(o.output)
	if err != nil {
		return nil, err
	}
	return &suites{options: o, provider: provider, pairs: []*suite{newSuite(o, provider, ""), newSuite(o, provider, "2")}}, nil
}

// started are the pairs that have been used.
func (s *suites) started() (started []*suite) {
	for _, pair := range s.pairs {
		if pair.hub != nil && pair.member != nil {
			started = append(started, pair)
		}
	}
	return started
}

// alone is a pair that no other scene uses until the test ends.
func (s *suites) alone(t *testing.T) (found *suite) {
	t.Helper()
	err := pace.Until(t.Context(), func(context.Context) (bool, string) {
		for _, pair := range s.pairs {
			if pair.playing.TryLock() {
				found = pair
				return true, ""
			}
		}
		return false, "other scenes use all clusters"
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(found.playing.Unlock)
	return found
}

// beside is the pair for scenes that do not affect each other.
func (s *suites) beside(t *testing.T) *suite {
	t.Helper()
	pair := s.pairs[len(s.pairs)-1]
	pair.playing.RLock()
	t.Cleanup(pair.playing.RUnlock)
	return pair
}
