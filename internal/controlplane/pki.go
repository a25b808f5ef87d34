package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certificates outlive any test or demo, and start in the past because clocks of two machines never agree.
const (
	certificateLifetime = 30 * 24 * time.Hour
	certificateBackdate = time.Hour
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

// keyPair is a certificate with its private key, both as PEM.
type keyPair struct {
	Cert, Key []byte
}

// authority signs the certificates of one control plane. Its keys are ECDSA: an RSA key alone takes longer to generate
// than everything else in here.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  keyPair
}

func newAuthority(commonName string, now time.Time) (*authority, error) {
	template := certificateTemplate(pkix.Name{CommonName: commonName}, now)
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	pair, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(pair.Cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	return &authority{cert: cert, key: key, pem: pair}, err
}

// client issues a certificate that Kubernetes reads as the given user in the given groups.
func (a *authority) client(user string, now time.Time, groups ...string) (keyPair, error) {
	template := certificateTemplate(pkix.Name{CommonName: user, Organization: groups}, now)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

// server issues the serving certificate of the API server, for every name it is reached by.
func (a *authority) server(now time.Time) (keyPair, error) {
	template := certificateTemplate(pkix.Name{CommonName: "kube-apiserver"}, now)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.IPAddresses = []net.IP{net.ParseIP(loopback), net.ParseIP(serviceIP)}
	template.DNSNames = []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, err
	}
	return sign(template, a.cert, key, a.key)
}

func certificateTemplate(subject pkix.Name, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:   subject,
		NotBefore: now.Add(-certificateBackdate),
		NotAfter:  now.Add(certificateLifetime),
		KeyUsage:  x509.KeyUsageDigitalSignature,
	}
}

func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (keyPair, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return keyPair{}, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return keyPair{}, err
	}
	keyPEM, err := encodeKey(key)
	return keyPair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: keyPEM}, err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// identities are the parts of the PKI that stay in memory: the files are for the child processes.
type identities struct {
	ca                []byte
	admin             keyPair
	controllerManager keyPair
}

// writePKI makes a fresh PKI and writes what the processes read into dir.
func writePKI(dir, name string, now time.Time) (*identities, error) {
	ca, err := newAuthority("muster-"+name, now)
	if err != nil {
		return nil, err
	}
	server, err := ca.server(now)
	if err != nil {
		return nil, err
	}
	// An authority of its own: were it the same one, every client certificate could pose as the aggregation proxy.
	frontProxy, err := newAuthority("muster-"+name+"-front-proxy", now)
	if err != nil {
		return nil, err
	}
	serviceAccounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serviceAccountKey, err := encodeKey(serviceAccounts)
	if err != nil {
		return nil, err
	}
	if err := writeFiles(dir, map[string][]byte{
		fileCA: ca.pem.Cert, fileCAKey: ca.pem.Key,
		fileServerCert: server.Cert, fileServerKey: server.Key,
		fileFrontProxyCA:   frontProxy.pem.Cert,
		fileServiceAccount: serviceAccountKey,
	}); err != nil {
		return nil, err
	}
	return ca.identities(now)
}

func (a *authority) identities(now time.Time) (*identities, error) {
	admin, err := a.client("muster-admin", now, "system:masters")
	if err != nil {
		return nil, err
	}
	// system:masters, because the controllers share this identity: the role system:kube-controller-manager expects each of
	// them to use a ServiceAccount of its own, which makes the start twice as slow.
	manager, err := a.client("system:kube-controller-manager", now, "system:masters")
	return &identities{ca: a.pem.Cert, admin: admin, controllerManager: manager}, err
}

func writeFiles(dir string, files map[string][]byte) error {
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
