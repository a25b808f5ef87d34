package process

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if os.Getenv(envParent) != "" {
		beParent()
		return
	}
	os.Exit(m.Run())
}

// envParent makes this test binary a parent that has a child, says its process id and waits to be killed.
const envParent = "PROCESS_TEST_PARENT"

func beParent() {
	p, err := Start(Command{Dir: os.Getenv(envParent), Path: "/bin/sleep", Args: []string{"300"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Pid())
	<-p.exited
}

// soon bounds everything a test waits for that should take milliseconds. It is no measure of speed: a machine may be very busy.
const soon = 2 * time.Minute

// script writes an executable shell script.
func script(t *testing.T, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700))
	return path
}

// running says whether a process of that id exists.
func running(pid int) bool { return syscall.Kill(pid, 0) == nil }
