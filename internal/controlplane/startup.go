package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/process"
)

const (
	// startTimeout bounds a start for callers without a deadline: it takes seconds, and minutes only on a machine that
	// is too busy to run tests.
	startTimeout = 3 * time.Minute
	// pollInterval is how often a start looks whether the next step is reached.
	pollInterval = 50 * time.Millisecond
	// probeTimeout bounds one look, so that a server that never answers does not hide the end of another process.
	probeTimeout = 5 * time.Second
	// portAttempts is how many ports are tried when somebody else takes the chosen one first.
	portAttempts = 5
)

// portTaken is how all our processes, being Go programs, call a port in use.
const portTaken = "address already in use"

func (c *ControlPlane) startEtcd(ctx context.Context) error {
	var err error
	if c.etcd, err = c.run(binaryEtcd, etcdArgs()...); err != nil {
		return err
	}
	socket := filepath.Join(c.dir, strings.TrimPrefix(etcdClientURL, "unix://"))
	return waitFor(ctx, "etcd to listen", func(ctx context.Context) error {
		if len(socket) > maxSocketPath {
			return nil // too long to dial from here; the API server does it by its relative path, and retries
		}
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		return connection.Close()
	}, c.etcd)
}

// maxSocketPath is the shortest limit for the name of a Unix socket among the systems we run on, less its final zero.
const maxSocketPath = 103

// startAPIServerOnFreePort chooses the port for the life of the control plane. Between the choice and the server's own
// listening somebody else may take it; that is seen by the server's log, and another one is tried.
func (c *ControlPlane) startAPIServerOnFreePort(ctx context.Context) error {
	var err error
	for range portAttempts {
		if c.port, err = freePort(); err != nil {
			return err
		}
		if err = c.startAPIServer(ctx); err == nil || !strings.Contains(err.Error(), portTaken) {
			return err
		}
	}
	return err
}

func (c *ControlPlane) startAPIServer(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	c.apiServer, err = c.run(binaryAPIServer, apiServerArgs(c.port, c.options.APIServerArgs)...)
	if err != nil {
		return err
	}
	return waitFor(ctx, "the API server to be ready", func(ctx context.Context) error {
		return ready(ctx, client)
	}, c.apiServer, c.etcd)
}

// ready: an API server says that it is before it has made the first namespaces, of which "default" is the last.
func ready(ctx context.Context, client kubernetes.Interface) error {
	if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return err
	}
	_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
	return err
}

func (c *ControlPlane) startControllerManager(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	if err := writeFiles(c.dir, map[string][]byte{
		fileControllerManagerKubeconfig: c.kubeconfigFor(c.identities.controllerManager.User()),
	}); err != nil {
		return err
	}
	c.controllerManager, err = c.run(binaryControllerManager,
		controllerManagerArgs(fileControllerManagerKubeconfig, c.options.ControllerManagerArgs)...)
	if err != nil {
		return err
	}
	return waitFor(ctx, "the controller manager to create the ServiceAccount default/default", func(ctx context.Context) error {
		return defaultServiceAccount(ctx, client)
	}, c.controllerManager, c.apiServer, c.etcd)
}

const fileControllerManagerKubeconfig = "kube-controller-manager.kubeconfig"

func defaultServiceAccount(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// waitFor polls until reached returns nil. It fails when ctx ends, with the last reason, or when one of the processes
// needed for it is gone. It looks at least once, so that there is a reason also where ctx has ended already.
func waitFor(ctx context.Context, what string, reached func(context.Context) error, needed ...*process.Process) error {
	var last error
	look := func(ctx context.Context) (bool, error) {
		if err := firstDeath(needed); err != nil {
			return false, err
		}
		last = reached(ctx)
		return last == nil, nil
	}
	done, err := look(ctx)
	if !done && err == nil {
		err = wait.PollUntilContextCancel(ctx, pollInterval, false, look)
	}
	if err != nil && ctx.Err() != nil && last != nil {
		return fmt.Errorf("gave up waiting for %s: %w", what, errors.Join(err, last))
	}
	return err
}

func firstDeath(processes []*process.Process) error {
	for _, p := range processes {
		if !p.Alive() {
			return p.Death()
		}
	}
	return nil
}
