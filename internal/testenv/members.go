package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/localpods"
	"github.com/muster-fleet/muster/internal/process"
)

// Node runs the pods of the cluster as processes until the test ends, with the programs in the directory binaries. It returns the directory
// with their logs, NAMESPACE_POD.log. If the test fails, it prints the end of each log.
func (c *Cluster) Node(t testing.TB, binaries string) (logs string) {
	t.Helper()
	const restartDelay, lastLines = 200 * time.Millisecond, 40
	logs = t.TempDir()
	log := logrus.New()
	log.SetOutput(testWriter{t})
	r := run(func(ctx context.Context) error {
		return localpods.Run(ctx, localpods.Options{
			RESTConfig: c.RESTConfig(), Binaries: binaries, Logs: logs, Homes: t.TempDir(), Log: log,
			RestartDelay: restartDelay, RestartDelayMax: restartDelay,
		})
	})
	t.Cleanup(func() {
		r.Stop(t)
		if !t.Failed() {
			return
		}
		files, err := filepath.Glob(filepath.Join(logs, "*.log"))
		require.NoError(t, err)
		for _, file := range files {
			if info, err := os.Stat(file); err == nil && info.Size() > 0 {
				t.Logf("the end of %s:\n%s", filepath.Base(file), process.Tail(file, lastLines))
			}
		}
	})
	return logs
}

// PodLogs returns the logs of all pods in the directory that Node has returned.
func PodLogs(t testing.TB, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.log"))
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(data)
	}
	return all.String()
}

// AwaitPodLog waits until a pod has logged the text.
func AwaitPodLog(t testing.TB, folder, text string) {
	t.Helper()
	Eventually(t, func() (bool, string) { return strings.Contains(PodLogs(t, folder), text), "no pod has logged: " + text })
}

// SilentServer is an address that accepts connections and never responds.
func SilentServer(t testing.TB) string {
	t.Helper()
	return "https://" + listen(t).Addr().String()
}

// ClosedPort is an address that refuses connections.
func ClosedPort(t testing.TB) string {
	t.Helper()
	listener := listen(t)
	require.NoError(t, listener.Close())
	return "https://" + listener.Addr().String()
}

// UnusedAddress is a free address for a program that listens on it later.
func UnusedAddress(t testing.TB) string {
	t.Helper()
	port, err := controlplane.FreePort()
	require.NoError(t, err)
	return fmt.Sprint("127.0.0.1:", port)
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// EditKubeconfig changes the cluster and the user of the current context.
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

// At returns the kubeconfig with another server.
func At(t testing.TB, kubeconfig []byte, server string) []byte {
	t.Helper()
	return EditKubeconfig(t, kubeconfig, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.Server = server })
}
