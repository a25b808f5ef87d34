//go:build unix && !linux

package process

import (
	"errors"
	"syscall"
)

// attributes puts a child process into its own process group, as on Linux. Here child processes survive a program that is killed.
func attributes(namespaces uintptr) (*syscall.SysProcAttr, error) {
	if namespaces != 0 {
		return nil, errors.ErrUnsupported
	}
	return &syscall.SysProcAttr{Setpgid: true}, nil
}
