package local

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/e2e/clusters/local/machine"
)

func testNode() node {
	return node{
		addresses: addresses{number: 1}, cluster: "member", dir: "/clusters/member",
		system: system{binaries: "/kube", helpers: "/helpers", containerd: "/usr/bin/containerd", cni: "/opt/cni/bin", snapshotter: snapshotterOverlay},
	}
}

func TestNodeWritesOnlyIntoItsDirectory(t *testing.T) {
	spec := testNode().spec()
	for _, bind := range spec.Binds {
		require.True(t, strings.HasPrefix(bind.From, "/clusters/member/"), bind.From)
		hidden := slices.ContainsFunc(spec.Hidden, func(dir string) bool { return strings.HasPrefix(bind.To, dir+"/") })
		require.True(t, hidden, "%s would be created on the real machine", bind.To)
	}
	for _, program := range spec.Programs {
		require.Equal(t, "/clusters/member", program.Dir)
		require.Equal(t, "/clusters/member/logs", filepath.Dir(program.Log))
	}
	require.Contains(t, spec.Environment, "TMPDIR=/clusters/member/tmp")
}

func TestNodePrograms(t *testing.T) {
	var names []string
	for _, program := range testNode().programs() {
		require.True(t, filepath.IsAbs(program.Args[0]), program.Args[0])
		require.Equal(t, filepath.Base(program.Args[0]) == "kubelet", program.After == containerdSocket)
		names = append(names, filepath.Base(program.Args[0]))
	}
	require.ElementsMatch(t, append(programs(), "containerd", "front"), names)
}

func TestNodeEnvironment(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example.com")
	t.Setenv("KUBECONFIG", "/home/somebody/.kube/config")
	for _, variable := range testNode().spec().Environment {
		name, _, _ := strings.Cut(variable, "=")
		require.Contains(t, []string{"PATH", "HOME", "TMPDIR"}, name)
	}
}

func TestNodeNetwork(t *testing.T) {
	require.Equal(t, [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "addr", "add", "10.99.0.11/24", "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
		{"ip", "route", "add", "default", "via", "10.99.0.1"},
	}, testNode().network())
}

func TestProgramFlags(t *testing.T) {
	n := testNode()
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"etcd": {n.etcdArgs(), []string{"--data-dir=/clusters/member/data/etcd", "--listen-client-urls=http://127.0.0.1:2379"}},
		"the API server": {n.apiServerArgs(), []string{
			"--advertise-address=10.99.0.11", "--secure-port=6443", "--service-cluster-ip-range=10.101.0.0/24",
			"--authorization-mode=Node,RBAC", "--kubelet-certificate-authority=/clusters/member/ca.crt",
		}},
		"the controller manager": {n.controllerManagerArgs(), []string{
			"--kubeconfig=/clusters/member/controller-manager.kubeconfig", "--root-ca-file=/clusters/member/ca.crt",
			"--leader-elect=false", "--bind-address=127.0.0.1",
		}},
		"the scheduler": {n.schedulerArgs(), []string{
			"--kubeconfig=/clusters/member/scheduler.kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1",
		}},
		"the kubelet": {n.kubeletArgs(), []string{
			"--config=/clusters/member/kubelet.yaml", "--hostname-override=member-node", "--node-ip=10.99.0.11",
		}},
		"kube-proxy":                      {n.proxyArgs(), []string{"--config=/clusters/member/proxy.yaml", "--hostname-override=member-node"}},
		"the proxy of the second address": {n.frontArgs(), []string{"10.99.0.11:7443", "https://10.99.0.11:6443"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Subset(t, test.args, test.want)
			flags := map[string]bool{}
			for _, arg := range test.args {
				flag, _, _ := strings.Cut(arg, "=")
				require.False(t, strings.HasPrefix(flag, "--") && flags[flag], "%s is given twice", flag)
				flags[flag] = true
			}
		})
	}
}

func TestSpecRoundTrip(t *testing.T) {
	file := filepath.Join(t.TempDir(), fileMachine)
	want := testNode().spec()
	require.NoError(t, want.Write(file))
	got, err := machine.Read(file)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestAddressesAreUnique(t *testing.T) {
	for l := range lane(lanes) {
		requireNoneShared(t, l)
	}
	require.NotEqual(t, lane(0).name(), lane(1).name())
	require.False(t, strings.HasPrefix(lane(1).cgroups(), lane(0).cgroups()), "a prefix of the other lane's cgroups")
	require.False(t, networkOf(lane(0)).Overlaps(networkOf(lane(1))))
}

func networkOf(l lane) netip.Prefix { return netip.MustParsePrefix(l.machine() + "/24").Masked() }

// requireNoneShared does not compare services and pods of two lanes, which are in separate networks.
func requireNoneShared(t *testing.T, l lane) {
	t.Helper()
	machines := networkOf(l)
	seen := map[string]bool{l.machine(): true}
	var networks []netip.Prefix
	for number := range maxClusters {
		a := addresses{lane: l, number: number}
		for _, value := range []string{a.node(), a.mac(), a.port()} {
			require.False(t, seen[value], value)
			seen[value] = true
		}
		require.True(t, machines.Contains(netip.MustParseAddr(a.node())))
		services, pods := netip.MustParsePrefix(a.services()), netip.MustParsePrefix(a.pods())
		require.True(t, services.Contains(netip.MustParseAddr(a.serviceIP())))
		networks = append(networks, services, pods)
	}
	networks = append(networks, machines)
	for i, one := range networks {
		for _, other := range networks[i+1:] {
			require.False(t, one.Overlaps(other), "%s and %s", one, other)
		}
	}
}

func TestURLs(t *testing.T) {
	a := addresses{number: 1}
	require.Equal(t, "https://10.99.0.11:6443", a.apiServer())
	require.Equal(t, "https://10.99.0.11:7443", a.secondAddress())
	require.Equal(t, "https://10.99.1.11:6443", addresses{lane: 1, number: 1}.apiServer())
}

func TestNodeConfiguration(t *testing.T) {
	files, err := testNode().configs()
	require.NoError(t, err)
	require.Len(t, files, 4)

	t.Run("kubelet: its own cgroup, and cgroup version 1", func(t *testing.T) {
		var kubelet map[string]any
		require.NoError(t, yaml.UnmarshalStrict(files[fileKubeletConfig], &kubelet))
		require.Equal(t, "KubeletConfiguration", kubelet["kind"])
		require.Equal(t, "/muster-e2e-member", kubelet["cgroupRoot"])
		require.Equal(t, "cgroupfs", kubelet["cgroupDriver"])
		require.Equal(t, false, kubelet["failCgroupV1"])
	})

	t.Run("kubelet: accepts only clients that the API server authenticates", func(t *testing.T) {
		authentication := testNode().kubeletConfig()["authentication"]
		require.Equal(t, map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": "/clusters/member/ca.crt"},
		}, authentication)
	})

	t.Run("kube-proxy: no limits of the real machine", func(t *testing.T) {
		var proxy map[string]any
		require.NoError(t, yaml.UnmarshalStrict(files[fileProxyConfig], &proxy))
		require.Equal(t, map[string]any{"maxPerCore": 0.0}, proxy["conntrack"])
		require.Equal(t, "10.201.0.0/24", proxy["clusterCIDR"])
	})

	t.Run("containerd: local pause image, and no lower OOM score", func(t *testing.T) {
		containerd := string(files[fileContainerd])
		require.Contains(t, containerd, `sandbox_image = "localhost/muster-e2e/pause:1"`)
		require.Contains(t, containerd, `snapshotter = "overlayfs"`)
		require.Contains(t, containerd, "restrict_oom_score_adj = true")
		require.Contains(t, containerd, `bin_dir = "/opt/cni/bin"`)
		require.Contains(t, containerd, `conf_dir = "/clusters/member/cni"`)
	})

	t.Run("pods: addresses of their cluster", func(t *testing.T) {
		var cni struct {
			Plugins []struct {
				Type string
				IPAM struct{ Ranges [][]struct{ Subnet string } }
			}
		}
		require.NoError(t, json.Unmarshal(files[dirCNI+"/10-bridge.conflist"], &cni))
		require.Equal(t, "bridge", cni.Plugins[0].Type)
		require.Equal(t, "10.201.0.0/24", cni.Plugins[0].IPAM.Ranges[0][0].Subnet)
		require.Equal(t, "portmap", cni.Plugins[1].Type)
	})
}

func TestSnapshotter(t *testing.T) {
	const ext4 = 0xef53
	require.Equal(t, "overlayfs", snapshotterOn(ext4))
	require.Equal(t, "native", snapshotterOn(overlayMagic))
	_, err := snapshotter("/nowhere")
	require.ErrorContains(t, err, "/nowhere")
}

func TestNodeFiles(t *testing.T) {
	n := testNode()
	n.dir = t.TempDir()
	require.NoError(t, n.write(time.Now()))
	roots := func(name string) *x509.CertPool {
		data, err := os.ReadFile(n.path(name))
		require.NoError(t, err)
		pool := x509.NewCertPool()
		require.True(t, pool.AppendCertsFromPEM(data))
		return pool
	}

	t.Run("server certificates: addresses, and another authority for the second address", func(t *testing.T) {
		for _, test := range []struct{ file, ca, host string }{
			{fileAPIServer, fileCA, n.node()},
			{fileAPIServer, fileCA, n.serviceIP()},
			{fileAPIServer, fileCA, "kubernetes.default.svc"},
			{fileKubeletServer, fileCA, n.node()},
			{fileFront, fileFrontCA, n.node()},
		} {
			_, err := leaf(t, n, test.file).Verify(x509.VerifyOptions{DNSName: test.host, Roots: roots(test.ca)})
			require.NoError(t, err, "%s as %s", test.file, test.host)
		}
		_, err := leaf(t, n, fileFront).Verify(x509.VerifyOptions{Roots: roots(fileCA)})
		require.Error(t, err)
	})

	t.Run("client certificates: one identity per program", func(t *testing.T) {
		for file, want := range map[string]string{
			fileAdmin: "muster-admin", fileControllerManager: "system:kube-controller-manager", fileScheduler: "system:kube-scheduler",
			fileKubelet: "system:node:member-node", fileProxy: "system:kube-proxy",
		} {
			config, err := clientcmd.BuildConfigFromFlags("", n.path(file))
			require.NoError(t, err)
			require.Equal(t, "https://10.99.0.11:6443", config.Host)
			pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
			require.NoError(t, err)
			require.Equal(t, want, pair.Leaf.Subject.CommonName)
		}
	})

	t.Run("groups: only the kubelet is a node, scheduler and kube-proxy are not administrators", func(t *testing.T) {
		for file, want := range map[string][]string{fileKubelet: {"system:nodes"}, fileScheduler: nil, fileProxy: nil} {
			config, err := clientcmd.BuildConfigFromFlags("", n.path(file))
			require.NoError(t, err)
			pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
			require.NoError(t, err)
			require.Equal(t, want, pair.Leaf.Subject.Organization)
		}
	})

	t.Run("permissions: no other user can read the files", func(t *testing.T) {
		files, err := filepath.Glob(n.path("*"))
		require.NoError(t, err)
		for _, file := range files {
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.Zero(t, info.Mode().Perm()&0o077, file)
		}
	})
}

func TestNodeDirectoryError(t *testing.T) {
	n := testNode()
	n.dir = filepath.Join(string(filepath.Separator), "proc", "nowhere")
	require.ErrorContains(t, n.write(time.Now()), "/proc/nowhere")
}

func leaf(t *testing.T, n node, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(n.path(name+".crt"), n.path(name+".key"))
	require.NoError(t, err)
	return pair.Leaf
}
