// Package demo shows Muster at work on one machine: a hub and two members, real control planes with the real programs, and
// a cluster that registers in each of the three ways.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/muster-fleet/muster/internal/inventory"
)

// Options say how to show it.
type Options struct {
	// Out is where a person looks. Required.
	Out io.Writer
	// Terminal allows colours, and lines that change.
	Terminal bool
	// Stay keeps everything up after the last step until the context ends. Without it everything is torn down then.
	Stay bool
	// Programs is the folder with fleetcontroller, fleetagent and muster; empty means the one of the running program.
	Programs string
	// ControlPlanes is the folder with etcd, kube-apiserver and kube-controller-manager; empty means that it is looked for
	// and built if need be.
	ControlPlanes string
	// Patience bounds each step; 0 means five minutes, for a machine that is busy with other things.
	Patience time.Duration
}

// ErrInterrupted is returned when the context ended before the last step did.
var ErrInterrupted = errors.New("interrupted; all processes were stopped and all files removed")

// Run runs the demo. When it returns, every process it started has ended. Files are left only after a failure: the logs,
// in a folder it names.
func Run(ctx context.Context, o Options) error { return run(ctx, o, steps()) }

func run(ctx context.Context, o Options, steps []step) error {
	d, err := newDemo(ctx, o)
	if err != nil {
		return err
	}
	err = d.perform(ctx, steps)
	if err == nil && o.Stay {
		d.screen.stay(d)
		<-ctx.Done()
	}
	return d.finish(ctx, err)
}

// demo is one performance.
type demo struct {
	options Options
	screen  *screen
	dir     string
	hub     *cluster
	east    *cluster // the hub is given its kubeconfig
	west    *cluster // its agent is installed with a token
	arrived []arrival

	before   inventory.Inventory // of west, before anything was installed there
	departed []string            // Clusters that were deleted
}

func newDemo(ctx context.Context, o Options) (*demo, error) {
	if o.Patience == 0 {
		o.Patience = 5 * time.Minute
	}
	var err error
	if o.Programs, err = programs(o.Programs); err != nil {
		return nil, err
	}
	if o.ControlPlanes, err = controlPlanes(ctx, o); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "muster-demo-")
	if err != nil {
		return nil, err
	}
	d := &demo{options: o, dir: dir, screen: newScreen(o.Out, o.Terminal)}
	d.hub, d.east, d.west = d.newCluster("hub"), d.newCluster("east"), d.newCluster("west")
	return d, nil
}

func (d *demo) clusters() []*cluster { return []*cluster{d.hub, d.east, d.west} }

// The programs that the charts' Deployments run.
var programNames = [...]string{"fleetcontroller", "fleetagent"}

// programs finds the folder of the programs and checks that they are there.
func programs(dir string) (string, error) {
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		dir = filepath.Dir(self)
	}
	for _, name := range programNames {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("the demo runs the program %s, which is not in %s: build it with scripts/build: %w", name, dir, err)
		}
	}
	return filepath.Abs(dir)
}

// step is one thing the demo shows.
type step struct {
	title string
	// like is what a person would type for the same; empty when there is nothing to type.
	like string
	// run does it. The note tells what came out, if there is anything to tell.
	run func(context.Context, *demo) (note string, err error)
}

func (d *demo) perform(ctx context.Context, steps []step) error {
	d.screen.title("Muster: a hub and two members on this machine; clusters register in three ways")
	for _, s := range steps {
		if err := d.performOne(ctx, s); err != nil {
			return err
		}
	}
	d.screen.result(d.arrived, d.departed)
	return nil
}

func (d *demo) performOne(ctx context.Context, s step) error {
	limited, cancel := context.WithTimeout(ctx, d.options.Patience)
	defer cancel()
	done := d.screen.begin(s)
	note, err := s.run(limited, d)
	if ctx.Err() != nil {
		err = ErrInterrupted
	}
	done(note, err)
	if err != nil && !errors.Is(err, ErrInterrupted) {
		return fmt.Errorf("%s: %w", s.title, err)
	}
	return err
}
