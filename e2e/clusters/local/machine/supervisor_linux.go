package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	// restartDelay prevents a program that cannot start from filling its log.
	restartDelay = time.Second
	// fileInterval is the interval of the checks for the file that a program waits for.
	fileInterval = 20 * time.Millisecond
)

// supervisor is the task of the first process of a machine: it restarts programs, and reaps orphaned processes of containers.
type supervisor struct {
	environment []string

	mutex   sync.Mutex // guards running; it is held during a start, so that a program is in running before its end is handled
	running map[int]Program
}

func newSupervisor(environment []string) *supervisor {
	return &supervisor{environment: environment, running: map[int]Program{}}
}

func (s *supervisor) run(programs []Program) error {
	for _, program := range programs {
		if err := s.start(program); err != nil {
			return err
		}
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.ECHILD):
			time.Sleep(restartDelay / 10) // all programs wait for their restart, or there are none
		case err != nil && !errors.Is(err, syscall.EINTR):
			return fmt.Errorf("wait for children: %w", err)
		case err == nil:
			s.ended(pid, status)
		}
	}
}

// start starts a program, as soon as the file that it waits for exists.
func (s *supervisor) start(p Program) error {
	if p.After != "" {
		if _, err := os.Stat(p.After); err != nil {
			s.startIn(fileInterval, p)
			return nil
		}
	}
	return s.startNow(p)
}

// startIn starts a program later. If that fails, the machine continues without the program, and the error is printed.
func (s *supervisor) startIn(delay time.Duration, p Program) {
	time.AfterFunc(delay, func() {
		if err := s.start(p); err != nil {
			fmt.Println(err)
		}
	})
}

func (s *supervisor) startNow(p Program) error {
	output, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer output.Close()
	input, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer input.Close()

	s.mutex.Lock()
	defer s.mutex.Unlock()
	pid, err := syscall.ForkExec(p.Args[0], p.Args, &syscall.ProcAttr{
		Dir: p.Dir, Env: s.environment, Files: []uintptr{input.Fd(), output.Fd(), output.Fd()},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Args[0], err)
	}
	s.running[pid] = p
	return nil
}

func (s *supervisor) ended(pid int, status syscall.WaitStatus) {
	s.mutex.Lock()
	program, ours := s.running[pid]
	delete(s.running, pid)
	s.mutex.Unlock()
	if !ours {
		return
	}
	name := filepath.Base(program.Args[0])
	fmt.Printf("%s ended (exit status %d, signal %d): starting it again\n", name, status.ExitStatus(), int(status.Signal()))
	s.startIn(restartDelay, program)
}
