package process

import "syscall"

// attributes puts a child into a process group of its own, so that Ctrl-C in the terminal reaches only us and we end
// the children in order; and has the kernel kill it when we die without having had the chance.
func attributes(namespaces uintptr) (*syscall.SysProcAttr, error) {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: namespaces}, nil
}
