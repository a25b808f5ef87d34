//go:build e2e

package e2e

import (
	"context"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workspace makes the namespace on the hub in which the scene's clusters register. At the end all of them are removed, and
// then the namespace; nothing on the hub may mention the scene any more.
func (s *scene) workspace() {
	s.Helper()
	s.undo("the hub without this scene", func(ctx context.Context) error {
		if err := deleteNamespace(ctx, s.hub.kube, s.id); err != nil {
			return err
		}
		return s.hub.nothingLeft(ctx, s.id)
	})
	s.undo("the members without this scene", s.removeEnrolled)
	_, err := s.hub.kube.CoreV1().Namespaces().Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.id}}, metav1.CreateOptions{})
	s.fail(err)
}

// removeEnrolled removes all Clusters of the scene at the same time: each takes its while.
func (s *scene) removeEnrolled(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, e := range s.enrolled {
		group.Go(func() error { return e.remove(ctx, e) })
	}
	return group.Wait()
}
