package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// watchGrace is how long after its time a watch is given up that nobody has ended.
const watchGrace = time.Minute

// Watch begins a watch that ends even if nobody at the other end ends it. A server does so after the time it was asked for; a
// proxy that accepts a connection and never answers does not, nor does what answers "try again in an hour", and whoever waits
// for either hears of nothing any more. A watch that was asked for without a time is left as it is.
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

// UnansweredError says that a watch could not begin in its time.
type UnansweredError struct {
	Limit time.Duration
	Cause error
}

func (e *UnansweredError) Error() string {
	return fmt.Sprintf("no watch has begun within %s: %v", e.Limit, e.Cause)
}

// Unwrap is the last that was heard.
func (e *UnansweredError) Unwrap() error { return e.Cause }

// Unanswered says whether the error is that no watch could begin in its time.
func Unanswered(err error) bool {
	var unanswered *UnansweredError
	return errors.As(err, &unanswered)
}

// limitedWatch frees its timer when it is stopped.
type limitedWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

// Stop may be called more than once.
func (w *limitedWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}
