package controlplane

import (
	"os"
	"path/filepath"
	"time"

	"github.com/muster-fleet/muster/internal/pki"
)

// Names of files in the directory of a control plane.
const (
	fileCA             = "ca.crt"
	fileServerCert     = "apiserver.crt"
	fileServerKey      = "apiserver.key"
	fileServiceAccount = "service-account.key"
)

// serviceIP is the address of the Service default/kubernetes.
const (
	serviceCIDR = "10.96.0.0/16"
	serviceIP   = "10.96.0.1"
)

// identities are the credentials that this process uses or gives away. The other ones are only in files.
type identities struct {
	ca                       []byte
	admin, controllerManager pki.Pair
}

// writePKI creates an authority and everything it signs, and writes the files that the processes read.
func writePKI(dir, name string, now time.Time) (*identities, error) {
	ca, err := pki.NewAuthority("muster-"+name, now)
	if err != nil {
		return nil, err
	}
	server, err := ca.Server("kube-apiserver", loopback, serviceIP,
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return nil, err
	}
	serviceAccountKey, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	admin, err := ca.Client("muster-admin", "system:masters")
	if err != nil {
		return nil, err
	}
	// The controller manager is in system:masters because all of its controllers share this identity, and the ClusterRole
	// system:kube-controller-manager does not have the rights of all controllers.
	manager, err := ca.Client("system:kube-controller-manager", "system:masters")
	if err != nil {
		return nil, err
	}
	return &identities{ca: ca.Pair.Cert, admin: admin, controllerManager: manager}, writeFiles(dir, map[string][]byte{
		fileCA: ca.Pair.Cert, fileServerCert: server.Cert, fileServerKey: server.Key, fileServiceAccount: serviceAccountKey,
	})
}

func writeFiles(dir string, files map[string][]byte) error {
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
