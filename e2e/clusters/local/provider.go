// Package local makes clusters of one node each out of processes of this machine: a whole Kubernetes with kubelet and
// containerd in namespaces of its own, without any container engine and without a registry. Linux and root only.
package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/e2e/clusters"
)

// folderName begins the name of the folder that is removed with all its content, by us or by whoever comes after us.
const folderName = "muster-e2e-clusters"

// setupDeadline bounds everything before the first cluster; compiling our helpers is most of it.
const setupDeadline = 5 * time.Minute

// provider implements clusters.Provider.
type provider struct {
	options Options
	dir     string
	lock    *lock
	system  system
	network *network

	mutex    sync.Mutex // guards what follows
	clusters []*cluster
	closed   bool
}

// New prepares this machine for clusters. Two processes of a machine can have clusters at a time: New waits while two others have,
// and removes what those that were killed have left.
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

// Create makes a cluster and returns when it runs pods.
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

// add takes a name and a number, for good: the folder of a cluster that failed is kept for its logs.
func (p *provider) add(name string) (*cluster, error) {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return nil, fmt.Errorf("cluster %q: %s", name, strings.Join(problems, "; "))
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closed {
		return nil, errors.New("the provider of the clusters is closed")
	}
	for _, c := range p.clusters {
		if c.node.cluster == name {
			return nil, fmt.Errorf("cluster %q: there is one of that name already", name)
		}
	}
	if len(p.clusters) == maxClusters {
		return nil, fmt.Errorf("cluster %q: there are no addresses for more than %d clusters", name, maxClusters)
	}
	c := newCluster(p, node{
		addresses: addresses{lane: p.lock.lane, number: len(p.clusters)}, cluster: name, dir: filepath.Join(p.dir, name), system: p.system,
	})
	p.clusters = append(p.clusters, c)
	return c, nil
}

func (p *provider) all() []*cluster {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return append([]*cluster(nil), p.clusters...)
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
