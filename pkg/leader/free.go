package leader

import (
	"context"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// watchFree signals each time the Lease is given back, until ctx ends; then watched is closed. Where it may not be watched nothing is signalled, and
// the elector's own tries have to do.
func (e Election) watchFree(ctx context.Context) (free, watched chan struct{}, err error) {
	cfg := rest.AddUserAgent(rest.CopyConfig(e.Client), "leader-election")
	cfg.Timeout = 0 // it would cut off the watch
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: transport})
	if err != nil {
		return nil, nil, err
	}
	free, watched = make(chan struct{}, 1), make(chan struct{})
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoordinationV1().RESTClient(), "leases", e.Namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, e.Name)),
		ObjectType: &coordinationv1.Lease{},
		Handler: cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(before, after any) {
				if isHeld(before) && !isHeld(after) {
					signal(free)
				}
			},
			DeleteFunc: func(any) { signal(free) },
		},
	})
	go func() {
		defer close(watched)
		defer utilnet.CloseIdleConnectionsFor(transport)
		informer.RunWithContext(ctx)
	}()
	return free, watched, nil
}

func isHeld(object any) bool {
	lease, ok := object.(*coordinationv1.Lease)
	return ok && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
}

// signal leaves a signal for later when nobody takes it now; one is as good as many.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
