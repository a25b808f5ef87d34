package leader

import (
	"context"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// leaseWatch watches the Lease while this process waits for it.
type leaseWatch struct {
	client   coordinationclient.LeaseInterface
	duration time.Duration
	clock    clock.WithDelayedExecution
	// free receives a signal when the Lease no longer has a holder.
	free chan struct{}
	// ended is closed when the watch has stopped.
	ended chan struct{}

	// held and expiry are used by the informer's handlers only, which run one at a time. expiry fires when the holder has not
	// renewed the Lease for duration.
	held   bool
	expiry clock.Timer
}

// watch watches the Lease until ctx ends. Without the right to watch it nothing is signalled, and only the elector's own tries
// remain.
func (e Config) watch(ctx context.Context) (*leaseWatch, error) {
	cfg := rest.AddUserAgent(rest.CopyConfig(e.Client), "leader-election")
	cfg.Timeout = 0 // it would end the watch
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: transport})
	if err != nil {
		return nil, err
	}
	w := &leaseWatch{
		client: client.CoordinationV1().Leases(e.Namespace), duration: e.LeaseDuration, clock: clock.RealClock{},
		free: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoordinationV1().RESTClient(), "leases", e.Namespace,
			fields.OneTermEqualSelector(metav1.ObjectNameField, e.Name)),
		ObjectType: &coordinationv1.Lease{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(lease any) { w.observe(ctx, lease) },
			UpdateFunc: func(_, lease any) { w.observe(ctx, lease) },
			DeleteFunc: func(any) { w.observe(ctx, nil) },
		},
	})
	go func() {
		defer close(w.ended)
		defer utilnet.CloseIdleConnectionsFor(transport)
		informer.RunWithContext(ctx)
	}()
	return w, nil
}

// observe restarts the expiry with every renewal, and signals that the Lease has lost its holder.
func (w *leaseWatch) observe(ctx context.Context, object any) {
	if w.expiry != nil {
		w.expiry.Stop()
	}
	lease, _ := object.(*coordinationv1.Lease)
	wasHeld := w.held
	w.held = lease != nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != ""
	switch {
	case w.held:
		w.expiry = w.clock.AfterFunc(w.duration, func() { w.expire(ctx, lease) })
	case wasHeld:
		select {
		case w.free <- struct{}{}:
		default: // one signal is enough
		}
	}
}

// expire releases the Lease for a holder that has stopped renewing it. The elector would need up to two retry periods more: it sees
// renewals only when it tries. The write names the version of the Lease, so a renewal that the watch has missed prevents it.
func (w *leaseWatch) expire(ctx context.Context, lease *coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(ctx, w.duration)
	defer cancel()
	released := lease.DeepCopy()
	released.Spec.HolderIdentity = nil
	if _, err := w.client.Update(ctx, released, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
		logrus.Debugf("Cannot release the expired Lease %s/%s: %v", lease.Namespace, lease.Name, err)
	}
}
