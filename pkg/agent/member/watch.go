package member

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// WatchConfiguration watches the bootstrap Secret and the ConfigMaps that configure the registration of a running agent, until ctx ends. It
// sends to changed when one of them is created or changed, also for an object that exists at the start, and when Secret fleet-agent is deleted.
// The agent itself writes that Secret, and never deletes it while it works. The signal carries no content: the receiver reads the objects.
// client-go retries failed watches.
func (m *Member) WatchConfiguration(ctx context.Context, changed chan<- struct{}) {
	core := m.Watching.CoreV1()
	secrets, configMaps := core.Secrets(m.Namespace), core.ConfigMaps(m.Namespace)
	listSecrets := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return secrets.List(ctx, o) }
	listConfigMaps := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return configMaps.List(ctx, o)
	}
	var watches sync.WaitGroup
	signal := func() {
		select {
		case changed <- struct{}{}:
		default: // a signal is already waiting
		}
	}
	updated := func(older, newer any) { // also called for each object that a new list contains, changed or not
		if older.(metav1.Object).GetResourceVersion() != newer.(metav1.Object).GetResourceVersion() {
			signal()
		}
	}
	written := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { signal() }, UpdateFunc: updated}
	deleted := cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { signal() }}
	watches.Go(func() {
		watchOne(ctx, m.named(registration.BootstrapSecret, listSecrets, secrets.Watch), &corev1.Secret{}, written)
	})
	watches.Go(func() {
		watchOne(ctx, m.named(registration.CredentialSecret, listSecrets, secrets.Watch), &corev1.Secret{}, deleted)
	})
	for _, name := range []string{registration.AgentHubConfigMap, registration.AgentConfigMap} {
		watches.Go(func() { watchOne(ctx, m.named(name, listConfigMaps, configMaps.Watch), &corev1.ConfigMap{}, written) })
	}
	watches.Wait()
}

func watchOne(ctx context.Context, lw cache.ListerWatcher, kind runtime.Object, handler cache.ResourceEventHandler) {
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: lw, ObjectType: kind, Handler: handler, Transform: withoutData})
	informer.RunWithContext(ctx)
}

// named selects one object by its name on the API server, so that the other objects of the namespace are not transferred.
func (m *Member) named(
	name string,
	list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	watchFrom func(context.Context, metav1.ListOptions) (watch.Interface, error),
) cache.ListerWatcher {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return list(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return transport.Watch(ctx, options, watchFrom)
		},
	}
	return cache.ToListWatcherWithWatchListSemantics(lw, m.Watching)
}

// withoutData keeps tokens out of the informer's store.
func withoutData(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Secret:
		return &corev1.Secret{ObjectMeta: nameAndVersion(o)}, nil
	case *corev1.ConfigMap:
		return &corev1.ConfigMap{ObjectMeta: nameAndVersion(o)}, nil
	}
	return object, nil
}

func nameAndVersion(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}
