package machine

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// environmentSpec makes this test binary the supervisor of a Spec. A supervisor reaps all children of its process, which would
// include those of other tests.
const environmentSpec = "MACHINE_TEST_SPEC"

func TestMain(m *testing.M) {
	file := os.Getenv(environmentSpec)
	if file == "" {
		os.Exit(m.Run())
	}
	spec, err := Read(file)
	if err == nil {
		err = newSupervisor(spec.Environment).run(spec.Programs)
	}
	fmt.Println(err)
}

func TestRestart(t *testing.T) {
	dir := t.TempDir()
	said := supervise(t, Spec{
		Environment: []string{"PATH=" + os.Getenv("PATH"), "WHO=machine"},
		Programs: []Program{
			shell(dir, "short", `echo "$WHO"; exit 3`),
			shell(dir, "long", `echo started; exec sleep 300`),
		},
	})
	require.Contains(t, <-said, "exit status 3")
	require.Contains(t, <-said, "exit status 3")
	require.Eventually(t, func() bool { return strings.Count(read(dir, "short.log"), "machine\n") >= 2 }, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, "started\n", read(dir, "long.log"))
}

func TestAfter(t *testing.T) {
	dir := t.TempDir()
	second := shell(dir, "second", `cat socket; exec sleep 300`)
	second.After = filepath.Join(dir, "socket")
	supervise(t, Spec{
		Environment: []string{"PATH=" + os.Getenv("PATH")},
		Programs:    []Program{second, shell(dir, "first", `sleep 0.2; echo there >new; mv new socket; exec sleep 300`)},
	})
	require.Eventually(t, func() bool { return read(dir, "second.log") == "there\n" }, 20*time.Second, 10*time.Millisecond)
}

func TestMissingProgram(t *testing.T) {
	dir := t.TempDir()
	said := supervise(t, Spec{Programs: []Program{{Args: []string{"/nowhere/program"}, Dir: dir, Log: filepath.Join(dir, "log")}}})
	require.Contains(t, <-said, "start /nowhere/program")
}

func TestMissingSysctl(t *testing.T) {
	require.NoError(t, sysctls(Spec{Sysctls: map[string]string{"net/muster/no-such-setting": "1"}}))
}

func TestSetupError(t *testing.T) {
	err := setup(Spec{
		Environment: []string{"PATH=" + os.Getenv("PATH")},
		Setup:       [][]string{{"true"}, {"sh", "-c", "echo the reason; exit 1"}, {"touch", filepath.Join(t.TempDir(), "never")}},
	})
	require.ErrorContains(t, err, "the reason")
}

func shell(dir, name, script string) Program {
	return Program{Args: []string{"/bin/sh", "-c", script}, Dir: dir, Log: filepath.Join(dir, name+".log")}
}

func read(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// supervise runs a Spec in another process and returns the lines of its output.
func supervise(t *testing.T, spec Spec) <-chan string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spec.json")
	require.NoError(t, spec.Write(file))
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), environmentSpec+"="+file)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
	})
	said := make(chan string, 100)
	go func() {
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			said <- scanner.Text()
		}
	}()
	return said
}
