package k3d

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/internal/await"
	"github.com/muster-fleet/muster/internal/pki"
)

const (
	// portAPIServer is the port of k3s on its node, and portFront the port of the second address.
	portAPIServer = 6443
	portFront     = 7443
	// frontDir is the directory of the proxy at the second address on the node.
	frontDir = "/muster-e2e-front"
	// startTimeout is the limit of k3d and kubectl. The first start pulls images.
	startTimeout = "5m"
	// probeImage is the pause image of k3s.
	probeImage = "rancher/mirrored-pause:3.6"
)

// cluster implements clusters.Cluster.
type cluster struct {
	provider *provider
	name     string
	address  string // of the node on the docker network

	mutex sync.Mutex     // guards the fields below
	cuts  map[string]int // number of cuts by address
	front []byte         // the authority of the second address, or nil before the first Move
}

// Name is the name that Create was called with.
func (c *cluster) Name() string { return c.name }

// Kubeconfig is the file with the administrator's kubeconfig.
func (c *cluster) Kubeconfig() string {
	return filepath.Join(c.provider.options.Dir, c.name+".kubeconfig")
}

func (c *cluster) full() string { return prefix + c.name }

// node is the container of the only server of a cluster, as k3d names it.
func (c *cluster) node() string { return "k3d-" + c.full() + "-server-0" }

func (c *cluster) run(ctx context.Context, args ...string) error { return c.provider.run(ctx, args...) }

func (c *cluster) onNode(ctx context.Context, args ...string) error {
	return c.run(ctx, append([]string{"docker", "exec", c.node()}, args...)...)
}

func (c *cluster) create(ctx context.Context) error {
	// Without the load balancer of k3d, the cluster has the address of its node.
	args := []string{
		"k3d", "cluster", "create", c.full(),
		"--servers", "1", "--agents", "0", "--no-lb", "--network", network,
		"--kubeconfig-update-default=false", "--kubeconfig-switch-context=false",
		"--k3s-arg", "--disable=traefik,servicelb,metrics-server@server:*",
		"--wait", "--timeout", startTimeout,
	}
	if image := c.provider.options.Image; image != "" {
		args = append(args, "--image", image)
	}
	err := c.run(ctx, args...)
	if err != nil {
		return err
	}
	if c.address, err = c.findAddress(ctx); err != nil {
		return err
	}

	// The server of k3d's kubeconfig is a port of this machine, which pods of other clusters cannot reach.
	data, err := c.provider.options.Run(ctx, nil, "k3d", "kubeconfig", "get", c.full())
	if err != nil {
		return err
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", c.full(), err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = fmt.Sprintf("https://%s:%d", c.address, portAPIServer)
	}
	if err := clientcmd.WriteToFile(*config, c.Kubeconfig()); err != nil {
		return err
	}
	return c.waitForPods(ctx)
}

func (c *cluster) findAddress(ctx context.Context) (string, error) {
	output, err := c.provider.options.Run(ctx, nil, "docker", "inspect", "--format",
		fmt.Sprintf("{{(index .NetworkSettings.Networks %q).IPAddress}}", network), c.node())
	address := strings.TrimSpace(string(output))
	if err == nil && address == "" {
		err = fmt.Errorf("container %s has no address on network %s", c.node(), network)
	}
	return address, err
}

// waitForPods creates a pod with a new name and waits until it runs. The status of other objects can be from before a crash.
func (c *cluster) waitForPods(ctx context.Context) error {
	kubectl := func(args ...string) error {
		return c.run(ctx, append([]string{"kubectl", "--kubeconfig", c.Kubeconfig(), "--namespace", "kube-system"}, args...)...)
	}
	pod := "probe-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	limited, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	err := await.Pace{First: time.Second, Most: time.Second}.Until(limited, func(context.Context) (bool, string) {
		err := kubectl("run", pod, "--image", probeImage, "--image-pull-policy", "IfNotPresent", "--restart", "Never")
		return err == nil, fmt.Sprint(err)
	})
	if err != nil {
		return err
	}
	return errors.Join(
		kubectl("wait", "pod/"+pod, "--for", "jsonpath={.status.phase}=Running", "--timeout", startTimeout),
		kubectl("delete", "pod", pod, "--now", "--ignore-not-found"))
}

// Load imports an image archive with k3d's mode "direct", because the other mode needs an image with k3d's tools.
func (c *cluster) Load(ctx context.Context, archive string) error {
	return c.run(ctx, "k3d", "image", "import", archive, "--cluster", c.full(), "--mode", "direct")
}

// Kill sends the signal with containerd's client, which is part of k3s.
func (c *cluster) Kill(ctx context.Context, container string) error {
	return c.onNode(ctx, "ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container)
}

// Crash kills the container of the node. Its data stay.
func (c *cluster) Crash(ctx context.Context) error { return c.run(ctx, "docker", "kill", c.node()) }

// Restart starts the container again, with the same cuts. It fails if docker has given the address of the node to another container in the
// meantime, because kubeconfigs and agents have that address.
func (c *cluster) Restart(ctx context.Context) error {
	if err := c.run(ctx, "docker", "start", c.node()); err != nil {
		return err
	}
	address, err := c.findAddress(ctx)
	if err != nil {
		return err
	}
	if address != c.address {
		return fmt.Errorf("cluster %q has the address %s after its restart, and had %s before", c.name, address, c.address)
	}
	c.mutex.Lock()
	for peer := range c.cuts {
		err = errors.Join(err, c.iptables(ctx, "--insert", peer))
	}
	c.mutex.Unlock()
	if err != nil {
		return err
	}
	return c.waitForPods(ctx)
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
	return sync.OnceValue(func() error {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		if c.cuts[peer.address]--; c.cuts[peer.address] > 0 {
			return nil
		}
		delete(c.cuts, peer.address)
		return c.iptables(context.Background(), "--delete", peer.address)
	}), nil
}

func (c *cluster) iptables(ctx context.Context, verb, address string) error {
	var all []error
	for _, args := range clusters.DropCommands(verb, address) {
		all = append(all, c.onNode(ctx, args...))
	}
	return errors.Join(all...)
}

// Move starts a proxy on the node that forwards requests with bearer tokens to the API server, with a certificate of another authority. A
// crash ends the proxy, and Move starts it again.
func (c *cluster) Move(ctx context.Context) (string, []byte, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	dir := filepath.Join(c.provider.options.Dir, c.name+"-front")
	if c.front == nil {
		ca, err := c.writeFront(dir)
		if err != nil {
			return "", nil, err
		}
		c.front = ca
	}
	if err := c.run(ctx, "docker", "cp", dir+"/.", c.node()+":"+frontDir); err != nil {
		return "", nil, err
	}
	err := c.run(ctx, "docker", "exec", "--detach", c.node(), frontDir+"/front", fmt.Sprintf(":%d", portFront),
		frontDir+"/front.crt", frontDir+"/front.key", fmt.Sprintf("https://127.0.0.1:%d", portAPIServer), frontDir+"/ca.crt")
	return fmt.Sprintf("https://%s:%d", c.address, portFront), c.front, err
}

// writeFront writes the proxy and its files into a directory, and returns the authority of its certificate.
func (c *cluster) writeFront(dir string) ([]byte, error) {
	program, err := os.ReadFile(filepath.Join(c.provider.options.Dir, "front"))
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	authority, err := pki.NewAuthority(c.full()+"-front", time.Now())
	if err != nil {
		return nil, err
	}
	pair, err := authority.Server("front", c.address)
	if err != nil {
		return nil, err
	}
	all := []error{os.MkdirAll(dir, 0o700)}
	for name, data := range map[string][]byte{"front": program, "front.crt": pair.Cert, "front.key": pair.Key, "ca.crt": config.CAData} {
		all = append(all, os.WriteFile(filepath.Join(dir, name), data, 0o700)) //nolint:gosec // one of them is a program
	}
	return authority.Pair.Cert, errors.Join(all...)
}
