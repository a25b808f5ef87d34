// Package k3d creates clusters with the k3d and docker command lines: one k3s server each, in a container, on a docker network that they
// share. It needs a docker engine on this machine whose networks this machine can reach, as on Linux.
package k3d

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/command"
)

const (
	// prefix begins the name of every cluster and of the network, so that other clusters are never changed.
	prefix = "muster-e2e-"
	// network is the docker network of all clusters.
	network = prefix + "network"
	// setupDeadline limits the work before the first cluster and after the last one.
	setupDeadline = 5 * time.Minute
)

// Options describes the clusters.
type Options struct {
	// Dir is the directory for kubeconfigs and certificates, in a subdirectory that Close removes. Required.
	Dir string
	// Image is the image of k3s, such as rancher/k3s:v1.36.3-k3s1. Empty means the default of k3d.
	Image string
	// Log receives one line per command; nil means that there is no log.
	Log io.Writer
	// Run runs k3d, docker, kubectl and go. Nil means the real programs.
	Run command.Runner
}

// provider implements clusters.Provider.
type provider struct {
	options Options

	mutex    sync.Mutex // guards the fields below
	clusters []*cluster
	closed   bool
}

// New removes the remains of a killed process, and creates the network. Two processes must not use the same docker engine at the same time:
// they would remove each other's clusters.
func New(o Options) (clusters.Provider, error) {
	if o.Dir == "" {
		return nil, errors.New("k3d: Options.Dir is empty: it is the directory for kubeconfigs")
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Run == nil {
		o.Run = command.Run
	}
	var err error
	if o.Dir, err = filepath.Abs(filepath.Join(o.Dir, prefix+"k3d")); err != nil {
		return nil, err
	}
	p := &provider{options: o}
	ctx, cancel := context.WithTimeout(context.Background(), setupDeadline)
	defer cancel()
	if err := p.prepare(ctx); err != nil {
		return nil, errors.Join(err, os.RemoveAll(o.Dir))
	}
	return p, nil
}

func (p *provider) prepare(ctx context.Context) error {
	if err := p.removeAll(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(p.options.Dir, 0o700); err != nil {
		return err
	}
	if err := command.Build(ctx, p.options.Run, p.options.Dir, "github.com/muster-fleet/muster/e2e/clusters/front"); err != nil {
		return err
	}
	return p.run(ctx, "docker", "network", "create", network)
}

// Create creates a cluster and returns when it runs pods.
func (p *provider) Create(ctx context.Context, name string) (clusters.Cluster, error) {
	c, err := p.add(name)
	if err != nil {
		return nil, err
	}
	if err := c.create(ctx); err != nil {
		return nil, fmt.Errorf("cluster %q: %w", name, err)
	}
	return c, nil
}

func (p *provider) add(name string) (*cluster, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closed {
		return nil, errors.New("the provider of the clusters is closed")
	}
	var names []string
	for _, c := range p.clusters {
		names = append(names, c.name)
	}
	if err := clusters.CheckName(name, names); err != nil {
		return nil, err
	}
	c := &cluster{provider: p, name: name, cuts: map[string]int{}}
	p.clusters = append(p.clusters, c)
	return c, nil
}

// Close removes all clusters, the network and the directory.
func (p *provider) Close() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), setupDeadline)
	defer cancel()
	return errors.Join(p.removeAll(ctx), os.RemoveAll(p.options.Dir))
}

// removeAll removes all clusters with the prefix, including those of other processes, and then the network.
func (p *provider) removeAll(ctx context.Context) error {
	list, err := p.options.Run(ctx, nil, "k3d", "cluster", "list", "--no-headers")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(list)) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, prefix) {
			errs = append(errs, p.run(ctx, "k3d", "cluster", "delete", name))
		}
	}
	found, err := p.options.Run(ctx, nil, "docker", "network", "ls", "--quiet", "--filter", "name=^"+network+"$")
	if err == nil && len(found) > 0 {
		err = p.run(ctx, "docker", "network", "rm", network)
	}
	return errors.Join(append(errs, err)...)
}

func (p *provider) run(ctx context.Context, args ...string) error {
	fmt.Fprintf(p.options.Log, "clusters: %s\n", strings.Join(args, " "))
	_, err := p.options.Run(ctx, nil, args...)
	return err
}

// Collect writes the logs of k3s and of all containers on the nodes.
func (p *provider) Collect(ctx context.Context, dir string) error {
	p.mutex.Lock()
	all := slices.Clone(p.clusters)
	p.mutex.Unlock()
	var errs []error
	for _, c := range all {
		to := filepath.Join(dir, c.name)
		err := os.MkdirAll(to, 0o700)
		if err == nil {
			var log []byte
			// k3s logs to standard error, and so does docker logs then. A Runner returns only standard output.
			if log, err = p.options.Run(ctx, nil, "sh", "-c", "docker logs "+c.node()+" 2>&1"); err == nil {
				err = os.WriteFile(filepath.Join(to, "k3s.log"), log, 0o600)
			}
		}
		errs = append(errs, err, p.run(ctx, "docker", "cp", c.node()+":/var/log/pods", filepath.Join(to, "pods")))
	}
	return errors.Join(errs...)
}
