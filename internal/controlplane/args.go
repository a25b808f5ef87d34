package controlplane

import "strconv"

// etcd listens on Unix sockets inside the folder of the control plane: it has no authentication, and a TCP port would offer every
// object of the cluster to every user of the machine. The ":0" satisfies its check for a port and is part of the file name.
const (
	etcdClientURL = "unix://etcd.sock:0"
	etcdPeerURL   = "unix://etcd-peer.sock:0"
	etcdDataDir   = "etcd"
)

func etcdArgs() []string {
	return []string{
		"--name=muster",
		"--data-dir=" + etcdDataDir,
		"--listen-client-urls=" + etcdClientURL,
		"--advertise-client-urls=" + etcdClientURL,
		"--listen-peer-urls=" + etcdPeerURL,
		"--initial-advertise-peer-urls=" + etcdPeerURL,
		"--initial-cluster=muster=" + etcdPeerURL,
		// The data needs to outlive a crash of etcd, not one of the machine.
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func apiServerArgs(port int, extra []string) []string {
	return append([]string{
		"--etcd-servers=" + etcdClientURL,
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--advertise-address=" + loopback,
		// Endpoints refuse loopback addresses, so publishing ours would only fill the log.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + serviceCIDR,
		"--tls-cert-file=" + fileServerCert,
		"--tls-private-key-file=" + fileServerKey,
		"--client-ca-file=" + fileCA,
		"--requestheader-client-ca-file=" + fileFrontProxyCA,
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + fileServiceAccount,
		"--service-account-signing-key-file=" + fileServiceAccount,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		// A request that lost its credential has to be a 401, as on hardened clusters, not some anonymous user's 403.
		"--anonymous-auth=false",
		"--allow-privileged=true",
	}, extra...)
}

func controllerManagerArgs(kubeconfig string, extra []string) []string {
	return append([]string{
		"--kubeconfig=" + kubeconfig,
		"--root-ca-file=" + fileCA,
		"--service-account-private-key-file=" + fileServiceAccount,
		"--cluster-signing-cert-file=" + fileCA,
		"--cluster-signing-key-file=" + fileCAKey,
		"--use-service-account-credentials=false",
		"--leader-elect=false",
		// Nobody asks for its health or metrics, and a port less is a port less to fight over.
		"--secure-port=0",
		// Nobody asks for certificates here, and each signer watches its files, for which Linux has 128 watchers in all.
		"--controllers=*,-cloud-node-lifecycle-controller,-service-lb-controller,-node-route-controller," +
			"-certificatesigningrequest-signing-controller",
		// The defaults are 20 and 30, which a test that makes a hundred namespaces feels.
		"--kube-api-qps=200",
		"--kube-api-burst=400",
	}, extra...)
}
