// Package k3d makes clusters by the k3d and docker command lines: one k3s server each, in a container, on a docker network
// that they share. It needs a docker engine on this machine whose networks this machine can reach, as on Linux.
package k3d

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// prefix begins the name of every cluster and of the network, so that nobody's own "hub" is ever touched.
const prefix = "muster-e2e-"

// network is the docker network of all clusters.
const network = prefix + "network"

// Options says how to make clusters.
type Options struct {
	// Dir keeps kubeconfigs and certificates; Close removes those, not the folder. Required.
	Dir string
	// Image is that of k3s, such as rancher/k3s:v1.36.3-k3s1. Empty means what k3d itself has chosen.
	Image string
	// Least is the oldest version of Kubernetes that will do, such as 1.34.0. Empty means any.
	Least string
	// ProbeImage is that of the pod that proves that a cluster runs pods. Empty means the pause image of k3s.
	ProbeImage string
	// Log receives one line per step; nil means that there is no log.
	Log io.Writer
	// Run runs k3d, docker, kubectl and go. Nil means the real ones.
	Run command.Runner
}

const defaultProbeImage = "rancher/mirrored-pause:3.6"

func (o Options) complete() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("k3d: Options.Dir is empty: give it a folder for kubeconfigs")
	}
	if o.ProbeImage == "" {
		o.ProbeImage = defaultProbeImage
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Run == nil {
		o.Run = command.Run
	}
	var err error
	o.Dir, err = filepath.Abs(filepath.Join(o.Dir, prefix+"k3d"))
	return o, err
}

// provider implements clusters.Provider.
type provider struct {
	options Options

	mutex    sync.Mutex // guards what follows
	clusters []*cluster
	closed   bool
}

// setupDeadline bounds what comes before the first cluster.
const setupDeadline = 5 * time.Minute

// New prepares for clusters: it removes what a run that was killed has left, and makes the network. Two runs at the same time
// on one docker engine would remove each other's clusters.
func New(o Options) (clusters.Provider, error) {
	o, err := o.complete()
	if err != nil {
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

// Create makes a cluster and returns when it runs pods.
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
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return nil, fmt.Errorf("cluster %q: %s", name, strings.Join(problems, "; "))
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.closed {
		return nil, errors.New("the provider of the clusters is closed")
	}
	for _, c := range p.clusters {
		if c.name == name {
			return nil, fmt.Errorf("cluster %q: a cluster of that name already exists", name)
		}
	}
	c := &cluster{provider: p, name: name, cuts: map[string]int{}}
	p.clusters = append(p.clusters, c)
	return c, nil
}

// Close removes all clusters, the network and the folder.
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

// removeAll removes every cluster of ours, whoever has made it, and then the network they were in.
func (p *provider) removeAll(ctx context.Context) error {
	output, err := p.options.Run(ctx, nil, "k3d", "cluster", "list", "--no-headers")
	if err != nil {
		return err
	}
	var all []error
	for _, name := range ours(string(output)) {
		all = append(all, p.run(ctx, "k3d", "cluster", "delete", name))
	}
	output, err = p.options.Run(ctx, nil, "docker", "network", "ls", "--quiet", "--filter", "name=^"+network+"$")
	if err == nil && len(output) > 0 {
		err = p.run(ctx, "docker", "network", "rm", network)
	}
	return errors.Join(append(all, err)...)
}

// ours are the clusters with our prefix in what k3d lists: one per line, the name first.
func ours(list string) []string {
	var names []string
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 0 && strings.HasPrefix(fields[0], prefix) {
			names = append(names, fields[0])
		}
	}
	return names
}

func (p *provider) run(ctx context.Context, args ...string) error {
	fmt.Fprintf(p.options.Log, "clusters: %s\n", strings.Join(args, " "))
	_, err := p.options.Run(ctx, nil, args...)
	return err
}

// Collect writes the logs of the containers that are the nodes, and of all containers on them.
func (p *provider) Collect(ctx context.Context, dir string) error {
	p.mutex.Lock()
	all := append([]*cluster(nil), p.clusters...)
	p.mutex.Unlock()
	var errs []error
	for _, c := range all {
		errs = append(errs, c.collect(ctx, filepath.Join(dir, c.name)))
	}
	return errors.Join(errs...)
}
