package local

import (
	"os"
	"path/filepath"
	"time"

	"github.com/muster-fleet/muster/internal/pki"
)

// write writes all files of the node into its directory: certificates, kubeconfigs and configuration.
func (n node) write(now time.Time) error {
	files, err := n.configs()
	if err != nil {
		return err
	}
	for _, add := range []func(map[string][]byte, time.Time) error{n.certificates, n.frontCertificates} {
		if err := add(files, now); err != nil {
			return err
		}
	}
	for _, dir := range []string{dirLogs, dirCNI, dirTemp} {
		if err := os.MkdirAll(n.path(dir), 0o700); err != nil {
			return err
		}
	}
	for name, data := range files {
		if err := os.WriteFile(n.path(filepath.FromSlash(name)), data, 0o600); err != nil {
			return err
		}
	}
	return n.spec().Write(n.path(fileMachine))
}

func (n node) certificates(files map[string][]byte, now time.Time) error {
	ca, err := pki.NewAuthority("muster-"+n.cluster, now)
	if err != nil {
		return err
	}
	// A separate authority, because API servers would accept each client certificate of this authority as the certificate of the aggregation proxy.
	frontProxy, err := pki.NewAuthority("muster-"+n.cluster+"-front-proxy", now)
	if err != nil {
		return err
	}
	if files[fileServiceAccount], err = pki.NewKey(); err != nil {
		return err
	}
	files[fileCA], files[fileCAKey], files[fileFrontProxyCA] = ca.Pair.Cert, ca.Pair.Key, frontProxy.Pair.Cert
	if err := n.servers(files, ca); err != nil {
		return err
	}
	return n.clients(files, ca)
}

func (n node) servers(files map[string][]byte, ca *pki.Authority) error {
	apiServer, err := ca.Server("kube-apiserver", n.node(), n.serviceIP(), "127.0.0.1",
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return err
	}
	kubelet, err := ca.Server(n.name(), n.node(), n.name())
	if err != nil {
		return err
	}
	addPair(files, fileAPIServer, apiServer)
	addPair(files, fileKubeletServer, kubelet)
	return nil
}

// clients are the identities of the programs as users of the API server.
func (n node) clients(files map[string][]byte, ca *pki.Authority) error {
	for file, who := range map[string][]string{ // user and groups
		fileAdmin:             {"muster-admin", "system:masters"},
		fileControllerManager: {"system:kube-controller-manager", "system:masters"}, // see --use-service-account-credentials
		fileScheduler:         {"system:kube-scheduler"},
		fileKubelet:           {"system:node:" + n.name(), "system:nodes"},
		fileProxy:             {"system:kube-proxy"},
	} {
		pair, err := ca.Client(who[0], who[1:]...)
		if err != nil {
			return err
		}
		if files[file], err = pki.Kubeconfig(n.cluster, n.apiServer(), ca.Pair.Cert, pair.User()); err != nil {
			return err
		}
	}
	pair, err := ca.Client("kube-apiserver", "system:masters")
	addPair(files, fileKubeletClient, pair)
	return err
}

// frontCertificates adds the certificates of the second address. The cluster does not trust their authority, as with a load balancer.
func (n node) frontCertificates(files map[string][]byte, now time.Time) error {
	ca, err := pki.NewAuthority("muster-"+n.cluster+"-front", now)
	if err != nil {
		return err
	}
	pair, err := ca.Server("front", n.node())
	if err != nil {
		return err
	}
	files[fileFrontCA] = ca.Pair.Cert
	addPair(files, fileFront, pair)
	return nil
}

func addPair(files map[string][]byte, name string, pair pki.Pair) {
	files[name+".crt"], files[name+".key"] = pair.Cert, pair.Key
}
