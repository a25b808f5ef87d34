package k3d

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/muster-fleet/muster/e2e/clusters"
)

// Kill has the node's containerd send the signal; its client comes with k3s.
func (c *cluster) Kill(ctx context.Context, container string) error {
	return c.run(ctx, "docker", "exec", c.node(), "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container)
}

// Crash kills the node. Its data is in the container, which stays.
func (c *cluster) Crash(ctx context.Context) error { return c.run(ctx, "docker", "kill", c.node()) }

// Restart starts the container again. Nothing can be done about another address, which docker gives it when somebody else took
// the one it had; every kubeconfig and every agent knows the old one.
func (c *cluster) Restart(ctx context.Context) error {
	if err := c.run(ctx, "docker", "start", c.node()); err != nil {
		return err
	}
	address, err := c.findAddress(ctx)
	if err != nil {
		return err
	}
	if address != c.address {
		return fmt.Errorf("cluster %q came back with the address %s, it had %s", c.name, address, c.address)
	}
	if err := c.cutAgain(ctx); err != nil {
		return err
	}
	return c.waitForPods(ctx)
}

// cutAgain brings back the rules, which were in the kernel only.
func (c *cluster) cutAgain(ctx context.Context) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for address := range c.cuts {
		if err := c.iptables(ctx, "--insert", address); err != nil {
			return err
		}
	}
	return nil
}

// Cut drops every packet between the two nodes, including packets of their pods and of established connections.
func (c *cluster) Cut(ctx context.Context, other clusters.Cluster) (func() error, error) {
	peer, ok := other.(*cluster)
	if !ok || peer.provider != c.provider || peer == c {
		return nil, fmt.Errorf("cluster %q can only be cut off from another cluster of the same provider", c.name)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.cuts[peer.address] == 0 {
		if err := c.iptables(ctx, "--insert", peer.address); err != nil {
			return nil, err
		}
	}
	c.cuts[peer.address]++
	return sync.OnceValue(func() error { return c.heal(peer.address) }), nil
}

func (c *cluster) heal(address string) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.cuts[address]--; c.cuts[address] > 0 {
		return nil
	}
	delete(c.cuts, address)
	return c.iptables(context.Background(), "--delete", address)
}

// iptables works on the two rules by which a packet meets the node first and last, before and after its addresses are
// translated. The node has iptables of its own.
func (c *cluster) iptables(ctx context.Context, verb, address string) error {
	var all []error
	for _, rule := range [][]string{
		{"--table", "raw", verb, "PREROUTING", "--source", address, "--jump", "DROP"},
		{"--table", "mangle", verb, "POSTROUTING", "--destination", address, "--jump", "DROP"},
	} {
		all = append(all, c.run(ctx, append([]string{"docker", "exec", c.node(), "iptables", "--wait"}, rule...)...))
	}
	return errors.Join(all...)
}
