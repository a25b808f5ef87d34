package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/internal/process"
)

func TestAnAPIServerThatRefusesAFlagFailsTheStartWithItsOwnWords(t *testing.T) {
	name := unique("badflag")
	_, err := Start(t.Context(), Options{Name: name, APIServerArgs: []string{"--no-such-flag"}})
	require.ErrorContains(t, err, fmt.Sprintf("control plane %q", name))
	require.ErrorContains(t, err, "kube-apiserver ended by itself (exit status 1)")
	require.ErrorContains(t, err, "unknown flag: --no-such-flag")
	require.Empty(t, foldersOf(t, name), "a failed start leaves nothing behind")
}

func TestAStartGivesUpWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	name := unique("slow")
	_, err := Start(ctx, Options{Name: name, Binaries: fakes(t)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "gave up waiting for etcd to listen")
	require.ErrorContains(t, err, "etcd.sock:0", "the last reason")
	require.Empty(t, foldersOf(t, name))
}

func TestAPortThatSomebodyElseTookIsReplaced(t *testing.T) {
	binaries := fakes(t)
	ports := filepath.Join(binaries, "ports")
	script(t, binaries, binaryAPIServer, `
		for flag; do case $flag in --secure-port=*) echo "$flag" >>`+ports+` ;; esac; done
		echo "listen tcp 127.0.0.1: bind: address already in use"; exit 1`)
	c := planeOfFakes(t, binaries)

	err := c.startAPIServerOnFreePort(t.Context())
	require.ErrorContains(t, err, portTaken)
	data, err := os.ReadFile(ports)
	require.NoError(t, err)
	tried := strings.Fields(string(data))
	require.Len(t, tried, portAttempts)
	require.Greater(t, len(slices.Compact(slices.Sorted(slices.Values(tried)))), 1, "always the same port: %v", tried)
}

func TestAnotherFailureOfTheAPIServerIsNotTriedAgain(t *testing.T) {
	binaries := fakes(t)
	script(t, binaries, binaryAPIServer, `echo "I am broken"; exit 1`)
	c := planeOfFakes(t, binaries)
	require.ErrorContains(t, c.startAPIServerOnFreePort(t.Context()), "I am broken")
	require.Equal(t, "I am broken", process.Tail(filepath.Join(c.dir, "kube-apiserver.log"), 10), "started once")
}

func TestTheEndOfEtcdEndsTheWaitForTheAPIServer(t *testing.T) {
	c := planeOfFakes(t, fakes(t))
	c.etcd.Kill()
	err := c.startAPIServerOnFreePort(t.Context())
	require.ErrorContains(t, err, "etcd ended by itself (signal: killed)")
}

func TestAWaitEndsWithTheLastReason(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	broken := errors.New("connection refused")
	err := waitFor(ctx, "the moon", func(context.Context) error {
		cancel()
		return broken
	})
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "gave up waiting for the moon")
}

func TestAWaitThatBeginsTooLateHasAReasonTooAndWhatIsReachedIsReached(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := waitFor(ended, "the moon", func(context.Context) error { return errors.New("connection refused") })
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "gave up waiting for the moon")
	require.ErrorContains(t, err, "connection refused")
	require.NoError(t, waitFor(ended, "the moon", func(context.Context) error { return nil }))
}

// planeOfFakes is a control plane before the start of its API server.
func planeOfFakes(t *testing.T, binaries string) *ControlPlane {
	t.Helper()
	c, err := prepare(Options{Name: "fake", Dir: t.TempDir(), Binaries: binaries})
	require.NoError(t, err)
	c.etcd, err = c.run(binaryEtcd)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	return c
}
