//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/evidence"
	"github.com/muster-fleet/muster/internal/inventory"
)

// suite is what all scenes share.
type suite struct {
	options     options
	provider    clusters.Provider
	hub, member *cluster
	before      map[*cluster]inventory.Inventory // before anything was installed

	mu        sync.Mutex
	installed bool       // the charts of this commit are on the hub
	atEnd     bool       // all tests are over, and somebody looks around
	chart     sync.Mutex // held by the scene whose agent the chart fleet-agent installed: there is one per cluster
}

var errInterrupted = errors.New("the suite has not come to its end")

// shared is made by TestMain, because two clusters are too dear to be made for each test.
var shared *suite

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	stop, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	s, err := newSuite()
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
	go s.closeOnSignal(stop, over)

	if err := s.start(stop); err != nil {
		return failed("starting the clusters", errors.Join(err, s.collect(filepath.Join(s.options.output, "start"))))
	}
	shared = s
	code = m.Run()
	s.wait(stop)
	if err := s.finish(); err != nil {
		return failed("the end of the suite", errors.Join(err, s.collect(filepath.Join(s.options.output, "end"))))
	}
	return code
}

func failed(when string, err error) int {
	fmt.Fprintf(os.Stderr, "e2e: %s: FAILED: %v\n", when, err)
	return 1
}

// closeOnSignal removes the clusters when somebody interrupts the suite: m.Run does not return then. Who waits at the end
// goes on with the end instead.
func (s *suite) closeOnSignal(stop context.Context, over <-chan struct{}) {
	select {
	case <-over:
	case <-stop.Done():
		if s.isAtEnd() {
			return
		}
		fmt.Fprintln(os.Stderr, "e2e: interrupted: removing the clusters")
		os.Exit(failed("interrupted", errors.Join(errInterrupted, s.provider.Close())))
	}
}

func newSuite() (*suite, error) {
	o, err := readOptions()
	if err != nil {
		return nil, err
	}
	provider, err := newProvider(o)
	if err != nil {
		return nil, err
	}
	return &suite{options: o, provider: provider, before: map[*cluster]inventory.Inventory{}}, nil
}

// startTime is what two clusters may take, on a machine that has other things to do.
const startTime = 5 * time.Minute

// start makes both clusters at the same time.
func (s *suite) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	started := time.Now()
	group, together := errgroup.WithContext(ctx)
	for name, into := range map[string]**cluster{"hub": &s.hub, "member": &s.member} {
		group.Go(func() (err error) {
			*into, err = newCluster(together, s.provider, name, s.options.archives())
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	fmt.Printf("e2e: hub and member are up after %.1fs: %s, %s\n", time.Since(started).Seconds(), s.hub.Kubeconfig(), s.member.Kubeconfig())
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

// collect writes what there is to know about both clusters into dir.
func (s *suite) collect(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for _, c := range s.clusters() {
		errs = append(errs, evidence.Collect(ctx, c.config, filepath.Join(dir, c.Name())))
	}
	return errors.Join(append(errs, s.provider.Collect(ctx, filepath.Join(dir, "provider")))...)
}
