//go:build unix

package controlplane

import "syscall"

// Signals that freeze a process and let it go on.
const (
	signalPause  = syscall.SIGSTOP
	signalResume = syscall.SIGCONT
)
