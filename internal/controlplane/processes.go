package controlplane

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/await"
	"github.com/muster-fleet/muster/internal/process"
)

const (
	// startTimeout limits a start, which takes seconds on an idle machine.
	startTimeout = 3 * time.Minute
	// probeTimeout limits one request during a start, so that a server that never answers does not hide the end of another process.
	probeTimeout = 5 * time.Second
	// portAttempts is the number of ports that are tried if other processes take them first.
	portAttempts = 5
	// portTaken is the error of Go's net package for a port in use.
	portTaken = "address already in use"
)

var pace = await.Pace{First: 50 * time.Millisecond, Most: 50 * time.Millisecond}

// etcd listens on Unix sockets in the directory of the control plane. It has no authentication, and a TCP port would give every user of the
// machine access to all objects. The ":0" passes etcd's check for a port and is part of the file name.
const (
	etcdSocket    = "etcd.sock:0"
	etcdClientURL = "unix://" + etcdSocket
	etcdPeerURL   = "unix://etcd-peer.sock:0"
	etcdDataDir   = "etcd"
)

// etcdQuota is the largest size that etcd's documentation suggests, instead of the default of 2 GiB.
const etcdQuota = 8 << 30

func etcdArgs() []string {
	return []string{
		"--name=muster",
		"--data-dir=" + etcdDataDir,
		"--listen-client-urls=" + etcdClientURL,
		"--advertise-client-urls=" + etcdClientURL,
		"--listen-peer-urls=" + etcdPeerURL,
		"--initial-advertise-peer-urls=" + etcdPeerURL,
		"--initial-cluster=muster=" + etcdPeerURL,
		"--unsafe-no-fsync", // the data must survive a crash of etcd, not of the machine
		"--quota-backend-bytes=" + strconv.Itoa(etcdQuota),
		"--log-level=warn",
	}
}

// startAPIServer also waits for the namespace "default": an API server reports that it is ready before it has created the first
// namespaces, of which "default" is the last.
func (c *ControlPlane) startAPIServer(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	args := []string{
		"--etcd-servers=" + etcdClientURL,
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(c.port),
		"--advertise-address=" + loopback,
		"--endpoint-reconciler-type=none", // Endpoints cannot have loopback addresses
		"--service-cluster-ip-range=" + serviceCIDR,
		"--tls-cert-file=" + fileServerCert,
		"--tls-private-key-file=" + fileServerKey,
		"--client-ca-file=" + fileCA,
		"--service-account-issuer=" + ServiceAccountIssuer,
		"--service-account-key-file=" + fileServiceAccount,
		"--service-account-signing-key-file=" + fileServiceAccount,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth", // as on clusters of kubeadm
		"--anonymous-auth=false",        // as on hardened clusters: a request without a valid credential gets a 401 instead of a 403
		"--allow-privileged=true",
	}
	if c.apiServer, err = c.run("kube-apiserver", append(args, c.options.APIServerArgs...)...); err != nil {
		return err
	}
	return waitFor(ctx, "the API server to be ready", func(ctx context.Context) error {
		if err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
			return err
		}
		_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err
	}, c.apiServer, c.etcd)
}

func (c *ControlPlane) startControllerManager(ctx context.Context) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	const kubeconfig = "kube-controller-manager.kubeconfig"
	if err := writeFiles(c.dir, map[string][]byte{kubeconfig: c.kubeconfigFor(c.identities.controllerManager.User())}); err != nil {
		return err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--root-ca-file=" + fileCA,
		"--service-account-private-key-file=" + fileServiceAccount,
		"--use-service-account-credentials=false", // with an identity for each controller the start takes twice as long
		"--leader-elect=false",
		"--secure-port=0", // health and metrics are not used
		// The signers of certificates are not used, and each would need an inotify instance, of which Linux allows 128 per user.
		"--controllers=*,-cloud-node-lifecycle-controller,-service-lb-controller,-node-route-controller," +
			"-certificatesigningrequest-signing-controller",
		"--kube-api-qps=200", // with the defaults of 20 and 30, a test that creates a hundred namespaces is slow
		"--kube-api-burst=400",
	}
	if c.controllerManager, err = c.run("kube-controller-manager", append(args, c.options.ControllerManagerArgs...)...); err != nil {
		return err
	}
	return waitFor(ctx, "the controller manager to create the ServiceAccount default/default", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	}, c.controllerManager, c.apiServer, c.etcd)
}

func (c *ControlPlane) client() (kubernetes.Interface, error) {
	config := c.RESTConfig()
	config.Timeout = probeTimeout
	return kubernetes.NewForConfig(config)
}

// run starts a program in the directory of the control plane, where it also writes its log.
func (c *ControlPlane) run(program string, args ...string) (*process.Process, error) {
	return process.Start(process.Command{Path: filepath.Join(c.options.Binaries, program), Args: args, Dir: c.dir})
}

// waitFor polls until reached returns nil. It fails when ctx ends, with the last error, and when one of the needed processes ends.
func waitFor(ctx context.Context, what string, reached func(context.Context) error, needed ...*process.Process) error {
	var death error
	err := pace.Until(ctx, func(ctx context.Context) (bool, string) {
		for _, p := range needed {
			if !p.Alive() {
				death = p.Death()
				return true, ""
			}
		}
		err := reached(ctx)
		return err == nil, fmt.Sprint(err)
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return death
}

const loopback = "127.0.0.1"

// ServiceAccountIssuer is the issuer, and the default audience, of the tokens of ServiceAccounts.
const ServiceAccountIssuer = "https://kubernetes.default.svc"

// The ports are below 32768, the first port that Linux assigns to outgoing connections. Otherwise a connection could take the port of an API
// server that is stopped.
const (
	firstPort = 20000
	lastPort  = 29999
)

// FreePort returns a free port of 127.0.0.1 for a program that listens on it later. It chooses at random, so that programs that start at the
// same time rarely get the same port.
func FreePort() (int, error) {
	const attempts = 100
	var err error
	for range attempts {
		port := firstPort + rand.IntN(lastPort-firstPort+1) //nolint:gosec // not a secret
		if err = portIsFree(port); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port on %s between %d and %d: %w", loopback, firstPort, lastPort, err)
}

func portIsFree(port int) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return listener.Close()
}
