// Package demo runs a hub and two members on one machine, with real control planes and the real programs, and registers a cluster in each
// of the three ways.
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

// Options are the options of the demo.
type Options struct {
	// Out receives the output. Required.
	Out io.Writer
	// Terminal allows colours and lines that are overwritten.
	Terminal bool
	// Stay keeps everything running after the last step until the context ends. Without it, everything is stopped after the last step.
	Stay bool
	// Programs is the directory with fleetcontroller, fleetagent and muster; empty means the directory of the running program.
	Programs string
	// ControlPlanes is the directory with etcd, kube-apiserver and kube-controller-manager; empty means that the demo finds or builds
	// them.
	ControlPlanes string
	// Patience limits each step; 0 means five minutes, which is sufficient on a busy machine.
	Patience time.Duration
}

// errInterrupted is returned if the context ends before the last step does.
var errInterrupted = errors.New("interrupted; all processes were stopped and all files removed")

// Run runs the demo. When it returns, every process that it started has ended. Only a failure leaves files: the logs, in a directory that
// is printed.
func Run(ctx context.Context, o Options) error { return run(ctx, o, steps()) }

func run(ctx context.Context, o Options, steps []step) error {
	d, err := newDemo(ctx, o)
	if err != nil {
		return err
	}
	err = d.runSteps(ctx, steps)
	if err == nil && o.Stay {
		d.screen.stay(d)
		<-ctx.Done()
	}
	return d.finish(ctx, err)
}

// demo is one run.
type demo struct {
	options    Options
	screen     *screen
	dir        string
	hub        *cluster
	east       *cluster // the hub has its kubeconfig
	west       *cluster // its agent is installed with a token
	page       *page    // nil until its step
	registered []registeredCluster

	before  inventory.Inventory // of west, before the installation
	deleted []string            // deleted Clusters
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

// programs returns the directory of the programs if it contains all of them.
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

// step is one step of the demo.
type step struct {
	title string
	// like is the command with the same effect; empty if there is none.
	like string
	// run performs the step. The note describes the result.
	run func(context.Context, *demo) (note string, err error)
}

func (d *demo) runSteps(ctx context.Context, steps []step) error {
	d.screen.title("Muster: a hub and two members on this machine; clusters register in three ways")
	for _, s := range steps {
		if err := d.runStep(ctx, s); err != nil {
			return err
		}
	}
	d.screen.result(d.registered, d.deleted)
	return nil
}

func (d *demo) runStep(ctx context.Context, s step) error {
	limited, cancel := context.WithTimeout(ctx, d.options.Patience)
	defer cancel()
	done := d.screen.begin(s)
	note, err := s.run(limited, d)
	if ctx.Err() != nil {
		err = errInterrupted
	}
	done(note, err)
	if err != nil && !errors.Is(err, errInterrupted) {
		return fmt.Errorf("%s: %w", s.title, err)
	}
	return err
}

// finish stops everything and removes all files. After a failure it keeps the logs.
func (d *demo) finish(ctx context.Context, result error) error {
	interrupted := ctx.Err() != nil
	if interrupted {
		d.screen.print("", "Stopping everything ...")
	}
	stopped := errors.Join(d.page.close(), d.tearDownAll())
	if result == nil || interrupted {
		if err := errors.Join(stopped, os.RemoveAll(d.dir)); err != nil {
			return err
		}
		d.screen.print("", "Everything was stopped, and all files were removed.")
		return result
	}
	logs, kept := d.keepLogs()
	d.screen.failure(d.podLogs(), logs)
	return errors.Join(result, stopped, kept)
}

// keepLogs removes everything except the logs: data, certificates and tokens.
func (d *demo) keepLogs() (dir string, err error) {
	var all []error
	for _, c := range d.clusters() {
		all = append(all, moveLogs(c.dir, c.logs), os.RemoveAll(c.dir), os.RemoveAll(c.kubeconfig))
	}
	all = append(all, os.RemoveAll(filepath.Join(d.dir, "pods")))
	return filepath.Join(d.dir, "logs"), errors.Join(all...)
}

func moveLogs(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.log"))
	if err != nil || len(files) == 0 {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	var all []error
	for _, file := range files {
		all = append(all, os.Rename(file, filepath.Join(to, filepath.Base(file))))
	}
	return errors.Join(all...)
}

// podLogs returns the log files of the hub and the agents, in the order of the clusters.
func (d *demo) podLogs() []string {
	var all []string
	for _, c := range d.clusters() {
		files, _ := filepath.Glob(filepath.Join(c.logs, systemNamespace+"_*.log")) // fails only on a bad pattern
		all = append(all, files...)
	}
	return all
}
