package k3d

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/pki"
)

const (
	// portFront is that of the second address.
	portFront = 7443
	// frontFolder is where the node has the program of the second address and its certificates.
	frontFolder = "/muster-e2e-front"
)

// Move starts a program on the node that forwards requests, with bearer tokens, to the API server and serves with a certificate
// of an authority of its own. It ends with a crash; Move starts it again.
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
	for _, args := range [][]string{
		{"docker", "cp", dir + "/.", c.node() + ":" + frontFolder},
		append([]string{"docker", "exec", "--detach", c.node()}, frontArgs()...),
	} {
		if err := c.run(ctx, args...); err != nil {
			return "", nil, err
		}
	}
	return fmt.Sprintf("https://%s:%d", c.address, portFront), c.front, nil
}

func frontArgs() []string {
	in := func(name string) string { return frontFolder + "/" + name }
	return []string{
		in("front"), fmt.Sprintf(":%d", portFront), in("front.crt"), in("front.key"),
		fmt.Sprintf("https://127.0.0.1:%d", portAPIServer), in("ca.crt"),
	}
}

// writeFront fills a folder with all that the program needs, itself included, and returns the authority it serves by.
func (c *cluster) writeFront(dir string) ([]byte, error) {
	program, err := os.ReadFile(filepath.Join(c.provider.options.Dir, "front"))
	if err != nil {
		return nil, err
	}
	server, err := c.serverCA()
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
	for name, data := range map[string][]byte{"front": program, "front.crt": pair.Cert, "front.key": pair.Key, "ca.crt": server} {
		all = append(all, os.WriteFile(filepath.Join(dir, name), data, 0o700)) //nolint:gosec // one of them is a program
	}
	return authority.Pair.Cert, errors.Join(all...)
}

// serverCA is the authority of the API server itself, as the kubeconfig has it.
func (c *cluster) serverCA() ([]byte, error) {
	config, err := clientcmd.LoadFromFile(c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	for _, cluster := range config.Clusters {
		return cluster.CertificateAuthorityData, nil
	}
	return nil, fmt.Errorf("%s has no cluster", c.Kubeconfig())
}
