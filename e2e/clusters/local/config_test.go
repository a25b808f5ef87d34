package local

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func TestConfigurationFilesOfANode(t *testing.T) {
	files, err := testNode().configs()
	require.NoError(t, err)
	require.Len(t, files, 4)

	t.Run("the kubelet has a cgroup of its own and runs on version 1, too", func(t *testing.T) {
		var kubelet map[string]any
		require.NoError(t, yaml.UnmarshalStrict(files[fileKubeletConfig], &kubelet))
		require.Equal(t, "KubeletConfiguration", kubelet["kind"])
		require.Equal(t, "/muster-e2e-member", kubelet["cgroupRoot"])
		require.Equal(t, "cgroupfs", kubelet["cgroupDriver"])
		require.Equal(t, false, kubelet["failCgroupV1"])
	})

	t.Run("the kubelet lets nobody in whom the API server does not know", func(t *testing.T) {
		authentication := testNode().kubeletConfig()["authentication"]
		require.Equal(t, map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": "/clusters/member/ca.crt"},
		}, authentication)
	})

	t.Run("kube-proxy changes no limit of the real machine", func(t *testing.T) {
		var proxy map[string]any
		require.NoError(t, yaml.UnmarshalStrict(files[fileProxyConfig], &proxy))
		require.Equal(t, map[string]any{"maxPerCore": 0.0}, proxy["conntrack"])
		require.Equal(t, "10.201.0.0/24", proxy["clusterCIDR"])
	})

	t.Run("containerd asks no registry for the pause image and lowers no OOM score", func(t *testing.T) {
		containerd := string(files[fileContainerd])
		require.Contains(t, containerd, `sandbox_image = "localhost/muster-e2e/pause:1"`)
		require.Contains(t, containerd, `snapshotter = "overlayfs"`)
		require.Contains(t, containerd, "restrict_oom_score_adj = true")
		require.Contains(t, containerd, `bin_dir = "/opt/cni/bin"`)
		require.Contains(t, containerd, `conf_dir = "/clusters/member/cni"`)
	})

	t.Run("pods get addresses of their cluster", func(t *testing.T) {
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
