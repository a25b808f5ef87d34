//go:build unix && !linux

package process

import (
	"errors"
	"syscall"
)

// attributes puts a child into a process group of its own, so that Ctrl-C in the terminal reaches only us and we end
// the children in order. Only Linux has a parent-death signal: elsewhere children outlive a parent that was killed.
func attributes(namespaces uintptr) (*syscall.SysProcAttr, error) {
	if namespaces != 0 {
		return nil, errors.ErrUnsupported
	}
	return &syscall.SysProcAttr{Setpgid: true}, nil
}
