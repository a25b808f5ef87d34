package admin

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// resource is a generated client of one kind.
type resource[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

var errDeleted = errors.New("it was deleted")

// await follows one object of a kind by a watch, also over an interruption, until it is as wanted. A condition that returns an
// error ends it, and so does an object that is not there, unless it may still come, or a server that refuses to tell.
func await[T, L runtime.Object](ctx context.Context, client resource[L], kind T, name string, mayCome bool, wanted func(T) (bool, error)) (T, error) {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	heard := &hearing{refused: stop}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			list, err := client.List(ctx, o)
			heard.listed(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			events, err := client.Watch(ctx, o)
			heard.watched(ctx, err)
			return events, err
		},
	}
	var found T
	_, err := watchtools.UntilWithSync(ctx, lw, kind, exists(mayCome), func(event watch.Event) (bool, error) {
		if event.Type == watch.Deleted {
			return false, errDeleted
		}
		object, ok := event.Object.(T)
		if !ok {
			return false, nil
		}
		found = object
		return wanted(object)
	})
	return found, heard.explain(ctx, err)
}

// exists is asked once, when the first list is there.
func exists(mayCome bool) watchtools.PreconditionFunc {
	return func(store cache.Store) (bool, error) {
		if !mayCome && len(store.ListKeys()) == 0 {
			return false, errDeleted
		}
		return false, nil
	}
}

// waitError says what was waited for and how it stood.
func waitError(ctx context.Context, what, last string, err error) error {
	if ctx.Err() == nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		if unheard := (*unheardError)(nil); errors.As(err, &unheard) {
			return fmt.Errorf("%s was not ready in time: %w", what, unheard)
		}
		return fmt.Errorf("%s was not ready in time: %s", what, last)
	}
	return fmt.Errorf("stopped waiting for %s: %w", what, ctx.Err())
}

// AwaitRegistered follows a Cluster until its agent is registered. Every change of its state is passed to progress.
// What fails may pass, so it waits until ctx ends, except for a Cluster that is deleted.
func (h *Hub) AwaitRegistered(ctx context.Context, namespace, name string, progress func(view.Cluster)) (*fleet.Cluster, error) {
	last := "there is no such Cluster yet"
	var before view.Cluster
	cluster, err := await(ctx, h.Fleet.Clusters(namespace), &fleet.Cluster{}, name, true, func(cluster *fleet.Cluster) (bool, error) {
		now := view.OfCluster(cluster)
		last = fmt.Sprintf("%s: %s: %s", now.State, now.Reason, now.Message)
		if now.State != before.State || now.Reason != before.Reason || now.Message != before.Message {
			before = now
			progress(now)
		}
		return now.State == view.StateRegistered, nil
	})
	if err != nil {
		return nil, waitError(ctx, fmt.Sprintf("Cluster %s/%s", namespace, name), last, err)
	}
	return cluster, nil
}
