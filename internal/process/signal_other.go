//go:build !unix

package process

import "syscall"

// Elsewhere than on Unix no process can be frozen; sending these signals returns an error.
const (
	signalPause  = syscall.Signal(-1)
	signalResume = syscall.Signal(-2)
)

func attributes() *syscall.SysProcAttr { return nil }
