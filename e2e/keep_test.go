//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// wait keeps the clusters running until Ctrl-C.
func (s *suites) wait() {
	if !s.options.keep {
		return
	}
	stop, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	s.setAtEnd()
	fmt.Printf("\ne2e: the clusters stay until you press Ctrl-C:\n")
	for _, pair := range s.started() {
		fmt.Printf("  export KUBECONFIG=%s\n  export KUBECONFIG=%s\n", pair.hub.Kubeconfig(), pair.member.Kubeconfig())
	}
	<-stop.Done()
}

func (s *suites) setAtEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.atEnd = true
}

func (s *suites) isAtEnd() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.atEnd
}
