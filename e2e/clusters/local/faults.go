package local

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// Kill lets containerd send the signal. The shim of the container then informs the kubelet.
func (c *cluster) Kill(ctx context.Context, container string) error {
	return c.ctr(ctx, nil, "tasks", "kill", "--signal", "SIGKILL", container)
}

// Crash disconnects the network first, because the kernel would otherwise close all connections, and then kills all processes at once.
// The data on disk stay, except directories that a reboot clears.
func (c *cluster) Crash(ctx context.Context) error {
	if _, err := c.running(); err != nil {
		return err
	}
	err := c.provider.network.unplug(ctx, c.node.addresses)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return errors.Join(err, c.kill())
}

// Restart starts a crashed cluster again.
func (c *cluster) Restart(ctx context.Context) error {
	if err := c.boot(ctx); err != nil {
		return fmt.Errorf("restart cluster %q: %w", c.Name(), err)
	}
	return nil
}

// Cut drops every packet between the two nodes, including packets of their pods and of established connections.
func (c *cluster) Cut(ctx context.Context, other clusters.Cluster) (func() error, error) {
	peer, ok := other.(*cluster)
	if !ok || peer.provider != c.provider || peer == c {
		return nil, fmt.Errorf("cluster %q can only be cut off from another cluster of the same provider", c.Name())
	}
	address := peer.node.node()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.process != nil {
		if err := c.drop(ctx, address); err != nil {
			return nil, err
		}
	}
	c.cuts[address]++
	return sync.OnceValue(func() error { return c.heal(address) }), nil
}

// heal removes one cut. A node that was restarted in the meantime has one rule for all cuts.
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

// drop adds the rules if they do not exist. The caller holds the mutex.
func (c *cluster) drop(ctx context.Context, address string) error {
	if c.iptables(ctx, "--check", address) == nil {
		return nil
	}
	return c.iptables(ctx, "--insert", address)
}

func (c *cluster) iptables(ctx context.Context, verb, address string) error {
	var all []error
	for _, args := range clusters.DropCommands(verb, address) {
		_, err := command.Run(ctx, nil, onNode(c.process.Pid(), args...)...)
		all = append(all, err)
	}
	return errors.Join(all...)
}

// Move returns the second address of the API server. There, a proxy on the node forwards requests with bearer tokens, and serves with a
// certificate of another authority.
func (c *cluster) Move(ctx context.Context) (string, []byte, error) {
	ca, err := os.ReadFile(c.node.path(fileFrontCA))
	if err != nil {
		return "", nil, err
	}
	return c.node.secondAddress(), ca, c.waitFor(ctx, "second address of the API server", func(ctx context.Context) error {
		return answers(ctx, c.node.secondAddress(), ca)
	})
}

// answers returns nil if a server with a certificate of the authority responds at the address, with any status code.
func answers(ctx context.Context, url string, ca []byte) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
