package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/pki"
	"github.com/muster-fleet/muster/internal/process"
)

// How long each process may take to end by itself before it is killed. An API server with open watches would take a
// minute, and nothing is lost by killing it: what it acknowledged is in etcd.
const (
	graceControllerManager = 2 * time.Second
	graceAPIServer         = time.Second
	graceEtcd              = 2 * time.Second
)

// ControlPlane is a running control plane. Its methods may be called from several goroutines.
type ControlPlane struct {
	options    Options
	dir        string
	temporary  bool
	identities *identities
	port       int
	lent       bool // by the Lender of another process, which alone can stop it

	mutex             sync.Mutex // guards what follows
	checkpoint        *checkpoint
	etcd              *process.Process
	apiServer         *process.Process
	controllerManager *process.Process
	stopped           bool
}

// Start runs a control plane and returns when it serves requests: the API server says it is ready, and with a controller
// manager the ServiceAccount default/default exists. It gives up when ctx ends, or when a process does; the error then
// has the end of that process's log. ctx bounds only the start: the processes live until Stop or the end of the program.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Binaries == "" {
		dir, err := Binaries(ctx, os.Stderr)
		if err != nil {
			return nil, err
		}
		o.Binaries = dir
	}
	c, err := prepare(o)
	if err != nil {
		return nil, fmt.Errorf("control plane %q: %w", o.Name, err)
	}
	if err := c.start(ctx); err != nil {
		_ = c.Stop()
		return nil, fmt.Errorf("control plane %q: %w", o.Name, err)
	}
	return c, nil
}

// prepare does all that needs no process: checks, folder and certificates.
func prepare(o Options) (*ControlPlane, error) {
	if err := checkBinaries(o.Binaries, o.programs()...); err != nil {
		return nil, err
	}
	dir, temporary, err := o.workDir()
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{options: o, dir: dir, temporary: temporary}
	if c.identities, err = writePKI(dir, o.Name, time.Now()); err != nil {
		return nil, errors.Join(err, c.removeFolder())
	}
	return c, nil
}

func (o Options) programs() []string {
	if o.ControllerManager {
		return []string{binaryEtcd, binaryAPIServer, binaryControllerManager}
	}
	return []string{binaryEtcd, binaryAPIServer}
}

func (c *ControlPlane) start(ctx context.Context) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPIServerOnFreePort(ctx); err != nil {
		return err
	}
	if !c.options.ControllerManager {
		return nil
	}
	return c.startControllerManager(ctx)
}

// Name is the name given in Options.
func (c *ControlPlane) Name() string { return c.options.Name }

// Dir is the folder with the data and with one NAME.log per process.
func (c *ControlPlane) Dir() string { return c.dir }

// URL is the address of the API server. It stays the same over outages.
func (c *ControlPlane) URL() string { return fmt.Sprintf("https://%s:%d", loopback, c.port) }

// CA is the certificate authority of the API server, PEM-encoded.
func (c *ControlPlane) CA() []byte { return append([]byte(nil), c.identities.ca...) }

// RESTConfig is a configuration of its own for each caller: a cluster administrator, without client-side rate limit.
func (c *ControlPlane) RESTConfig() *rest.Config {
	return &rest.Config{
		Host: c.URL(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.CA(),
			CertData: c.identities.admin.Cert,
			KeyData:  c.identities.admin.Key,
		},
		QPS: -1,
	}
}

// Kubeconfig is a self-contained kubeconfig of the cluster administrator. Its context is called like the control plane.
func (c *ControlPlane) Kubeconfig() []byte {
	return c.kubeconfigFor(c.identities.admin.User())
}

// UserKubeconfig is a self-contained kubeconfig that presents the given bearer token.
func (c *ControlPlane) UserKubeconfig(token string) []byte {
	return c.kubeconfigFor(&clientcmdapi.AuthInfo{Token: token})
}

func (c *ControlPlane) kubeconfigFor(user *clientcmdapi.AuthInfo) []byte {
	data, err := pki.Kubeconfig(c.options.Name, c.URL(), c.identities.ca, user)
	if err != nil {
		// Encoding strings and bytes cannot fail; if it did, nothing after it could work.
		panic(fmt.Sprintf("control plane %q: encode kubeconfig: %v", c.options.Name, err))
	}
	return data
}

// client is the administrator's own client, used to see whether the control plane is ready.
func (c *ControlPlane) client() (kubernetes.Interface, error) {
	config := c.RESTConfig()
	config.Timeout = probeTimeout
	return kubernetes.NewForConfig(config)
}

// Stop ends all processes, the controller manager first and etcd last, and removes the temporary folder. Calling it
// again does nothing.
func (c *ControlPlane) Stop() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.stopped {
		return nil
	}
	c.stopped = true
	c.controllerManager.Stop(graceControllerManager)
	c.apiServer.Stop(graceAPIServer)
	c.etcd.Stop(graceEtcd)
	return c.removeFolder()
}

func (c *ControlPlane) removeFolder() error {
	if !c.temporary {
		return nil
	}
	return os.RemoveAll(c.dir)
}

func (c *ControlPlane) binary(name string) string { return filepath.Join(c.options.Binaries, name) }

// run starts one of the programs inside the folder, where its log goes too.
func (c *ControlPlane) run(program string, args ...string) (*process.Process, error) {
	return process.Start(process.Command{Path: c.binary(program), Args: args, Dir: c.dir})
}
