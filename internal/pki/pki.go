// Package pki issues the certificates of clusters made for tests and the demo.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// Certificates outlive any test or demo, and start in the past because clocks of two machines never agree.
const (
	lifetime = 30 * 24 * time.Hour
	backdate = time.Hour
)

// Pair is a certificate with its private key, both as PEM.
type Pair struct {
	Cert, Key []byte
}

// Authority signs the certificates of one cluster. Its keys are ECDSA: an RSA key alone takes longer to generate than
// everything else in here.
type Authority struct {
	// Pair is the certificate of the authority itself, with its key.
	Pair Pair

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	now  time.Time
}

// NewAuthority makes a self-signed authority. What it issues is valid around now.
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

// Client issues a certificate that Kubernetes reads as the given user in the given groups.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	template := a.template(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

// Server issues a serving certificate for every name and IP address the server is reached by.
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

// NewKey makes a private key that needs no certificate, such as the one that signs ServiceAccount tokens.
func NewKey() ([]byte, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	return encode(key)
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
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return Pair{}, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return Pair{}, err
	}
	keyPEM, err := encode(key)
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: keyPEM}, err
}

func encode(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
