package local

import (
	"fmt"
	"syscall"

	"sigs.k8s.io/yaml"
)

// pauseImage is the image of the container that every pod has. It is never pulled.
const pauseImage = "localhost/muster-e2e/pause:1"

// configs are the configuration files of the node by their path inside its directory.
func (n node) configs() (map[string][]byte, error) {
	kubelet, err := yaml.Marshal(n.kubeletConfig())
	if err != nil {
		return nil, err
	}
	proxy, err := yaml.Marshal(n.proxyConfig())
	if err != nil {
		return nil, err
	}
	cni, err := yaml.Marshal(n.cniConfig())
	if err != nil {
		return nil, err
	}
	if cni, err = yaml.YAMLToJSON(cni); err != nil {
		return nil, err
	}
	return map[string][]byte{
		fileKubeletConfig:              kubelet,
		fileProxyConfig:                proxy,
		fileContainerd:                 []byte(n.containerdConfig()),
		dirCNI + "/10-bridge.conflist": cni,
	}, nil
}

func (n node) kubeletConfig() map[string]any {
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		// Since 1.35 the default is to fail.
		"failCgroupV1": false,
		// systemd, if it runs, does not manage these cgroups.
		"cgroupDriver": "cgroupfs",
		// Two kubelets with the same root would delete each other's pods.
		"cgroupRoot":               n.cgroup(),
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"address":                  n.node(),
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": n.path(fileCA)},
		},
		"authorization":     map[string]any{"mode": "Webhook"},
		"tlsCertFile":       n.path(fileKubeletServer + ".crt"),
		"tlsPrivateKeyFile": n.path(fileKubeletServer + ".key"),
		"failSwapOn":        false,
		// Pods have no DNS, so that they do not use the DNS of the real machine.
		"resolvConf": "",
		// Images come from Load only, so a deleted image could not be pulled again.
		"imageGCHighThresholdPercent": 100,
		"evictionHard": map[string]any{
			"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%",
		},
		"nodeStatusUpdateFrequency": "5s",
	}
}

func (n node) proxyConfig() map[string]any {
	return map[string]any{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"clientConnection": map[string]any{"kubeconfig": n.path(fileProxy)},
		"mode":             "iptables",
		"clusterCIDR":      n.pods(),
		// The limit applies to the real machine and must not change.
		"conntrack": map[string]any{"maxPerCore": 0},
		// The delay until a Service includes a changed pod; the default is a second.
		"iptables": map[string]any{"minSyncPeriod": "100ms"},
	}
}

func (n node) cniConfig() map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type":   "host-local",
					"ranges": []any{[]any{map[string]any{"subnet": n.pods()}}},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}
}

// containerdConfig has the version that containerd 1.6 reads and later versions convert. Without restrict_oom_score_adj, a machine whose
// root user must not lower that score (without CAP_SYS_RESOURCE) could not start containers.
func (n node) containerdConfig() string {
	return fmt.Sprintf(`version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = %q

[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = %q

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %q
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
`, containerdSocket, pauseImage, n.system.snapshotter, n.system.cni, n.path(dirCNI))
}

// Snapshotters of containerd: one mounts layers over each other, the other copies them, which is slow and needs space.
const (
	snapshotterOverlay = "overlayfs"
	snapshotterCopy    = "native"
)

// overlayMagic is the type of overlayfs in statfs(2), which the root of a container usually has.
const overlayMagic = 0x794c7630

// snapshotter chooses the snapshotter for a directory. An overlay cannot be mounted over another one, as in a container without a volume
// for the directory.
func snapshotter(dir string) (string, error) {
	var about syscall.Statfs_t
	if err := syscall.Statfs(dir, &about); err != nil {
		return "", fmt.Errorf("file system of %s: %w", dir, err)
	}
	return snapshotterOn(int64(about.Type)), nil //nolint:unconvert // its type differs between architectures
}

func snapshotterOn(fileSystem int64) string {
	if fileSystem == overlayMagic {
		return snapshotterCopy
	}
	return snapshotterOverlay
}
