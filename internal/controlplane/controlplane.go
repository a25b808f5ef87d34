// Package controlplane runs real Kubernetes control planes as child processes: etcd, kube-apiserver and kube-controller-manager. The
// integration tests, the bench and `muster demo` use it.
//
// A control plane needs no root, no container engine and no network other than 127.0.0.1. It has no nodes: pods stay Pending unless
// package localpods runs them.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/pki"
	"github.com/muster-fleet/muster/internal/process"
)

// Options describes a control plane. Only Name is required.
type Options struct {
	// Name identifies the control plane in errors, certificates and temporary directories, and is the name of its kubeconfig's context.
	// It must be usable as a file name.
	Name string
	// Dir is the directory for certificates, data and one log file per process. Empty means a temporary directory, which Stop removes. A
	// given directory is created if it is missing and kept by Stop. It must not have been used by another control plane.
	Dir string
	// Binaries is the directory with etcd, kube-apiserver and kube-controller-manager. Empty means the result of the function Binaries.
	Binaries string
	// APIServerArgs and ControllerManagerArgs are added to the flags of these programs. Of a flag that is given twice, the last value
	// counts, so they override the defaults.
	APIServerArgs, ControllerManagerArgs []string
	// BeforeControllerManager, if set, is called when the API server is ready. The garbage collector knows the kinds that it installs. It
	// learns of kinds that are installed later after half a minute, and until then does not delete their dependents.
	BeforeControllerManager Prepare `json:"-"`
}

// Each process is killed if it has not ended by itself after this time. An API server with open watches takes a minute. Killing it loses
// nothing, because acknowledged writes are in etcd.
const (
	graceControllerManager = 2 * time.Second
	graceAPIServer         = time.Second
	graceEtcd              = 2 * time.Second
)

// ControlPlane is a running control plane. Its methods are safe for concurrent use.
type ControlPlane struct {
	options    Options
	dir        string
	identities *identities
	port       int
	lent       bool // it belongs to the Lender of another process, and only that process can stop it

	mutex             sync.Mutex // guards the fields below
	checkpoint        *checkpoint
	etcd              *process.Process
	apiServer         *process.Process
	controllerManager *process.Process
	stopped           bool
}

// Start starts a control plane and returns when the API server is ready and the ServiceAccount default/default exists. It fails when ctx
// ends, or when one of the processes ends; the error then contains the end of its log. The processes do not depend on ctx: they run until
// Stop or the end of the program.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	if o.Name == "" || strings.ContainsAny(o.Name, `/\:`) {
		return nil, fmt.Errorf("control plane %q: Options.Name is not usable as a file name: use a name such as \"hub\"", o.Name)
	}
	c := &ControlPlane{options: o}
	if err := c.start(ctx); err != nil {
		return nil, fmt.Errorf("control plane %q: %w", o.Name, errors.Join(err, c.Stop()))
	}
	return c, nil
}

func (c *ControlPlane) start(ctx context.Context) (err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.options.Binaries == "" {
		if c.options.Binaries, err = Binaries(ctx, os.Stderr); err != nil {
			return err
		}
	}
	if c.dir, err = c.options.makeDir(); err != nil {
		return err
	}
	if c.identities, err = writePKI(c.dir, c.options.Name, time.Now()); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if c.etcd, err = c.run("etcd", etcdArgs()...); err != nil {
		return err
	}
	for range portAttempts {
		if c.port, err = FreePort(); err != nil {
			return err
		}
		// Another process can take the port before the API server listens. Only the log of the API server shows that.
		if err = c.startAPIServer(ctx); err == nil || !strings.Contains(err.Error(), portTaken) {
			break
		}
	}
	if err == nil && c.options.BeforeControllerManager != nil {
		err = c.options.BeforeControllerManager(ctx, c)
	}
	if err != nil {
		return err
	}
	return c.startControllerManager(ctx)
}

func (o Options) makeDir() (string, error) {
	if o.Dir == "" {
		return os.MkdirTemp("", "muster-"+o.Name+"-")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return "", err
	}
	// The certificates and tokens in the data of another control plane have been issued by another authority.
	if _, err := os.Stat(filepath.Join(dir, etcdDataDir)); err == nil {
		return "", fmt.Errorf("%s has the data of another control plane: remove it or choose another directory", dir)
	}
	return dir, os.MkdirAll(dir, 0o700) // it will contain private keys
}

// URL is the address of the API server. A restart of the API server does not change it.
func (c *ControlPlane) URL() string { return fmt.Sprintf("https://%s:%d", loopback, c.port) }

// CA is the certificate authority of the API server as PEM.
func (c *ControlPlane) CA() []byte { return append([]byte(nil), c.identities.ca...) }

// RESTConfig returns a new configuration with the credential of an administrator and without a client-side rate limit.
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

// Kubeconfig has the credential of an administrator. Its context has the name of the control plane.
func (c *ControlPlane) Kubeconfig() []byte { return c.kubeconfigFor(c.identities.admin.User()) }

// UserKubeconfig has a bearer token.
func (c *ControlPlane) UserKubeconfig(token string) []byte {
	return c.kubeconfigFor(&clientcmdapi.AuthInfo{Token: token})
}

func (c *ControlPlane) kubeconfigFor(user *clientcmdapi.AuthInfo) []byte {
	data, err := pki.Kubeconfig(c.options.Name, c.URL(), c.identities.ca, user)
	if err != nil {
		panic(fmt.Sprintf("control plane %q: strings and bytes cannot be encoded: %v", c.options.Name, err))
	}
	return data
}

// APIServerPid is the process ID of the API server, which must be running.
func (c *ControlPlane) APIServerPid() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.apiServer.Pid()
}

// EtcdPid is the process ID of etcd.
func (c *ControlPlane) EtcdPid() int { return c.etcd.Pid() }

// ControllerManagerPid is the process ID of the controller manager, which must be running.
func (c *ControlPlane) ControllerManagerPid() int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.controllerManager.Pid()
}

// StopAPIServer stops only the API server. Connections to it are refused until StartAPIServer.
func (c *ControlPlane) StopAPIServer() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.apiServer.Alive() {
		return fmt.Errorf("control plane %q: the API server is not running", c.options.Name)
	}
	c.apiServer.Stop(graceAPIServer)
	return nil
}

// StartAPIServer starts the API server again after StopAPIServer, with the same port, certificates and data, and returns when it is
// ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) (err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	switch {
	case c.lent:
		err = errors.New("it belongs to another process: a test that stops an API server has to start its own control plane")
	case c.stopped:
		err = errors.New("it was stopped: start a new one")
	case c.apiServer.Alive():
		err = errors.New("the API server is already running")
	default:
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		if err = c.startAPIServer(ctx); err != nil {
			c.apiServer.Stop(graceAPIServer)
		}
	}
	if err != nil {
		return fmt.Errorf("control plane %q: %w", c.options.Name, err)
	}
	return nil
}

// Stop stops all processes and removes a temporary directory. It can be called twice.
func (c *ControlPlane) Stop() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.stopped || c.lent {
		return nil
	}
	c.stopped = true
	c.controllerManager.Stop(graceControllerManager)
	c.apiServer.Stop(graceAPIServer)
	c.etcd.Stop(graceEtcd)
	if c.options.Dir != "" || c.dir == "" {
		return nil
	}
	return os.RemoveAll(c.dir)
}
