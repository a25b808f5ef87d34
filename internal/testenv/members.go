package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// SilentServer is an address that accepts connections, for the kernel does, and never answers.
func SilentServer(t testing.TB) string {
	t.Helper()
	return "https://" + listen(t).Addr().String()
}

// ClosedPort is an address at which nobody listens.
func ClosedPort(t testing.TB) string {
	t.Helper()
	listener := listen(t)
	require.NoError(t, listener.Close())
	return "https://" + listener.Addr().String()
}

// UnusedAddress is one at which nobody listens, for a program that is to listen there later. It is below the ports that Linux
// gives to outgoing connections, and those of control planes: one of these, of any process on the machine, might take it before.
func UnusedAddress(t testing.TB) string {
	t.Helper()
	for {
		//nolint:gosec // a port is no secret
		listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10000+rand.IntN(10000)))
		if err != nil {
			continue
		}
		require.NoError(t, listener.Close())
		return listener.Addr().String()
	}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// EditKubeconfig changes the cluster and the user of a kubeconfig's current context.
func EditKubeconfig(t testing.TB, kubeconfig []byte, edit func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	config, err := clientcmd.Load(kubeconfig)
	require.NoError(t, err)
	current := config.Contexts[config.CurrentContext]
	edit(config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo])
	data, err := clientcmd.Write(*config)
	require.NoError(t, err)
	return data
}

// At is a kubeconfig with another server.
func At(t testing.TB, kubeconfig []byte, server string) []byte {
	t.Helper()
	return EditKubeconfig(t, kubeconfig, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = server })
}
