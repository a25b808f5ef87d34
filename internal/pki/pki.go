// Package pki issues certificates for the clusters of tests and of the demo.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Certificates are valid for longer than any test or demo runs, and from an hour ago because clocks differ.
const (
	lifetime = 30 * 24 * time.Hour
	backdate = time.Hour
)

// Pair is a certificate and its private key in PEM.
type Pair struct {
	Cert, Key []byte
}

// Authority signs certificates. All keys are ECDSA, because generating RSA keys is slow.
type Authority struct {
	// Pair is the authority's own certificate.
	Pair Pair

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  time.Time
}

// NewAuthority creates a self-signed authority. Its certificates are valid around now.
func NewAuthority(commonName string, now time.Time) (*Authority, error) {
	a := &Authority{now: now}
	template := a.template(pkix.Name{CommonName: commonName})
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature

	var err error
	if a.key, err = newKey(); err != nil {
		return nil, err
	}
	if a.Pair, err = sign(template, template, a.key, a.key); err != nil {
		return nil, err
	}
	block, _ := pem.Decode(a.Pair.Cert)
	a.cert, err = x509.ParseCertificate(block.Bytes)
	return a, err
}

// Client issues a certificate for a user of Kubernetes with groups.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	template := a.template(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

// Server issues a serving certificate for names and IP addresses.
func (a *Authority) Server(commonName string, hosts ...string) (Pair, error) {
	template := a.template(pkix.Name{CommonName: commonName})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(template)
}

// NewKey creates a private key without a certificate, for signing ServiceAccount tokens.
func NewKey() ([]byte, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	return keyutil.MarshalPrivateKeyToPEM(key)
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func (a *Authority) template(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		Subject:   subject,
		NotBefore: a.now.Add(-backdate),
		NotAfter:  a.now.Add(lifetime),
		KeyUsage:  x509.KeyUsageDigitalSignature,
	}
}

func (a *Authority) issue(template *x509.Certificate) (Pair, error) {
	key, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	return sign(template, a.cert, key, a.key)
}

func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return Pair{}, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der}), Key: keyPEM}, err
}

// Kubeconfig returns a kubeconfig with one context.
func Kubeconfig(name, url string, ca []byte, user *clientcmdapi.AuthInfo) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.Write(*config)
}

// User returns the user of a kubeconfig with this certificate.
func (p Pair) User() *clientcmdapi.AuthInfo {
	return &clientcmdapi.AuthInfo{ClientCertificateData: p.Cert, ClientKeyData: p.Key}
}
