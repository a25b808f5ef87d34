package local

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// Collect copies the logs of the nodes' programs and of all containers, and notes what each node's network and containers look like.
func (p *provider) Collect(ctx context.Context, dir string) error {
	var all []error
	for _, c := range p.all() {
		to := filepath.Join(dir, c.Name())
		all = append(all,
			copyFiles(c.node.path(dirLogs), filepath.Join(to, dirLogs)),
			copyFiles(c.node.path(dirPodLogs), filepath.Join(to, dirPodLogs)),
			c.noteState(ctx, to))
	}
	return errors.Join(all...)
}

// copyFiles copies a tree of plain files, most of which are still written to. What is missing, or goes away meanwhile, is
// left out.
func copyFiles(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return ignoreMissing(err)
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		return ignoreMissing(copyFile(path, filepath.Join(to, relative)))
	})
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// noteState writes what cannot be read from any file. There is nothing to write of a node that is down.
func (c *cluster) noteState(ctx context.Context, dir string) error {
	p, err := c.running()
	if err != nil {
		return nil //nolint:nilerr // why it is down is in its log
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var all []error
	for file, args := range map[string][]string{
		"ip-address.txt": {"ip", "address"}, "ip-route.txt": {"ip", "route"},
		"iptables.txt": {"iptables-save"}, "containers.txt": {"ctr", "--namespace=k8s.io", "tasks", "list"},
	} {
		output, err := command.Run(ctx, nil, onNode(p.Pid(), args...)...)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), output, 0o600)
		}
		all = append(all, err)
	}
	return errors.Join(all...)
}
