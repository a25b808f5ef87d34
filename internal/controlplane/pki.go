package controlplane

import (
	"os"
	"path/filepath"
	"time"

	"github.com/muster-fleet/muster/internal/pki"
)

// File names inside the folder of a control plane.
const (
	fileCA             = "ca.crt"
	fileCAKey          = "ca.key"
	fileServerCert     = "apiserver.crt"
	fileServerKey      = "apiserver.key"
	fileFrontProxyCA   = "front-proxy-ca.crt"
	fileServiceAccount = "service-account.key"
)

// serviceIP is the ClusterIP of the Service default/kubernetes inside serviceCIDR.
const (
	serviceCIDR = "10.96.0.0/16"
	serviceIP   = "10.96.0.1"
)

// identities are the parts of the PKI that stay in memory: the files are for the child processes.
type identities struct {
	ca                []byte
	admin             pki.Pair
	controllerManager pki.Pair
}

// writePKI makes a fresh PKI and writes what the processes read into dir.
func writePKI(dir, name string, now time.Time) (*identities, error) {
	ca, err := pki.NewAuthority("muster-"+name, now)
	if err != nil {
		return nil, err
	}
	server, err := ca.Server("kube-apiserver", serverNames()...)
	if err != nil {
		return nil, err
	}
	// An authority of its own: were it the same one, every client certificate could pose as the aggregation proxy.
	frontProxy, err := pki.NewAuthority("muster-"+name+"-front-proxy", now)
	if err != nil {
		return nil, err
	}
	serviceAccountKey, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	if err := writeFiles(dir, map[string][]byte{
		fileCA: ca.Pair.Cert, fileCAKey: ca.Pair.Key,
		fileServerCert: server.Cert, fileServerKey: server.Key,
		fileFrontProxyCA:   frontProxy.Pair.Cert,
		fileServiceAccount: serviceAccountKey,
	}); err != nil {
		return nil, err
	}
	return issueIdentities(ca)
}

// serverNames are all the API server is reached by.
func serverNames() []string {
	return []string{
		loopback, serviceIP,
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
}

func issueIdentities(ca *pki.Authority) (*identities, error) {
	admin, err := ca.Client("muster-admin", "system:masters")
	if err != nil {
		return nil, err
	}
	// system:masters, because the controllers share this identity: the role system:kube-controller-manager expects each of
	// them to use a ServiceAccount of its own, which makes the start twice as slow.
	manager, err := ca.Client("system:kube-controller-manager", "system:masters")
	return &identities{ca: ca.Pair.Cert, admin: admin, controllerManager: manager}, err
}

func writeFiles(dir string, files map[string][]byte) error {
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
