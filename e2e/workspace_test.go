//go:build e2e

package e2e

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workspace makes the namespace on the hub in which the scene's clusters register. At the end all of them are removed, and
// then the namespace; nothing on the hub may mention the scene any more.
func (s *scene) workspace() {
	s.Helper()
	s.undo("both clusters without this scene", func(ctx context.Context) error {
		err := s.each(ctx, leave)
		return errors.Join(err, s.tidyUp(ctx))
	})
	_, err := s.hub.kube.CoreV1().Namespaces().Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.id}}, metav1.CreateOptions{})
	s.fail(err)
}

// each does something to all Clusters of the scene at the same time: each takes its while.
func (s *scene) each(ctx context.Context, do func(ctx context.Context, e *enrolled) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, e := range s.enrolled {
		group.Go(func() error { return do(ctx, e) })
	}
	return group.Wait()
}

// tidyUp removes the namespaces of the scene on both sides, once its Clusters have gone and their agents have left. All of them at
// the same time: Kubernetes lets each one wait for five seconds before it looks what is in it.
func (s *scene) tidyUp(ctx context.Context) error {
	group, together := errgroup.WithContext(ctx)
	group.Go(func() error {
		return s.each(together, func(ctx context.Context, e *enrolled) error { return e.tidy(ctx, e) })
	})
	group.Go(func() error { return deleteNamespace(together, s.hub.kube, s.id) })
	if err := group.Wait(); err != nil {
		return err
	}
	return s.hub.nothingLeft(ctx, s.id)
}
