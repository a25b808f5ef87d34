// Package local runs clusters of one node each as processes of this machine: a complete Kubernetes with kubelet and containerd in
// namespaces of its own, without a container engine and without a registry. It needs Linux and root.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// folderName is the prefix of the directory of a provider, which Close removes, or the next provider if this process is killed.
const folderName = "muster-e2e-clusters"

// setupDeadline limits the preparations before the first cluster; most of the time is for compiling the helper programs.
const setupDeadline = 5 * time.Minute

// provider implements clusters.Provider.
type provider struct {
	options Options
	dir     string
	lock    *lock
	system  system
	network *network

	mutex    sync.Mutex // guards the fields below
	clusters []*cluster
	closed   bool
}

// New prepares this machine for clusters. Two processes of a machine can have clusters at the same time: New waits while two other
// processes have clusters, and removes the remains of killed processes.
func New(o Options) (clusters.Provider, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	lock, err := acquire(lockFiles(), o.Log)
	if err != nil {
		return nil, err
	}
	p := &provider{options: o, lock: lock}
	if err := p.prepare(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *provider) prepare() error {
	ctx, cancel := context.WithTimeout(context.Background(), setupDeadline)
	defer cancel()
	if err := p.findSystem(); err != nil {
		return err
	}
	if err := p.removeLeftovers(ctx); err != nil {
		return err
	}
	if err := p.makeFolder(); err != nil {
		return err
	}
	if err := buildHelpers(ctx, p.system.helpers); err != nil {
		return err
	}
	var err error
	p.network, err = startNetwork(ctx, p.lock.lane, p.dir, filepath.Join(p.system.helpers, "init"))
	return err
}

func (p *provider) findSystem() error {
	var err error
	p.system.binaries = p.options.Binaries
	if p.system.containerd, err = exec.LookPath("containerd"); err != nil {
		return err
	}
	if p.system.cni, err = cniFolder("/usr/lib/cni", "/opt/cni/bin"); err != nil {
		return err
	}
	p.system.cgroups, err = findHierarchy(cgroupMount)
	return err
}

func (p *provider) makeFolder() error {
	var err error
	if p.options.Dir == "" {
		p.dir, err = os.MkdirTemp("", folderName+"-")
	} else if p.dir, err = filepath.Abs(filepath.Join(p.options.Dir, folderName)); err == nil {
		err = os.MkdirAll(p.dir, 0o700)
	}
	if err != nil {
		return err
	}
	p.system.helpers = filepath.Join(p.dir, "helpers")
	if p.system.snapshotter, err = snapshotter(p.dir); err != nil {
		return err
	}
	return p.lock.keep(p.dir)
}

// Create creates a cluster and returns when it runs pods.
func (p *provider) Create(ctx context.Context, name string) (clusters.Cluster, error) {
	c, err := p.add(name)
	if err != nil {
		return nil, err
	}
	if err := c.create(ctx); err != nil {
		return nil, fmt.Errorf("cluster %q: %w", name, errors.Join(err, c.stop()))
	}
	return c, nil
}

// add reserves a name and a number. They are not used again, because the directory of a failed cluster is kept for its logs.
func (p *provider) add(name string) (*cluster, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closed {
		return nil, errors.New("the provider of the clusters is closed")
	}
	var names []string
	for _, c := range p.clusters {
		names = append(names, c.Name())
	}
	if err := clusters.CheckName(name, names); err != nil {
		return nil, err
	}
	if len(p.clusters) == maxClusters {
		return nil, fmt.Errorf("cluster %q: the network has addresses for %d clusters", name, maxClusters)
	}
	c := &cluster{provider: p, cuts: map[string]int{}, node: node{
		addresses: addresses{lane: p.lock.lane, number: len(p.clusters)}, cluster: name, dir: filepath.Join(p.dir, name), system: p.system,
	}}
	p.clusters = append(p.clusters, c)
	return c, nil
}

// Close ends all clusters and removes their data.
func (p *provider) Close() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var all []error
	for _, c := range p.clusters {
		all = append(all, c.stop())
	}
	if p.network != nil {
		p.network.stop()
	}
	if p.dir != "" {
		all = append(all, os.RemoveAll(p.dir))
	}
	return errors.Join(append(all, p.lock.release())...)
}

func (p *provider) logf(format string, args ...any) {
	fmt.Fprintf(p.options.Log, "clusters: "+format+"\n", args...)
}

// Collect copies the logs of the nodes' programs and of all containers, and the state of each node's network and containers.
func (p *provider) Collect(ctx context.Context, dir string) error {
	p.mutex.Lock()
	collected := slices.Clone(p.clusters)
	p.mutex.Unlock()
	var all []error
	for _, c := range collected {
		to := filepath.Join(dir, c.Name())
		all = append(all,
			copyFiles(c.node.path(dirLogs), filepath.Join(to, dirLogs)),
			copyFiles(c.node.path(dirPodLogs), filepath.Join(to, dirPodLogs)),
			c.noteState(ctx, to))
	}
	return errors.Join(all...)
}

// copyFiles copies a tree of plain files, most of which are still being written. Files that do not exist any more are left out.
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

// noteState writes the state that no file contains. It writes nothing for a node that is down.
func (c *cluster) noteState(ctx context.Context, dir string) error {
	p, err := c.running()
	if err != nil {
		return nil //nolint:nilerr // the reason is in its log
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
