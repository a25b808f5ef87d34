package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serverClock has the difference between the clocks of the API server and the hub.
type serverClock struct {
	mutex sync.Mutex
	asked time.Time // by the clock of the hub; zero before the first answer
	ahead time.Duration
}

// skewMaxAge is how long a measured difference between the clocks is used.
const skewMaxAge = time.Minute

// HasPassedOnServer reports whether hasPassed returns true for the time of the API server's clock. It asks the API server only if hasPassed returns true
// for the time of the hub's clock, which may be ahead. If that clock is behind, the result is true later, by the difference. now is the last time that
// was passed to hasPassed.
func (c *Context) HasPassedOnServer(ctx context.Context, hasPassed func(now time.Time) bool) (result bool, now time.Time, err error) {
	if now = c.Clock.Now(); !hasPassed(now) {
		return false, now, nil
	}
	if now, err = c.ServerNow(ctx); err != nil {
		return false, now, err
	}
	return hasPassed(now), now, nil
}

// ServerNow returns the time of the API server's clock, by which objects are created and tokens expire. Before the hub deletes an object because of
// its age, it asks for this time: its own clock may be hours ahead. It asks once a minute at most.
func (c *Context) ServerNow(ctx context.Context) (time.Time, error) {
	s := &c.serverClock
	s.mutex.Lock()
	defer s.mutex.Unlock()
	now := c.Clock.Now()
	if since := now.Sub(s.asked); since >= 0 && since < skewMaxAge {
		return now.Add(s.ahead), nil
	}
	// The API server answers with an object that it has created, and stores nothing.
	review, err := c.Kubernetes.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), err == nil && review.CreationTimestamp.IsZero():
		// An old API server does not serve SelfSubjectReviews or sets no creation time, and a cluster may not let all users create them.
		s.ahead = 0
	case err != nil:
		return time.Time{}, fmt.Errorf("asking the API server for its time: %w", err)
	default:
		now = c.Clock.Now()
		s.ahead = review.CreationTimestamp.Sub(now)
	}
	s.asked = now
	return now.Add(s.ahead), nil
}
