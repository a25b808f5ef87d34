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

// environmentGuarded makes this test binary one whose tests never end.
const environmentGuarded = "CLUSTERS_TEST_GUARDED"

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
	return nil
}

func TestTestsThatAreInterruptedCloseEveryProvider(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			guarded, said := startGuarded(t)
			require.NoError(t, guarded.Process.Signal(signal))
			require.Equal(t, "closed\nclosed\n", rest(t, said))
			require.ErrorContains(t, guarded.Wait(), "exit status 1")
		})
	}
}

func TestTestsThatAreOutOfTimeCloseEveryProvider(t *testing.T) {
	guarded, said := startGuarded(t, fmt.Sprintf("-test.timeout=%s", spare+time.Millisecond))
	require.Equal(t, "closed\nclosed\n", rest(t, said))
	require.ErrorContains(t, guarded.Wait(), "exit status 1")
}

// startGuarded returns when its tests run. Nobody listens to its complaints: interrupted in a terminal, the program that does may be
// gone first.
func startGuarded(t *testing.T, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	guarded := exec.Command(os.Args[0], args...)
	guarded.Env = append(os.Environ(), environmentGuarded+"=1")
	guarded.Stderr = nobody(t)
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

// nobody reads what is written there.
func nobody(t *testing.T) *os.File {
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
