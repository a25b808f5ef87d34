package local

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// pauseImage is the image of the container that every pod has. Nothing ever pulls it.
const pauseImage = "localhost/muster-e2e/pause:1"

// configs are the configuration files of the node, by their path inside its folder.
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
		// The default since 1.35 is to refuse to start there.
		"failCgroupV1": false,
		// systemd, if it runs at all, knows nothing of our cgroups.
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
		// There is no DNS for pods, rather than that of whoever runs the tests.
		"resolvConf": "",
		// Images come by Load only: one that was collected could not be pulled again.
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
		// The limit is one of the real machine, and not ours to change.
		"conntrack": map[string]any{"maxPerCore": 0},
		// A Service follows its pods within this time; the default is a second.
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

// containerdConfig is of the version that containerd 1.6 reads and later ones convert. restrict_oom_score_adj, because a
// machine whose root may not lower that score (one without CAP_SYS_RESOURCE) could start no container at all.
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
