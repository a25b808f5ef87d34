package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/pki"
)

func TestThePKIOfAControlPlane(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	ids, err := writePKI(dir, "hub", now)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ids.ca))

	t.Run("the API server is known by every name it is reached by", func(t *testing.T) {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, fileServerCert), filepath.Join(dir, fileServerKey))
		require.NoError(t, err)
		for _, name := range []string{"127.0.0.1", "10.96.0.1", "localhost", "kubernetes.default.svc"} {
			_, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots})
			require.NoError(t, err, name)
		}
		_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: "example.com", Roots: roots})
		require.Error(t, err)
	})

	t.Run("the administrators are clients in system:masters", func(t *testing.T) {
		for _, pair := range []pki.Pair{ids.admin, ids.controllerManager} {
			leaf := requireLeaf(t, pair)
			_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			require.NoError(t, err)
			require.Equal(t, []string{"system:masters"}, leaf.Subject.Organization)
		}
	})

	t.Run("certificates hold for a machine whose clock is behind, and end", func(t *testing.T) {
		leaf := requireLeaf(t, ids.admin)
		require.True(t, leaf.NotBefore.Before(now.Add(-30*time.Minute)))
		require.True(t, leaf.NotAfter.Before(now.Add(31*24*time.Hour)))
	})

	t.Run("a client certificate cannot pose as the aggregation proxy", func(t *testing.T) {
		data, err := os.ReadFile(filepath.Join(dir, fileFrontProxyCA))
		require.NoError(t, err)
		frontProxy := x509.NewCertPool()
		require.True(t, frontProxy.AppendCertsFromPEM(data))
		_, err = requireLeaf(t, ids.admin).Verify(x509.VerifyOptions{
			Roots: frontProxy, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		require.Error(t, err)
	})

	t.Run("nobody else on the machine can read the keys", func(t *testing.T) {
		for _, name := range []string{fileCAKey, fileServerKey, fileServiceAccount} {
			info, err := os.Stat(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), name)
		}
	})
}

func TestTwoControlPlanesDoNotTrustEachOther(t *testing.T) {
	a, err := writePKI(t.TempDir(), "same", time.Now())
	require.NoError(t, err)
	b, err := writePKI(t.TempDir(), "same", time.Now())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(a.ca))
	_, err = requireLeaf(t, b.admin).Verify(x509.VerifyOptions{
		Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	require.Error(t, err)
}

func TestAPKIThatCannotBeWrittenIsAnError(t *testing.T) {
	_, err := writePKI("/nowhere", "hub", time.Now())
	require.ErrorContains(t, err, "/nowhere")
}

func requireLeaf(t *testing.T, pair pki.Pair) *x509.Certificate {
	t.Helper()
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	return certificate.Leaf
}
