package local

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/e2e/clusters/local/machine"
)

func testNode() node {
	return node{
		addresses: addresses{number: 1}, cluster: "member", dir: "/clusters/member",
		system: system{binaries: "/kube", helpers: "/helpers", containerd: "/usr/bin/containerd", cni: "/opt/cni/bin", snapshotter: snapshotterOverlay},
	}
}

func TestANodeWritesNowhereButIntoItsFolder(t *testing.T) {
	spec := testNode().spec()
	for _, bind := range spec.Binds {
		require.True(t, strings.HasPrefix(bind.From, "/clusters/member/"), bind.From)
		hidden := slices.ContainsFunc(spec.Hidden, func(dir string) bool { return strings.HasPrefix(bind.To, dir+"/") })
		require.True(t, hidden, "%s would be made on the real machine", bind.To)
	}
	for _, program := range spec.Programs {
		require.Equal(t, "/clusters/member", program.Dir)
		require.Equal(t, "/clusters/member/logs", filepath.Dir(program.Log))
	}
	require.Contains(t, spec.Environment, "TMPDIR=/clusters/member/tmp")
}

func TestANodeRunsTheWholeOfKubernetes(t *testing.T) {
	var names []string
	for _, program := range testNode().programs() {
		require.True(t, filepath.IsAbs(program.Args[0]), program.Args[0])
		require.Equal(t, filepath.Base(program.Args[0]) == "kubelet", program.After == containerdSocket)
		names = append(names, filepath.Base(program.Args[0]))
	}
	require.ElementsMatch(t, append(programs(), "containerd", "front"), names)
}

func TestNoProgramOfANodeSeesTheEnvironmentOfTheTests(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example.com")
	t.Setenv("KUBECONFIG", "/home/somebody/.kube/config")
	for _, variable := range testNode().spec().Environment {
		name, _, _ := strings.Cut(variable, "=")
		require.Contains(t, []string{"PATH", "HOME", "TMPDIR"}, name)
	}
}

func TestTheNetworkOfANode(t *testing.T) {
	require.Equal(t, [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "addr", "add", "10.99.0.11/24", "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
		{"ip", "route", "add", "default", "via", "10.99.0.1"},
	}, testNode().network())
}

func TestFlagsOfThePrograms(t *testing.T) {
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
		"kube-proxy": {n.proxyArgs(), []string{"--config=/clusters/member/proxy.yaml", "--hostname-override=member-node"}},
		"the front":  {n.frontArgs(), []string{"10.99.0.11:7443", "https://10.99.0.11:6443"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Subset(t, test.args, test.want)
			flags := map[string]bool{}
			for _, arg := range test.args {
				flag, _, _ := strings.Cut(arg, "=")
				require.False(t, strings.HasPrefix(flag, "--") && flags[flag], "%s is there twice", flag)
				flags[flag] = true
			}
		})
	}
}

func TestASpecIsReadAsItWasWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), fileMachine)
	want := testNode().spec()
	require.NoError(t, want.Write(file))
	got, err := machine.Read(file)
	require.NoError(t, err)
	require.Equal(t, want, got)
}
