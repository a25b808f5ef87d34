//go:build unix

package process

import "syscall"

// Signals that freeze a process and let it go on.
const (
	signalPause  = syscall.SIGSTOP
	signalResume = syscall.SIGCONT
)
