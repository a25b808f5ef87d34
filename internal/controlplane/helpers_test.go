package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// soon bounds everything a test waits for that should take milliseconds. It is no measure of speed: a machine may be very busy.
const soon = 2 * time.Minute

// script writes an executable shell script, a stand-in for a binary that misbehaves on purpose.
func script(t *testing.T, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700))
	return path
}

// own starts a control plane that the test may break.
func own(t *testing.T, o Options) *ControlPlane {
	t.Helper()
	c, err := Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	return c
}

func clientFor(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

func clientFromKubeconfig(t *testing.T, data []byte) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	require.NoError(t, err)
	return clientFor(t, config)
}

// running says whether a process of that id exists.
func running(pid int) bool { return syscall.Kill(pid, 0) == nil }

func requireGone(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.Eventually(t, func() bool { return !running(pid) }, soon, 10*time.Millisecond, "process %d still runs", pid)
	}
}

// unique is a name that no test of another process has at the same time, for what is looked for in the folder they share.
func unique(name string) string { return fmt.Sprintf("%s%d", name, os.Getpid()) }

// foldersOf lists the temporary folders of control planes of that name.
func foldersOf(t *testing.T, name string) []string {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(os.TempDir(), "muster-"+name+"-*"))
	require.NoError(t, err)
	return folders
}
