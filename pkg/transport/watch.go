package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// watchGrace is the time after the requested timeout at which a watch is ended from this side.
const watchGrace = time.Minute

// Watch begins a watch and ends it if the server does not. A server ends a watch after the requested timeout. A proxy that accepts
// a connection and never answers does not end it, and `Retry-After: 3600` has the same effect; without a limit the informer would no longer
// get events. A watch without a requested timeout is not limited.
func Watch(
	ctx context.Context, o metav1.ListOptions, begin func(context.Context, metav1.ListOptions) (watch.Interface, error),
) (watch.Interface, error) {
	if o.TimeoutSeconds == nil {
		return begin(ctx, o)
	}
	limit := time.Duration(*o.TimeoutSeconds)*time.Second + watchGrace
	limited, cancel := context.WithTimeout(ctx, limit)
	events, err := begin(limited, o)
	if err != nil {
		defer cancel()
		if limited.Err() != nil && ctx.Err() == nil {
			return nil, &UnansweredError{Limit: limit, Cause: err}
		}
		return nil, err
	}
	return &limitedWatch{events, cancel}, nil
}

// ListWatch lists and watches objects with a client of their kind. It sets the selectors of every request with selectors, and begins each watch with
// Watch.
func ListWatch[L runtime.Object](client ListWatcher[L], selectors func(*metav1.ListOptions)) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			selectors(&o)
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			selectors(&o)
			return Watch(ctx, o, client.Watch)
		},
	}
}

// ListWatcher has the methods of client-go's clients that ListWatch needs.
type ListWatcher[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// UnansweredError means that a watch could not begin in time.
type UnansweredError struct {
	Limit time.Duration
	Cause error
}

func (e *UnansweredError) Error() string {
	return fmt.Sprintf("no watch has begun within %s: %v", e.Limit, e.Cause)
}

// Unwrap returns the last error.
func (e *UnansweredError) Unwrap() error { return e.Cause }

// Unanswered reports whether the error contains an UnansweredError.
func Unanswered(err error) bool {
	var unanswered *UnansweredError
	return errors.As(err, &unanswered)
}

// limitedWatch stops its timer when it is stopped.
type limitedWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop may be called more than once.
func (w *limitedWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}
