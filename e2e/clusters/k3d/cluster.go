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
)

// portAPIServer is that of k3s on its node.
const portAPIServer = 6443

// startTimeout is what k3d and kubectl wait for; a first start pulls images.
const startTimeout = "5m"

// cluster implements clusters.Cluster.
type cluster struct {
	provider *provider
	name     string
	address  string // of the node on the network

	mutex sync.Mutex     // guards what follows
	cuts  map[string]int // how many times this cluster is cut off from an address
	front []byte         // the authority of the second address, once there is one
}

// Name is the name that Create was called with.
func (c *cluster) Name() string { return c.name }

// Kubeconfig is the file with the administrator's kubeconfig.
func (c *cluster) Kubeconfig() string {
	return filepath.Join(c.provider.options.Dir, c.name+".kubeconfig")
}

func (c *cluster) full() string { return prefix + c.name }

// node is the container that k3d makes for the one server of a cluster.
func (c *cluster) node() string { return "k3d-" + c.full() + "-server-0" }

func (c *cluster) run(ctx context.Context, args ...string) error { return c.provider.run(ctx, args...) }

func (c *cluster) output(ctx context.Context, args ...string) (string, error) {
	output, err := c.provider.options.Run(ctx, nil, args...)
	return strings.TrimSpace(string(output)), err
}

func (c *cluster) create(ctx context.Context) error {
	if err := c.run(ctx, createArgs(c.full(), c.provider.options.Image)...); err != nil {
		return err
	}
	var err error
	if c.address, err = c.findAddress(ctx); err != nil {
		return err
	}
	if err := c.writeKubeconfig(ctx); err != nil {
		return err
	}
	if err := c.checkVersion(ctx); err != nil {
		return err
	}
	return c.waitForPods(ctx)
}

// createArgs makes a cluster without a load balancer in front, whose address would be another one than the node's, and without
// what nobody here needs. The kubeconfig of whoever runs this stays as it is.
func createArgs(name, image string) []string {
	args := []string{
		"k3d", "cluster", "create", name,
		"--servers", "1", "--agents", "0", "--no-lb", "--network", network,
		"--kubeconfig-update-default=false", "--kubeconfig-switch-context=false",
		"--k3s-arg", "--disable=traefik,servicelb,metrics-server@server:*",
		"--wait", "--timeout", startTimeout,
	}
	if image != "" {
		args = append(args, "--image", image)
	}
	return args
}

func (c *cluster) findAddress(ctx context.Context) (string, error) {
	address, err := c.output(ctx, "docker", "inspect", "--format",
		fmt.Sprintf("{{(index .NetworkSettings.Networks %q).IPAddress}}", network), c.node())
	if err == nil && address == "" {
		err = fmt.Errorf("container %s has no address on network %s", c.node(), network)
	}
	return address, err
}

// writeKubeconfig has the server by its address on the network: the one k3d writes is a port of this machine, which pods of
// other clusters do not reach.
func (c *cluster) writeKubeconfig(ctx context.Context) error {
	data, err := c.output(ctx, "k3d", "kubeconfig", "get", c.full())
	if err != nil {
		return err
	}
	config, err := clientcmd.Load([]byte(data))
	if err != nil {
		return fmt.Errorf("kubeconfig of %s: %w", c.full(), err)
	}
	if len(config.Clusters) == 0 {
		return fmt.Errorf("kubeconfig of %s has no cluster", c.full())
	}
	for _, cluster := range config.Clusters {
		cluster.Server = fmt.Sprintf("https://%s:%d", c.address, portAPIServer)
	}
	return clientcmd.WriteToFile(*config, c.Kubeconfig())
}

// waitForPods makes a pod of a name that is new, and waits until it runs: what the API says about everything else can be from
// before a crash.
func (c *cluster) waitForPods(ctx context.Context) error {
	kubectl := func(args ...string) error {
		return c.run(ctx, append([]string{"kubectl", "--kubeconfig", c.Kubeconfig(), "--namespace", "kube-system"}, args...)...)
	}
	pod := "probe-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	if err := c.retry(ctx, func() error {
		return kubectl("run", pod, "--image", c.provider.options.ProbeImage, "--image-pull-policy", "IfNotPresent", "--restart", "Never")
	}); err != nil {
		return err
	}
	return errors.Join(
		kubectl("wait", "pod/"+pod, "--for", "jsonpath={.status.phase}=Running", "--timeout", startTimeout),
		kubectl("delete", "pod", pod, "--now", "--ignore-not-found"))
}

// retry is for what the API server refuses while it starts.
func (c *cluster) retry(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(time.Second):
		}
	}
}

// Load brings an image archive to the node, directly: the other way needs an image of k3d's tools.
func (c *cluster) Load(ctx context.Context, archive string) error {
	return c.run(ctx, "k3d", "image", "import", archive, "--cluster", c.full(), "--mode", "direct")
}

func (c *cluster) collect(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	log, err := c.output(ctx, "docker", "logs", c.node())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "k3s.log"), []byte(log), 0o600)
	}
	return errors.Join(err, c.run(ctx, "docker", "cp", c.node()+":/var/log/pods", filepath.Join(dir, "pods")))
}
