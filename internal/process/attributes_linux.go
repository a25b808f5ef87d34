package process

import "syscall"

// attributes puts a child process into its own process group, so that Ctrl-C in a terminal reaches only this program, which then stops its
// child processes in order. The kernel kills the child when this program is killed.
func attributes(namespaces uintptr) (*syscall.SysProcAttr, error) {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: namespaces}, nil
}
