package local

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

func TestTheFilesOfANode(t *testing.T) {
	n := testNode()
	n.dir = t.TempDir()
	require.NoError(t, n.write(time.Now()))
	roots := func(name string) *x509.CertPool {
		data, err := os.ReadFile(n.path(name))
		require.NoError(t, err)
		pool := x509.NewCertPool()
		require.True(t, pool.AppendCertsFromPEM(data))
		return pool
	}

	t.Run("servers are known by their addresses, the second one by an authority of its own", func(t *testing.T) {
		for _, test := range []struct{ file, ca, host string }{
			{fileAPIServer, fileCA, n.node()},
			{fileAPIServer, fileCA, n.serviceIP()},
			{fileAPIServer, fileCA, "kubernetes.default.svc"},
			{fileKubeletServer, fileCA, n.node()},
			{fileFront, fileFrontCA, n.node()},
		} {
			_, err := leaf(t, n, test.file).Verify(x509.VerifyOptions{DNSName: test.host, Roots: roots(test.ca)})
			require.NoError(t, err, "%s as %s", test.file, test.host)
		}
		_, err := leaf(t, n, fileFront).Verify(x509.VerifyOptions{Roots: roots(fileCA)})
		require.Error(t, err)
	})

	t.Run("each program has an identity of its own", func(t *testing.T) {
		for file, want := range map[string]string{
			fileAdmin: "muster-admin", fileControllerManager: "system:kube-controller-manager", fileScheduler: "system:kube-scheduler",
			fileKubelet: "system:node:member-node", fileProxy: "system:kube-proxy",
		} {
			config, err := clientcmd.BuildConfigFromFlags("", n.path(file))
			require.NoError(t, err)
			require.Equal(t, "https://10.99.0.11:6443", config.Host)
			pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
			require.NoError(t, err)
			require.Equal(t, want, pair.Leaf.Subject.CommonName)
		}
	})

	t.Run("only the kubelet is a node, and the scheduler and kube-proxy are no administrators", func(t *testing.T) {
		for file, want := range map[string][]string{fileKubelet: {"system:nodes"}, fileScheduler: nil, fileProxy: nil} {
			config, err := clientcmd.BuildConfigFromFlags("", n.path(file))
			require.NoError(t, err)
			pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
			require.NoError(t, err)
			require.Equal(t, want, pair.Leaf.Subject.Organization)
		}
	})

	t.Run("nobody else on the machine can read any of it", func(t *testing.T) {
		files, err := filepath.Glob(n.path("*"))
		require.NoError(t, err)
		for _, file := range files {
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.Zero(t, info.Mode().Perm()&0o077, file)
		}
	})
}

func TestAFolderThatIsMissingIsAnError(t *testing.T) {
	n := testNode()
	n.dir = filepath.Join(string(filepath.Separator), "proc", "nowhere")
	require.ErrorContains(t, n.write(time.Now()), "/proc/nowhere")
}

func leaf(t *testing.T, n node, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(n.path(name+".crt"), n.path(name+".key"))
	require.NoError(t, err)
	return pair.Leaf
}
