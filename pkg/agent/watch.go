package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// imported are the objects by which an import tells a running agent something new.
func (m *member) imported() []importedObject {
	core := m.watching.CoreV1()
	return []importedObject{
		{&corev1.Secret{}, m.only(registration.BootstrapSecret, secretsOf{core.Secrets(m.namespace)})},
		{&corev1.ConfigMap{}, m.only(registration.AgentHubConfigMap, configMapsOf{core.ConfigMaps(m.namespace)})},
		{&corev1.ConfigMap{}, m.only(registration.AgentConfigMap, configMapsOf{core.ConfigMaps(m.namespace)})},
	}
}

type importedObject struct {
	kind runtime.Object
	lw   cache.ListerWatcher
}

// watchOne signals the object's coming and each change of it until ctx ends. A signal says "look again", not what is
// there; an object found at the start is signalled too. What fails on the way client-go tries again.
func (m *member) watchOne(ctx context.Context, w importedObject, changed chan<- struct{}) {
	signal := func() {
		select {
		case changed <- struct{}{}:
		default: // one is waiting already
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: w.lw,
		ObjectType:    w.kind,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { signal() },
			UpdateFunc: func(any, any) { signal() },
		},
		Transform: withoutData,
	})
	informer.RunWithContext(ctx)
}

// listWatch is what the clients of all kinds have.
type listWatch interface {
	List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

type secretsOf struct{ typedcorev1.SecretInterface }

func (s secretsOf) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return s.SecretInterface.List(ctx, options)
}

type configMapsOf struct{ typedcorev1.ConfigMapInterface }

func (c configMapsOf) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return c.ConfigMapInterface.List(ctx, options)
}

// only selects one object by its name, so that the others of the namespace never leave the API server.
func (m *member) only(name string, objects listWatch) cache.ListerWatcher {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return objects.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return transport.Watch(ctx, options, objects.Watch)
		},
	}
	return cache.ToListWatcherWithWatchListSemantics(lw, m.watching)
}

// withoutData keeps the token out of the informer's store: what is needed is read live.
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
