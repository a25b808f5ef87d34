package local

import (
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/muster-fleet/muster/e2e/clusters/local/machine"
)

// node is the only machine of a cluster: control plane and worker. All its configuration is derived from these fields.
type node struct {
	addresses
	cluster string
	dir     string // for all its data
	system  system
}

// system is what all nodes use of the real machine.
type system struct {
	binaries   string // directory with the programs of Kubernetes
	helpers    string // directory with the helper programs: init and front
	containerd string // the program
	cni        string // directory with the CNI plugins
	cgroups    hierarchy
	// snapshotter is containerd's snapshotter.
	snapshotter string
}

func (n node) name() string   { return n.cluster + "-node" }
func (n node) cgroup() string { return "/" + n.lane.cgroups() + n.cluster }

// Names inside the directory of a node.
const (
	fileCA             = "ca.crt"
	fileCAKey          = "ca.key"
	fileFrontProxyCA   = "front-proxy-ca.crt"
	fileServiceAccount = "service-account.key"
	fileAPIServer      = "apiserver"         // .crt and .key
	fileKubeletServer  = "kubelet"           // .crt and .key
	fileKubeletClient  = "apiserver-kubelet" // .crt and .key: the API server as a client of the kubelet
	fileFront          = "front"             // .crt and .key
	fileFrontCA        = "front-ca.crt"

	fileAdmin             = "kubeconfig"
	fileControllerManager = "controller-manager.kubeconfig"
	fileScheduler         = "scheduler.kubeconfig"
	fileKubelet           = "kubelet.kubeconfig"
	fileProxy             = "proxy.kubeconfig"

	fileKubeletConfig = "kubelet.yaml"
	fileProxyConfig   = "proxy.yaml"
	fileContainerd    = "containerd.toml"
	fileMachine       = "machine.json"

	dirCNI     = "cni"
	dirData    = "data"
	dirLogs    = "logs"
	dirPodLogs = "pods"
	dirTemp    = "tmp"
)

func (n node) path(elements ...string) string {
	return filepath.Join(append([]string{n.dir}, elements...)...)
}

func (n node) log(program string) string { return n.path(dirLogs, program+".log") }

// spec describes the node for its first process. The node has its own directories in place of the directories with fixed names that
// Kubernetes and containerd use, so that nothing is written there on the real machine.
func (n node) spec() machine.Spec {
	return machine.Spec{
		Hostname: n.name(),
		Hidden:   hiddenFolders(),
		Binds: []machine.Bind{
			{From: n.path(dirData, "kubelet"), To: "/var/lib/kubelet"},
			{From: n.path(dirData, "containerd"), To: "/var/lib/containerd"},
			{From: n.path(dirData, "cni"), To: "/var/lib/cni"},
			{From: n.path(dirPodLogs), To: "/var/log/pods"},
		},
		Sysctls: map[string]string{
			"net/ipv4/ip_forward": "1",
			// Without it, a pod that connects to a pod of its own node by a Service gets responses from another address.
			"net/bridge/bridge-nf-call-iptables": "1",
		},
		Link:        linkName,
		Setup:       n.network(),
		Environment: n.environment(),
		Programs:    n.programs(),
	}
}

// hiddenFolders are the directories with fixed names that the programs of a node write to. A restart of the node empties them; a
// reboot of a real machine empties /run.
func hiddenFolders() []string { return []string{"/run", "/var/lib", "/var/log"} }

const linkName = "eth0"

func (n node) network() [][]string {
	return [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "addr", "add", n.node() + "/" + strconv.Itoa(networkBits), "dev", linkName},
		{"ip", "link", "set", linkName, "up"},
		{"ip", "route", "add", "default", "via", n.lane.machine()},
	}
}

// environment is minimal: an HTTP proxy in the environment of a test must not apply to the cluster.
func (n node) environment() []string {
	return []string{
		"PATH=" + searchPath(os.Getenv("PATH")),
		"HOME=" + n.dir,
		"TMPDIR=" + n.path(dirTemp),
	}
}

// searchPath adds the directories of system programs, which not every PATH contains.
func searchPath(path string) string { return path + ":/usr/local/sbin:/usr/sbin:/sbin" }

// programs are started at the same time. Each waits for the programs it needs, except the kubelet, which would exit.
func (n node) programs() []machine.Program {
	kubernetes := func(name string, args []string) machine.Program {
		return n.program(filepath.Join(n.system.binaries, name), args)
	}
	return []machine.Program{
		kubernetes("etcd", n.etcdArgs()),
		kubernetes("kube-apiserver", n.apiServerArgs()),
		kubernetes("kube-controller-manager", n.controllerManagerArgs()),
		kubernetes("kube-scheduler", n.schedulerArgs()),
		kubernetes("kube-proxy", n.proxyArgs()),
		after(containerdSocket, kubernetes("kubelet", n.kubeletArgs())),
		n.program(n.system.containerd, []string{"--config=" + n.path(fileContainerd)}),
		n.program(filepath.Join(n.system.helpers, "front"), n.frontArgs()),
	}
}

// containerdSocket is the default address of containerd.
const containerdSocket = "/run/containerd/containerd.sock"

func after(file string, p machine.Program) machine.Program {
	p.After = file
	return p
}

func (n node) program(path string, args []string) machine.Program {
	return machine.Program{
		Args: append([]string{path}, args...),
		Dir:  n.dir,
		Log:  n.log(filepath.Base(path)),
	}
}

// etcd and others listen on the loopback interface of the node, which is not reachable from outside.
const (
	etcdClientURL = "http://127.0.0.1:2379"
	etcdPeerURL   = "http://127.0.0.1:2380"
)

func (n node) etcdArgs() []string {
	return []string{
		"--name=" + n.name(),
		"--data-dir=" + n.path(dirData, "etcd"),
		"--listen-client-urls=" + etcdClientURL,
		"--advertise-client-urls=" + etcdClientURL,
		"--listen-peer-urls=" + etcdPeerURL,
		"--initial-advertise-peer-urls=" + etcdPeerURL,
		"--initial-cluster=" + n.name() + "=" + etcdPeerURL,
		// The data have to survive a crash of the node's processes, not of the real machine.
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func (n node) apiServerArgs() []string {
	return []string{
		"--etcd-servers=" + etcdClientURL,
		"--secure-port=" + strconv.Itoa(portAPIServer),
		"--advertise-address=" + n.node(),
		"--service-cluster-ip-range=" + n.services(),
		"--tls-cert-file=" + n.path(fileAPIServer+".crt"),
		"--tls-private-key-file=" + n.path(fileAPIServer+".key"),
		"--client-ca-file=" + n.path(fileCA),
		"--requestheader-client-ca-file=" + n.path(fileFrontProxyCA),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + n.path(fileServiceAccount),
		"--service-account-signing-key-file=" + n.path(fileServiceAccount),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--kubelet-client-certificate=" + n.path(fileKubeletClient+".crt"),
		"--kubelet-client-key=" + n.path(fileKubeletClient+".key"),
		"--kubelet-certificate-authority=" + n.path(fileCA),
		"--kubelet-preferred-address-types=InternalIP",
	}
}

func (n node) controllerManagerArgs() []string {
	return append(n.loopbackServer(fileControllerManager),
		"--root-ca-file="+n.path(fileCA),
		"--service-account-private-key-file="+n.path(fileServiceAccount),
		"--cluster-signing-cert-file="+n.path(fileCA),
		"--cluster-signing-key-file="+n.path(fileCAKey),
		// With an identity per controller the start takes twice as long.
		"--use-service-account-credentials=false",
		// No test requests certificates, and each signer watches its files, for which Linux allows 128 watchers.
		"--controllers=*,-cloud-node-lifecycle-controller,-service-lb-controller,-node-route-controller,"+
			"-certificatesigningrequest-signing-controller",
	)
}

func (n node) schedulerArgs() []string { return n.loopbackServer(fileScheduler) }

// loopbackServer has the flags that controller manager and scheduler share. There is one of each, so they need no leader election.
func (n node) loopbackServer(kubeconfig string) []string {
	path := n.path(kubeconfig)
	return []string{
		"--kubeconfig=" + path,
		"--authentication-kubeconfig=" + path,
		"--authorization-kubeconfig=" + path,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
	}
}

func (n node) kubeletArgs() []string {
	return []string{
		"--config=" + n.path(fileKubeletConfig),
		"--kubeconfig=" + n.path(fileKubelet),
		"--hostname-override=" + n.name(),
		"--node-ip=" + n.node(),
		"--v=2",
	}
}

func (n node) proxyArgs() []string {
	return []string{"--config=" + n.path(fileProxyConfig), "--hostname-override=" + n.name()}
}

func (n node) frontArgs() []string {
	return []string{
		net.JoinHostPort(n.node(), strconv.Itoa(portSecondAddress)),
		n.path(fileFront + ".crt"), n.path(fileFront + ".key"),
		n.apiServer(), n.path(fileCA),
	}
}
