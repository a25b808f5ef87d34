package local

import (
	"net"
	"strconv"
)

// etcd and the rest listen on loopback, which is the node's own: nobody outside of it gets there.
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
		// The data needs to outlive a crash of the node's processes, not one of the real machine.
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
		// With an identity for each controller the start takes twice as long.
		"--use-service-account-credentials=false",
		// Nobody asks for certificates here, and each signer watches its files, for which Linux has 128 watchers in all.
		"--controllers=*,-cloud-node-lifecycle-controller,-service-lb-controller,-node-route-controller,"+
			"-certificatesigningrequest-signing-controller",
	)
}

func (n node) schedulerArgs() []string { return n.loopbackServer(fileScheduler) }

// loopbackServer has what controller manager and scheduler share. There is one of each, so nobody to elect a leader from.
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
		net.JoinHostPort(n.node(), strconv.Itoa(portFront)),
		n.path(fileFront + ".crt"), n.path(fileFront + ".key"),
		n.apiServer(), n.path(fileCA),
	}
}
