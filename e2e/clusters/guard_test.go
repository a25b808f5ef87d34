package clusters

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	// environmentGuarded makes this test binary one whose tests never end.
	environmentGuarded = "CLUSTERS_TEST_GUARDED"
	// environmentHangs makes the providers of that binary hang when they are closed.
	environmentHangs = "CLUSTERS_TEST_HANGS"
)

func TestMain(m *testing.M) {
	if os.Getenv(environmentGuarded) == "" {
		os.Exit(m.Run())
	}
	var guard Guard
	guard.Add(recorded{})
	guard.Add(recorded{})
	os.Exit(guard.Run(endless{}))
}

type endless struct{}

func (endless) Run() int {
	fmt.Println("running")
	select {}
}

type recorded struct{ Provider }

func (recorded) Close() error {
	fmt.Println("closed")
	if os.Getenv(environmentHangs) != "" {
		select {}
	}
	return nil
}

func TestGuardOfInterruptedTests(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			guarded, said := startGuarded(t)
			require.NoError(t, guarded.Process.Signal(signal))
			require.Equal(t, "closed\nclosed\n", rest(t, said))
			require.ErrorContains(t, guarded.Wait(), "exit status 1")
		})
	}
}

func TestGuardOfTestsThatAreInterruptedTwice(t *testing.T) {
	t.Setenv(environmentHangs, "1")
	guarded, said := startGuarded(t)
	require.NoError(t, guarded.Process.Signal(syscall.SIGINT))
	line, err := said.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "closed\n", line)
	require.NoError(t, guarded.Process.Signal(syscall.SIGINT))
	require.ErrorContains(t, guarded.Wait(), "signal: interrupt")
}

func TestGuardOfTestsThatAreOutOfTime(t *testing.T) {
	guarded, said := startGuarded(t, fmt.Sprintf("-test.timeout=%s", spare+time.Millisecond))
	require.Equal(t, "closed\nclosed\n", rest(t, said))
	require.ErrorContains(t, guarded.Wait(), "exit status 1")
}

// startGuarded starts this test binary and returns when its tests run. Its standard error is a closed pipe, as after Ctrl-C in a
// terminal that has also ended the reader.
func startGuarded(t *testing.T, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	guarded := exec.Command(os.Args[0], args...)
	guarded.Env = append(os.Environ(), environmentGuarded+"=1")
	guarded.Stderr = closedPipe(t)
	output, err := guarded.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, guarded.Start())
	t.Cleanup(func() { _ = guarded.Process.Kill() })
	said := bufio.NewReader(output)
	line, err := said.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "running\n", line)
	return guarded, said
}

// closedPipe is a pipe without a reader.
func closedPipe(t *testing.T) *os.File {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = write.Close() })
	require.NoError(t, read.Close())
	return write
}

func rest(t *testing.T, said io.Reader) string {
	t.Helper()
	data, err := io.ReadAll(said)
	require.NoError(t, err)
	return string(data)
}
