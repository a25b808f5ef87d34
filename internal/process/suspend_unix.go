//go:build unix

package process

import "syscall"

// Suspend lets the process use no CPU until Resume. It can be called for a process that has ended and for a nil Process.
func (p *Process) Suspend() { p.signal(syscall.SIGSTOP) }

// Resume lets a suspended process continue. It has no effect on others.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	if p.Alive() {
		_ = p.command.Process.Signal(s)
	}
}
