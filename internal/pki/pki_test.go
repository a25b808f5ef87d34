package pki

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

func TestServer(t *testing.T) {
	authority, roots := newAuthority(t)
	pair, err := authority.Server("server", "10.96.0.1", "localhost")
	require.NoError(t, err)
	for _, name := range []string{"10.96.0.1", "localhost"} {
		_, err := leaf(t, pair).Verify(x509.VerifyOptions{DNSName: name, Roots: roots})
		require.NoError(t, err, name)
	}
	for _, name := range []string{"10.96.0.2", "example.com"} {
		_, err := leaf(t, pair).Verify(x509.VerifyOptions{DNSName: name, Roots: roots})
		require.Error(t, err, name)
	}
}

func TestClient(t *testing.T) {
	authority, roots := newAuthority(t)
	pair, err := authority.Client("somebody", "one", "two")
	require.NoError(t, err)
	require.Equal(t, "somebody", leaf(t, pair).Subject.CommonName)
	require.Equal(t, []string{"one", "two"}, leaf(t, pair).Subject.Organization)

	_, err = leaf(t, pair).Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.NoError(t, err)
	_, err = leaf(t, pair).Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	require.Error(t, err)
}

func TestAuthoritiesWithTheSameName(t *testing.T) {
	one, _ := newAuthority(t)
	_, others := newAuthority(t)
	pair, err := one.Client("somebody")
	require.NoError(t, err)
	_, err = leaf(t, pair).Verify(x509.VerifyOptions{Roots: others, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.Error(t, err)
}

func TestValidity(t *testing.T) {
	authority, roots := newAuthority(t)
	pair, err := authority.Server("server", "localhost")
	require.NoError(t, err)
	at := func(when time.Time) error {
		_, err := leaf(t, pair).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: when})
		return err
	}
	require.NoError(t, at(time.Now().Add(-30*time.Minute)))
	require.Error(t, at(time.Now().Add(31*24*time.Hour)))
}

func newAuthority(t *testing.T) (*Authority, *x509.CertPool) {
	t.Helper()
	authority, err := NewAuthority("authority", time.Now())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(authority.Pair.Cert))
	return authority, roots
}

func leaf(t *testing.T, pair Pair) *x509.Certificate {
	t.Helper()
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	return certificate.Leaf
}

func TestKubeconfig(t *testing.T) {
	authority, _ := newAuthority(t)
	pair, err := authority.Client("somebody")
	require.NoError(t, err)
	data, err := Kubeconfig("hub", "https://127.0.0.1:6443", authority.Pair.Cert, pair.User())
	require.NoError(t, err)

	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	require.NoError(t, err)
	require.Equal(t, "https://127.0.0.1:6443", config.Host)
	require.Equal(t, authority.Pair.Cert, config.CAData)
	require.Equal(t, string(pair.Cert), string(config.CertData))
	require.Equal(t, string(pair.Key), string(config.KeyData))
}
