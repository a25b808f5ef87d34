package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// finish ends everything, and decides what stays: nothing, or after a failure the logs.
func (d *demo) finish(ctx context.Context, result error) error {
	interrupted := ctx.Err() != nil
	if interrupted {
		d.screen.say("Stopping everything ...")
	}
	stopped := d.tearDownAll()
	if result == nil || interrupted {
		if err := errors.Join(stopped, os.RemoveAll(d.dir)); err != nil {
			return err
		}
		d.screen.say("Everything was stopped, and nothing is left behind.")
		return result
	}
	logs, kept := d.keepLogs()
	d.screen.failure(d.podLogs(), logs)
	return errors.Join(result, stopped, kept)
}

// keepLogs leaves only logs: data, certificates and tokens go.
func (d *demo) keepLogs() (dir string, err error) {
	var all []error
	for _, c := range d.clusters() {
		all = append(all, moveLogs(c.dir, c.logs), os.RemoveAll(c.dir), removeIfThere(c.kubeconfig))
	}
	all = append(all, os.RemoveAll(filepath.Join(d.dir, "pods")))
	return filepath.Join(d.dir, "logs"), errors.Join(all...)
}

func removeIfThere(file string) error {
	if err := os.Remove(file); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
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

// podLogs are the logs of hub and agents, in the order of the clusters.
func (d *demo) podLogs() []string {
	var all []string
	for _, c := range d.clusters() {
		files, _ := filepath.Glob(filepath.Join(c.logs, systemNamespace+"_*.log")) // fails only on a bad pattern
		all = append(all, files...)
	}
	return all
}
