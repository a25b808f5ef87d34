package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/registration"
)

// watchBootstrap signals each new bootstrap Secret and each change of it until ctx ends. A signal says "look again", not
// what is there; the Secret found at the start is signalled too. What fails on the way client-go tries again.
func (m *member) watchBootstrap(ctx context.Context, changed chan<- struct{}) {
	signal := func() {
		select {
		case changed <- struct{}{}:
		default: // one is waiting already
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: m.bootstrapOnly(),
		ObjectType:    &corev1.Secret{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { signal() },
			UpdateFunc: func(any, any) { signal() },
		},
		Transform: withoutData,
	})
	informer.RunWithContext(ctx)
}

// bootstrapOnly selects the one Secret by its name, so that the others of the namespace never leave the API server.
func (m *member) bootstrapOnly() cache.ListerWatcher {
	secrets := m.watching.CoreV1().Secrets(m.namespace)
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, registration.BootstrapSecret).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return secrets.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return secrets.Watch(ctx, options)
		},
	}
	return cache.ToListWatcherWithWatchListSemantics(lw, m.watching)
}

// withoutData keeps the token out of the informer's store: the Secret is read live when it is needed.
func withoutData(object any) (any, error) {
	if secret, ok := object.(*corev1.Secret); ok {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
		}}, nil
	}
	return object, nil
}
