package process

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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

// envParent makes this test binary a program that starts a child, prints its process ID and waits to be killed.
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

// soon limits waits for events that usually take milliseconds. It does not measure speed: a machine can be very busy.
const soon = 2 * time.Minute

// script writes an executable shell script.
func script(t *testing.T, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700))
	return path
}

func running(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestStart(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(t.TempDir(), "elsewhere.log")
	p, err := Start(Command{Dir: dir, Path: script(t, dir, "talker", "pwd; echo $GREETING $HOME. >&2"), Env: []string{"GREETING=hello"}, Log: log})
	require.NoError(t, err)
	<-p.Exited()
	require.Equal(t, dir+"\nhello .", Tail(log, 10), "it runs in its directory and has only the given environment")

	_, err = Start(Command{Dir: t.TempDir(), Path: "/nowhere/etcd"})
	require.ErrorContains(t, err, "start etcd:")
	_, err = Start(Command{Dir: "/nowhere", Path: "/bin/sh"})
	require.ErrorContains(t, err, "/nowhere/sh.log")
}

func TestEnd(t *testing.T) {
	for name, test := range map[string]struct {
		body  string
		code  int
		death string
	}{
		"success":  {"echo bye", 0, "child ended by itself (exit status 0); the end of its log:\nbye"},
		"failure":  {"echo first; echo the reason; exit 3", 3, "child ended by itself (exit status 3); the end of its log:\nfirst\nthe reason"},
		"a signal": {"kill -KILL $$", 137, "child ended by itself (signal: killed); the end of its log:\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := Start(Command{Dir: dir, Path: script(t, dir, "child", test.body)})
			require.NoError(t, err)
			require.Equal(t, test.code, p.ExitCode())
			require.EqualError(t, p.Death(), test.death)
			require.False(t, p.Alive())
		})
	}
}

func TestStop(t *testing.T) {
	for name, body := range map[string]string{
		"it obeys SIGTERM":   "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done",
		"it ignores SIGTERM": "trap '' TERM; echo ready; while :; do sleep 0.02; done",
		"it has ended":       "echo ready",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := Start(Command{Dir: dir, Path: script(t, dir, "child", body)})
			require.NoError(t, err)
			require.Eventually(t, func() bool { return Tail(p.log, 1) == "ready" }, soon, 5*time.Millisecond)
			p.Stop(200 * time.Millisecond)
			require.False(t, p.Alive())
			require.False(t, running(p.Pid()))
			p.Stop(time.Hour) // for the second time; it returns immediately
		})
	}
	var none *Process
	none.Stop(time.Hour)
	require.False(t, none.Alive())
	require.Nil(t, none.Exited())
}

func TestStartOnAThreadThatEnds(t *testing.T) {
	var p *Process
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		p, err = Start(Command{Dir: t.TempDir(), Path: "/bin/sleep", Args: []string{"300"}})
	}()
	<-done
	require.NoError(t, err)
	t.Cleanup(func() { p.Stop(soon) })
	require.Never(t, func() bool { return !p.Alive() }, 300*time.Millisecond, 20*time.Millisecond)
}

func TestTail(t *testing.T) {
	for name, test := range map[string]struct{ content, want string }{
		"empty":                  {"", ""},
		"fewer lines":            {"a\n", "a"},
		"more lines":             {"a\nb\nc\n", "b\nc"},
		"empty lines at the end": {"a\nb\n\n\n", "a\nb"},
		"no line end":            {"a\nb\nc", "b\nc"},
		"more than it reads":     {strings.Repeat("x", tailWindow) + "\nb\nc\n", "b\nc"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			require.NoError(t, os.WriteFile(path, []byte(test.content), 0o600))
			require.Equal(t, test.want, Tail(path, 2))
		})
	}
	require.Contains(t, Tail("/nowhere/etcd.log", 2), "/nowhere/etcd.log")
}
