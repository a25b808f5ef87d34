//go:build !unix

package process

import (
	"errors"
	"syscall"
)

// Elsewhere than on Unix no process can be frozen; sending these signals returns an error.
const (
	signalPause  = syscall.Signal(-1)
	signalResume = syscall.Signal(-2)
)

func attributes(namespaces uintptr) (*syscall.SysProcAttr, error) {
	if namespaces != 0 {
		return nil, errors.ErrUnsupported
	}
	return nil, nil
}
