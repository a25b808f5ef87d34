package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestChildOfAKilledParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), envParent+"="+t.TempDir())
	output, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	require.True(t, running(child))

	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	require.Eventually(t, func() bool { return !executing(child) }, soon, 10*time.Millisecond)
}

func TestPidNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can create a pid namespace")
	}
	dir := t.TempDir()
	// /proc is still that of the machine, so it has the process ID in our namespace.
	body := `setsid sh -c "cut -d' ' -f4 /proc/self/stat >child; exec sleep 300" & wait`
	p, err := Start(Command{
		Path: script(t, dir, "first", body), Dir: dir, Namespaces: syscall.CLONE_NEWPID,
	})
	require.NoError(t, err)
	var child int
	require.Eventually(t, func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "child"))
		_, scanned := fmt.Sscan(string(data), &child)
		return err == nil && scanned == nil
	}, soon, 10*time.Millisecond)
	require.True(t, executing(child))

	p.Kill()
	require.False(t, executing(child))
}

// executing returns whether a process runs that is not our child. A process that has ended remains as a zombie until process 1
// reaps it, which that of a container may never do.
func executing(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
