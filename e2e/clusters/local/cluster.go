package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/muster-fleet/muster/internal/process"
)

// startDeadline bounds a start of a cluster. On an idle machine it takes 5 to 10 seconds.
const startDeadline = 5 * time.Minute

// cluster implements clusters.Cluster.
type cluster struct {
	provider *provider
	node     node

	mutex   sync.Mutex       // guards what follows
	process *process.Process // the first process of the node; nil when it is down
	cuts    map[string]int   // how many times this cluster is cut off from an address
	closed  bool             // it never starts again
}

func newCluster(p *provider, n node) *cluster {
	return &cluster{provider: p, node: n, cuts: map[string]int{}}
}

// Name is the name it was created with.
func (c *cluster) Name() string { return c.node.cluster }

// Kubeconfig is the file with the administrator's kubeconfig.
func (c *cluster) Kubeconfig() string { return c.node.path(fileAdmin) }

func (c *cluster) create(ctx context.Context) error {
	if err := os.MkdirAll(c.node.dir, 0o700); err != nil {
		return err
	}
	if err := c.node.write(time.Now()); err != nil {
		return err
	}
	return c.boot(ctx, step{"images", c.loadPause})
}

// step is a part of a start.
type step struct {
	name string
	do   func(context.Context) error
}

// boot starts the node and waits until it runs pods. The given steps happen once its containerd answers.
func (c *cluster) boot(ctx context.Context, steps ...step) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	ready, err := c.readiness()
	if err != nil {
		return err
	}
	all := append([]step{{"node", c.start}, {"containerd", c.waitForContainerd}}, steps...)
	started, times := time.Now(), ""
	for _, s := range append(all, ready...) {
		if err := s.do(ctx); err != nil {
			return err
		}
		times += fmt.Sprintf(", %s %.1f", s.name, time.Since(started).Seconds())
	}
	c.provider.logf("%s runs pods at %s; seconds from the start%s", c.Name(), c.node.apiServer(), times)
	return nil
}

// start starts the node's first process and plugs in its network card; whoever is cut off is so from the first packet on.
func (c *cluster) start(ctx context.Context) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.closed {
		return errors.New("it is being removed")
	}
	if c.process.Alive() {
		return errors.New("it is running already")
	}
	if err := c.node.system.cgroups.create(c.node.cgroup()); err != nil {
		return err
	}
	p, err := process.Start(process.Command{
		Path: filepath.Join(c.node.system.helpers, "init"), Args: []string{c.node.path(fileMachine)},
		Dir: c.node.dir, Log: c.node.log("init"), Namespaces: namespaces,
	})
	if err != nil {
		return err
	}
	c.process = p
	for address := range c.cuts {
		if err := c.drop(ctx, address); err != nil {
			return err
		}
	}
	return c.provider.network.plug(ctx, c.node.addresses, p.Pid())
}

// running is the first process of the node, or an error that says that there is none.
func (c *cluster) running() (*process.Process, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.process == nil {
		return nil, fmt.Errorf("cluster %q is down", c.Name())
	}
	if !c.process.Alive() {
		return nil, c.process.Death()
	}
	return c.process, nil
}

// stop ends the node for good. Its folder stays.
func (c *cluster) stop() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.closed = true
	return c.kill()
}

// kill ends the node and removes its cgroups: a kubelet that finds those of pods from before a crash waits three seconds for
// each of them, in every hierarchy, before it runs the first pod. The mutex is held.
func (c *cluster) kill() error {
	if c.process != nil {
		c.process.Kill()
		c.process = nil
	}
	return c.node.system.cgroups.remove(c.node.cgroup())
}

// Load brings an image archive to the node's containerd.
func (c *cluster) Load(ctx context.Context, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	return c.load(ctx, file)
}
