package controlplane

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

// process is one child process. Its output goes to a log file in its folder.
type process struct {
	name    string
	log     string
	command *exec.Cmd
	exited  chan struct{} // closed once the process is gone and reaped
	err     error         // how it ended; read it only after exited is closed
}

var errNotRunning = errors.New("it is not running")

// startProcess runs a binary inside dir, appending its output to dir/NAME.log.
func startProcess(dir, binary string, args ...string) (*process, error) {
	name := filepath.Base(binary)
	p := &process{
		name:    name,
		log:     filepath.Join(dir, name+".log"),
		command: exec.Command(binary, args...),
		exited:  make(chan struct{}),
	}
	p.command.Dir = dir
	p.command.SysProcAttr = processAttributes()

	output, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	p.command.Stdout, p.command.Stderr = output, output

	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// run starts the process and waits for its end on one OS thread. Linux delivers the parent-death signal when the thread
// that forked ends, not the process: on a thread shared with other goroutines the child would die at random.
func (p *process) run(started chan<- error) {
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

// stop asks the process to end, kills it after the grace period, and returns when it is gone. Stopping a nil or ended
// process does nothing.
func (p *process) stop(grace time.Duration) {
	if p == nil {
		return
	}
	// A process that is paused would keep the request to end pending until the grace runs out.
	_ = p.signal(signalResume)
	_ = p.signal(syscall.SIGTERM)
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	select {
	case <-p.exited:
		return
	case <-deadline.C:
	}
	_ = p.command.Process.Kill()
	<-p.exited
}

func (p *process) signal(s os.Signal) error {
	if !p.alive() {
		return errNotRunning
	}
	return p.command.Process.Signal(s)
}

func (p *process) alive() bool {
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

// death describes an exit that nobody asked for, with the end of the log: there the reason stands.
func (p *process) death() error {
	ending := "exit status 0"
	if p.err != nil {
		ending = p.err.Error()
	}
	return fmt.Errorf("%s ended by itself (%s); the end of its log:\n%s", p.name, ending, tail(p.log, 15))
}
