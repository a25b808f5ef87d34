//go:build unix && !linux

package process

import "syscall"

// attributes puts a child into a process group of its own, so that Ctrl-C in the terminal reaches only us and we end
// the children in order. Only Linux has a parent-death signal: elsewhere children outlive a parent that was killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
