//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/evidence"
	"github.com/muster-fleet/muster/internal/inventory"
)

// suite is a pair of clusters with the state that its scenes share.
type suite struct {
	options     options
	provider    clusters.Provider
	suffix      string // of the names of its clusters
	hub, member *cluster
	before      map[*cluster]inventory.Inventory // before anything was installed

	start   sync.Once
	failure error
	playing sync.RWMutex // held by a scene that must be alone, and together by those that need not

	mu        sync.Mutex
	installed bool       // the charts of this commit are on the hub
	chart     sync.Mutex // held by the scene whose agent the chart fleet-agent installed: there is one per cluster
}

func newSuite(o options, provider clusters.Provider, suffix string) *suite {
	return &suite{options: o, provider: provider, suffix: suffix, before: map[*cluster]inventory.Inventory{}}
}

// ensureStarted creates the clusters before the first scene that uses them.
func (s *suite) ensureStarted(t *testing.T) {
	t.Helper()
	s.start.Do(func() {
		if s.failure = s.startBoth(context.WithoutCancel(t.Context())); s.failure != nil {
			s.failure = errors.Join(s.failure, s.collect(filepath.Join(s.options.output, "start")))
		}
	})
	if s.failure != nil {
		t.Fatalf("starting the clusters: %v", s.failure)
	}
}

// startTime limits the start of two clusters on a busy machine.
const startTime = 5 * time.Minute

// startBoth creates both clusters at the same time.
func (s *suite) startBoth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	started := time.Now()
	group, together := errgroup.WithContext(ctx)
	for name, into := range map[string]**cluster{"hub": &s.hub, "member": &s.member} {
		group.Go(func() (err error) {
			*into, err = newCluster(together, s.provider, name+s.suffix, s.options.archives())
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	fmt.Printf("e2e: a hub and a member are up after %.1fs: %s, %s\n", time.Since(started).Seconds(), s.hub.Kubeconfig(), s.member.Kubeconfig())
	for _, c := range s.clusters() {
		var err error
		if s.before[c], err = inventory.Take(ctx, c.config); err != nil {
			return err
		}
	}
	return nil
}

func (s *suite) clusters() (up []*cluster) {
	for _, c := range []*cluster{s.hub, s.member} {
		if c != nil {
			up = append(up, c)
		}
	}
	return up
}

// collect writes the logs and objects of both clusters into dir.
func (s *suite) collect(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for _, c := range s.clusters() {
		errs = append(errs, evidence.Collect(ctx, c.config, filepath.Join(dir, c.Name())))
	}
	return errors.Join(append(errs, s.provider.Collect(ctx, filepath.Join(dir, "provider")))...)
}
