//go:build e2e

package e2e

import (
	"context"
	"fmt"
)

// wait keeps the clusters for somebody who wants to look around, until they interrupt it.
func (s *suites) wait(stop context.Context) {
	if !s.options.keep {
		return
	}
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
