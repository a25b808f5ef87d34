package local

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/muster-fleet/muster/e2e/clusters/local/machine"
)

// node is the one machine of a cluster: control plane and worker at once. All of it follows from these few values.
type node struct {
	addresses
	cluster string
	dir     string // everything it keeps
	system  system
}

// system is what the real machine gives every node.
type system struct {
	binaries   string // folder with the programs of Kubernetes
	helpers    string // folder with our own: init and front
	containerd string // the program
	cni        string // folder with the CNI plugins
	cgroups    hierarchy
	// snapshotter is how containerd puts the layers of images together.
	snapshotter string
}

func (n node) name() string   { return n.cluster + "-node" }
func (n node) cgroup() string { return "/" + n.lane.cgroups() + n.cluster }

// Names inside the folder of a node.
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

// spec is the node as a machine. Folders with fixed names, which Kubernetes and containerd have plenty of, are its own ones:
// nothing of them is ever seen on the real machine.
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
			// Or a pod that reaches a pod of its own node by a Service gets its answers from an address it never asked.
			"net/bridge/bridge-nf-call-iptables": "1",
		},
		Link:        linkName,
		Setup:       n.network(),
		Environment: n.environment(),
		Programs:    n.programs(),
	}
}

// hiddenFolders are those the programs of a node write to at fixed places. What a reboot of a real machine clears is cleared here,
// too.
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

// environment is little on purpose: a proxy for HTTP in the environment of a test would be one for the whole cluster.
func (n node) environment() []string {
	return []string{
		"PATH=" + searchPath(os.Getenv("PATH")),
		"HOME=" + n.dir,
		"TMPDIR=" + n.path(dirTemp),
	}
}

// searchPath adds the folders of administrators' programs, which not everybody's PATH has.
func searchPath(path string) string { return path + ":/usr/local/sbin:/usr/sbin:/sbin" }

// programs start all at once, and each of them waits for those it needs; only the kubelet would end instead.
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

// containerdSocket is where everybody looks for containerd.
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
