//go:build e2e

package e2e

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// workspace creates the namespace of the scene's Clusters on the hub. At the end, the Clusters are removed and then the namespace, and no
// object on the hub may contain the ID of the scene.
func (s *scene) workspace() {
	s.Helper()
	s.undo("both clusters without this scene", func(ctx context.Context) error {
		err := together(s.enrolled, func(e *enrolled) error { return e.how.leave(ctx, e) })
		return errors.Join(err, s.tidyUp(ctx))
	})
	_, err := s.hub.kube.CoreV1().Namespaces().Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.id}}, metav1.CreateOptions{})
	s.fail(err)
}

// together runs functions at the same time. The failure of one does not stop the others.
func together[T any](several []T, do func(T) error) error {
	var doing []func() error
	for _, one := range several {
		doing = append(doing, func() error { return do(one) })
	}
	return utilerrors.AggregateGoroutines(doing...)
}

// tidyUp removes the namespaces of the scene on hub and member after its Clusters and agents are gone. It deletes them at the same time,
// because Kubernetes waits five seconds before it deletes the content of a namespace.
func (s *scene) tidyUp(ctx context.Context) error {
	err := utilerrors.AggregateGoroutines(
		func() error { return together(s.enrolled, func(e *enrolled) error { return e.how.tidy(ctx, e) }) },
		func() error { return s.hub.deleteNamespaces(ctx, s.id) },
	)
	if err != nil {
		return err
	}
	return s.hub.nothingLeft(ctx, s.id)
}
