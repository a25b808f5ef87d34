// Package process runs child processes that never outlive the program: each is stopped in order while the program lives,
// and killed by the kernel, where it can, when the program itself is killed.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Command says what to run.
type Command struct {
	// Path is the program. Required.
	Path string
	// Args are its arguments, without its own name.
	Args []string
	// Env is its whole environment, as KEY=value; nil means that of this program.
	Env []string
	// Dir is its working folder; empty means that of this program.
	Dir string
	// Log is the file its output is appended to; only the user can read it. Empty means NAME.log in Dir.
	Log string
	// Namespaces are those the program gets for itself, as CLONE_NEW* flags; 0 means it shares all of ours. With a pid
	// namespace its end is the end of all its descendants, and Exited waits for them. Only Linux knows them: elsewhere
	// starting such a program fails.
	Namespaces uintptr
}

func (c Command) name() string { return filepath.Base(c.Path) }

func (c Command) logFile() string {
	if c.Log != "" {
		return c.Log
	}
	return filepath.Join(c.Dir, c.name()+".log")
}

// Process is one child process. A nil Process is one that is not running.
type Process struct {
	name    string
	log     string
	command *exec.Cmd
	exited  chan struct{} // closed once the process is gone and reaped
	err     error         // how it ended; read it only after exited is closed
}

// ErrNotRunning is the answer to a signal for a process that has ended.
var ErrNotRunning = errors.New("it is not running")

// Start runs a program. Its output goes to a file and not through this program, which may be killed at any time.
func Start(c Command) (*Process, error) {
	p := &Process{name: c.name(), log: c.logFile(), command: exec.Command(c.Path, c.Args...), exited: make(chan struct{})}
	p.command.Dir, p.command.Env = c.Dir, c.Env
	var err error
	if p.command.SysProcAttr, err = attributes(c.Namespaces); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}

	output, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	p.command.Stdout, p.command.Stderr = output, output

	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return p, nil
}

// run starts the process and waits for its end on one OS thread. Linux delivers the parent-death signal when the thread
// that forked ends, not the process: on a thread shared with other goroutines the child would die at random.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	err := p.command.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.command.Wait()
	close(p.exited)
}

// Exited is closed once the process is gone. For a nil Process it is nil, on which a select waits for ever.
func (p *Process) Exited() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.exited
}

// Pid is the ID of the process.
func (p *Process) Pid() int { return p.command.Process.Pid }

// ExitCode is that of a process that has ended, as a shell gives it: 128 and the signal's number for one that was killed
// by a signal.
func (p *Process) ExitCode() int {
	<-p.exited
	state := p.command.ProcessState
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// Stop asks the process to end, kills it after the grace period, and returns when it is gone. Stopping a nil or ended
// process does nothing.
func (p *Process) Stop(grace time.Duration) {
	if p == nil {
		return
	}
	// A process that is paused would keep the request to end pending until the grace runs out.
	_ = p.Resume()
	_ = p.signal(syscall.SIGTERM)
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	select {
	case <-p.exited:
		return
	case <-deadline.C:
	}
	p.Kill()
}

// Kill ends the process without asking, and returns when it is gone.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.exited
}

// Pause freezes the process until Resume. Not every system can do that; the error says so.
func (p *Process) Pause() error { return p.signal(signalPause) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.signal(signalResume) }

func (p *Process) signal(s os.Signal) error {
	if !p.Alive() {
		return ErrNotRunning
	}
	return p.command.Process.Signal(s)
}

// Alive says whether the process runs.
func (p *Process) Alive() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Death describes an exit that nobody asked for, with the end of the log: there the reason stands. The process must have
// ended.
func (p *Process) Death() error {
	<-p.exited
	ending := "exit status 0"
	if p.err != nil {
		ending = p.err.Error()
	}
	return fmt.Errorf("%s ended by itself (%s); the end of its log:\n%s", p.name, ending, Tail(p.log, 15))
}
