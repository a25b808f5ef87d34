// Package process runs child processes that end with this program. Stop ends them in order; on Linux the kernel also kills them when this
// program is killed.
package process

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Command describes a process.
type Command struct {
	// Path is the program. Required.
	Path string
	// Args are its arguments, without its own name.
	Args []string
	// Env is its complete environment as KEY=value; nil means the environment of this program.
	Env []string
	// Dir is its working directory; empty means the working directory of this program.
	Dir string
	// Log is the file to which its output is appended, readable only by the user. Empty means NAME.log in Dir.
	Log string
	// Namespaces are the CLONE_NEW* flags of new namespaces for the process; 0 means none. The end of a process with its own pid namespace is
	// the end of all its descendants, and Exited waits for them. Only Linux has namespaces; elsewhere Start fails.
	Namespaces uintptr
}

// Process is a child process. A nil Process does not run.
type Process struct {
	name    string
	log     string
	command *exec.Cmd
	exited  chan struct{} // closed when the process has ended
	err     error         // the result of Wait; valid when exited is closed
}

// Start starts a process. Its output does not go through this program, which can be killed at any time.
func Start(c Command) (*Process, error) {
	name := filepath.Base(c.Path)
	p := &Process{name: name, log: cmp.Or(c.Log, filepath.Join(c.Dir, name+".log")), command: exec.Command(c.Path, c.Args...), exited: make(chan struct{})}
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
	go func() {
		// Linux sends the parent-death signal when the thread ends that has started the process. Without the lock, that thread can end at any time.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.command.Start()
		started <- err
		if err == nil {
			p.err = p.command.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return p, nil
}

// Exited returns a channel that is closed when the process has ended; nil, on which a select waits forever, for a nil Process.
func (p *Process) Exited() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.exited
}

// Pid returns the ID of the process.
func (p *Process) Pid() int { return p.command.Process.Pid }

// ExitCode waits for the end of the process and returns its exit code, or 128 plus the number of the signal that has killed it.
func (p *Process) ExitCode() int {
	<-p.exited
	state := p.command.ProcessState
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// Stop sends SIGTERM, kills the process after the grace period, and returns when it has ended. It can be called for a process that has ended
// and for a nil Process.
func (p *Process) Stop(grace time.Duration) {
	if !p.Alive() {
		return
	}
	_ = p.command.Process.Signal(syscall.SIGTERM)
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	select {
	case <-p.exited:
	case <-deadline.C:
		p.Kill()
	}
}

// Kill kills the process and returns when it has ended.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.exited
}

// Alive reports whether the process runs.
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

// Death waits for the end of a process that should not have ended, and describes it with the end of its log.
func (p *Process) Death() error {
	<-p.exited
	ending := "exit status 0"
	if p.err != nil {
		ending = p.err.Error()
	}
	return fmt.Errorf("%s ended by itself (%s); the end of its log:\n%s", p.name, ending, Tail(p.log, 15))
}

// tailWindow limits how much Tail reads, because logs can have hundreds of megabytes.
const tailWindow = 16 << 10

// Tail returns the last lines of a file, or the error of reading it.
func Tail(path string, lines int) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tailWindow {
		_, _ = file.Seek(-tailWindow, io.SeekEnd)
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
