package controlplane

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAProcessLogsIntoItsFolderAndRunsInside(t *testing.T) {
	dir := t.TempDir()
	p, err := startProcess(dir, script(t, dir, "talker", "pwd; echo to standard error >&2"))
	require.NoError(t, err)
	<-p.exited
	require.NoError(t, p.err)
	require.Equal(t, dir+"\nto standard error", tail(filepath.Join(dir, "talker.log"), 10))
}

func TestAnUnaskedExitIsReportedWithTheEndOfTheLog(t *testing.T) {
	dir := t.TempDir()
	p, err := startProcess(dir, script(t, dir, "broken", "echo first; echo the reason; exit 3"))
	require.NoError(t, err)
	<-p.exited
	require.False(t, p.alive())
	require.EqualError(t, p.death(), "broken ended by itself (exit status 3); the end of its log:\nfirst\nthe reason")
}

func TestAnUnaskedExitWithoutErrorIsReportedToo(t *testing.T) {
	dir := t.TempDir()
	p, err := startProcess(dir, script(t, dir, "quitter", "echo bye"))
	require.NoError(t, err)
	<-p.exited
	require.ErrorContains(t, p.death(), "quitter ended by itself (exit status 0)")
}

func TestAProgramThatCannotRunIsNamed(t *testing.T) {
	_, err := startProcess(t.TempDir(), "/nowhere/etcd")
	require.ErrorContains(t, err, "start etcd:")
	_, err = startProcess("/nowhere", "/bin/sh")
	require.ErrorContains(t, err, "/nowhere/sh.log")
}

func TestStopEndsAProcess(t *testing.T) {
	tests := map[string]struct {
		body   string
		before func(*testing.T, *process)
	}{
		"that obeys":   {body: "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done"},
		"that refuses": {body: "trap '' TERM; echo ready; while :; do sleep 0.02; done"},
		"that is paused": {
			body:   "trap 'exit 0' TERM; echo ready; while :; do sleep 0.02; done",
			before: func(t *testing.T, p *process) { require.NoError(t, p.signal(signalPause)) },
		},
		"that is gone already": {
			body: "echo ready",
			before: func(_ *testing.T, p *process) {
				<-p.exited
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p, err := startProcess(dir, script(t, dir, "child", test.body))
			require.NoError(t, err)
			require.Eventually(t, func() bool { return tail(p.log, 1) == "ready" }, soon, 5*time.Millisecond)
			if test.before != nil {
				test.before(t, p)
			}
			p.stop(200 * time.Millisecond)
			require.False(t, p.alive())
			require.False(t, running(p.command.Process.Pid))
			p.stop(time.Hour) // a second time returns at once
			require.ErrorIs(t, p.signal(signalResume), errNotRunning)
		})
	}
}

func TestAProcessThatWasNeverStartedCanBeStopped(t *testing.T) {
	var p *process
	p.stop(time.Hour)
	require.False(t, p.alive())
	require.ErrorIs(t, p.signal(signalPause), errNotRunning)
}

func TestAProcessOutlivesTheThreadThatAskedForIt(t *testing.T) {
	var p *process
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		p, err = startProcess(t.TempDir(), "/bin/sleep", "300")
	}()
	<-done
	require.NoError(t, err)
	t.Cleanup(func() { p.stop(soon) })
	require.Never(t, func() bool { return !p.alive() }, 300*time.Millisecond, 20*time.Millisecond)
}
