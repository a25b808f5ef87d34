package process

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAProcessLogsIntoItsFolderAndRunsInside(t *testing.T) {
	dir := t.TempDir()
	p, err := Start(Command{Dir: dir, Path: script(t, dir, "talker", "pwd; echo to standard error >&2")})
	require.NoError(t, err)
	<-p.exited
	require.NoError(t, p.err)
	require.Equal(t, dir+"\nto standard error", Tail(filepath.Join(dir, "talker.log"), 10))
}

func TestAnUnaskedExitIsReportedWithTheEndOfTheLog(t *testing.T) {
	dir := t.TempDir()
	p, err := Start(Command{Dir: dir, Path: script(t, dir, "broken", "echo first; echo the reason; exit 3")})
	require.NoError(t, err)
	<-p.exited
	require.False(t, p.Alive())
	require.EqualError(t, p.Death(), "broken ended by itself (exit status 3); the end of its log:\nfirst\nthe reason")
}

func TestAnUnaskedExitWithoutErrorIsReportedToo(t *testing.T) {
	dir := t.TempDir()
	p, err := Start(Command{Dir: dir, Path: script(t, dir, "quitter", "echo bye")})
	require.NoError(t, err)
	<-p.exited
	require.ErrorContains(t, p.Death(), "quitter ended by itself (exit status 0)")
}

func TestAProgramThatCannotRunIsNamed(t *testing.T) {
	_, err := Start(Command{Dir: t.TempDir(), Path: "/nowhere/etcd"})
	require.ErrorContains(t, err, "start etcd:")
	_, err = Start(Command{Dir: "/nowhere", Path: "/bin/sh"})
	require.ErrorContains(t, err, "/nowhere/sh.log")
}

func TestStopEndsAProcess(t *testing.T) {
	tests := map[string]struct {
		body   string
		before func(*testing.T, *Process)
	}{
		"that obeys":   {body: "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"},
		"that refuses": {body: "trap '' TERM; echo ready; while :; do sleep 0.02; done"},
		"that is paused": {
			body:   "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done",
			before: func(t *testing.T, p *Process) { require.NoError(t, p.Pause()) },
		},
		"that is gone already": {
			body: "echo ready",
			before: func(_ *testing.T, p *Process) {
				<-p.exited
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := Start(Command{Dir: dir, Path: script(t, dir, "child", test.body)})
			require.NoError(t, err)
			require.Eventually(t, func() bool { return Tail(p.log, 1) == "ready" }, soon, 5*time.Millisecond)
			if test.before != nil {
				test.before(t, p)
			}
			p.Stop(200 * time.Millisecond)
			require.False(t, p.Alive())
			require.False(t, running(p.Pid()))
			p.Stop(time.Hour) // a second time returns at once
			require.ErrorIs(t, p.Resume(), ErrNotRunning)
		})
	}
}

func TestAProcessThatWasNeverStartedCanBeStopped(t *testing.T) {
	var p *Process
	p.Stop(time.Hour)
	require.False(t, p.Alive())
	require.ErrorIs(t, p.Pause(), ErrNotRunning)
}

func TestAProcessOutlivesTheThreadThatAskedForIt(t *testing.T) {
	var p *Process
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		p, err = Start(Command{Dir: t.TempDir(), Path: "/bin/sleep", Args: []string{"300"}})
	}()
	<-done
	require.NoError(t, err)
	t.Cleanup(func() { p.Stop(soon) })
	require.Never(t, func() bool { return !p.Alive() }, 300*time.Millisecond, 20*time.Millisecond)
}

func TestAProcessHasOnlyTheEnvironmentItIsGiven(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(t.TempDir(), "elsewhere.log")
	p, err := Start(Command{Path: script(t, dir, "printer", "echo $GREETING $HOME."), Dir: dir, Env: []string{"GREETING=hello"}, Log: log})
	require.NoError(t, err)
	<-p.Exited()
	require.Equal(t, "hello .", Tail(log, 10))
}

func TestExitCodesAreThoseOfAShell(t *testing.T) {
	tests := map[string]struct {
		body string
		want int
	}{
		"success":  {"exit 0", 0},
		"failure":  {"exit 3", 3},
		"a signal": {"kill -KILL $$", 137},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := Start(Command{Dir: dir, Path: script(t, dir, "child", test.body)})
			require.NoError(t, err)
			require.Equal(t, test.want, p.ExitCode())
		})
	}
}

func TestAProcessThatWasNeverStartedNeverExits(t *testing.T) {
	var p *Process
	require.Nil(t, p.Exited())
}
