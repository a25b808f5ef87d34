package local

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// Kill has containerd send the signal. Its parent is a shim, which then tells the kubelet.
func (c *cluster) Kill(ctx context.Context, container string) error {
	return c.ctr(ctx, nil, "tasks", "kill", "--signal", "SIGKILL", container)
}

// Crash pulls the plug: first that of the network, or the kernel would still tell every peer that its connection is closed,
// and then everything at once. What is on disk stays, what a reboot clears is gone.
func (c *cluster) Crash(ctx context.Context) error {
	if _, err := c.running(); err != nil {
		return err
	}
	err := c.provider.network.unplug(ctx, c.node.addresses)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return errors.Join(err, c.kill())
}

// Restart brings a crashed cluster back.
func (c *cluster) Restart(ctx context.Context) error {
	if err := c.boot(ctx); err != nil {
		return fmt.Errorf("restart cluster %q: %w", c.Name(), err)
	}
	return nil
}

// Cut drops every packet between the two nodes, those of their pods and of established connections included.
func (c *cluster) Cut(ctx context.Context, other clusters.Cluster) (func() error, error) {
	peer, ok := other.(*cluster)
	if !ok || peer.provider != c.provider || peer == c {
		return nil, fmt.Errorf("cluster %q can only be cut off from another one of the same provider", c.Name())
	}
	address := peer.node.node()
	if err := c.cutOff(ctx, address); err != nil {
		return nil, err
	}
	return sync.OnceValue(func() error { return c.heal(address) }), nil
}

func (c *cluster) cutOff(ctx context.Context, address string) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.process != nil {
		if err := c.drop(ctx, address); err != nil {
			return err
		}
	}
	c.cuts[address]++
	return nil
}

// heal takes back one cut; a node that was restarted meanwhile has one rule for all of them.
func (c *cluster) heal(address string) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.cuts[address]--; c.cuts[address] > 0 {
		return nil
	}
	delete(c.cuts, address)
	if c.process == nil {
		return nil
	}
	return c.iptables(context.Background(), "--delete", address)
}

// drop makes the rules when they are not there. The mutex is held.
func (c *cluster) drop(ctx context.Context, address string) error {
	if c.iptables(ctx, "--check", address) == nil {
		return nil
	}
	return c.iptables(ctx, "--insert", address)
}

// iptables works on the two rules by which a packet meets us first and last, before and after its addresses are translated:
// there no other rule and no established connection comes first.
func (c *cluster) iptables(ctx context.Context, verb, address string) error {
	var all []error
	for _, rule := range [][]string{
		{"--table", "raw", verb, "PREROUTING", "--source", address, "--jump", "DROP"},
		{"--table", "mangle", verb, "POSTROUTING", "--destination", address, "--jump", "DROP"},
	} {
		_, err := command.Run(ctx, nil, onNode(c.process.Pid(), append([]string{"iptables", "--wait"}, rule...)...)...)
		all = append(all, err)
	}
	return errors.Join(all...)
}
