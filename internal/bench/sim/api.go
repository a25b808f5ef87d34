// Package sim simulates what a hub meets: agents, clusters to import, members that never answer; and a plain client that
// makes the writes of a registration without a hub.
package sim

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/admin"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// Patience is how long anything may take before a run is given up.
const Patience = 5 * time.Minute

// UserAgent is what the requests of this program are known by in an audit log.
const UserAgent = "muster-bench"

// API is the hub's API server.
type API struct {
	// Config reaches it as an administrator.
	Config *rest.Config
	Core   kubernetes.Interface
	Fleet  fleetclient.FleetV1alpha1Interface
	// SystemNamespace is that of the hub, Workspace that of the clusters.
	SystemNamespace, Workspace string
}

// Connect makes clients without limits, and the namespaces.
func Connect(ctx context.Context, config *rest.Config, systemNamespace, workspace string) (*API, error) {
	a := &API{Config: rest.CopyConfig(config), SystemNamespace: systemNamespace, Workspace: workspace}
	a.Config.UserAgent, a.Config.QPS = UserAgent, -1
	hub, err := admin.Connect(a.Config)
	if err != nil {
		return nil, err
	}
	a.Core, a.Fleet = hub.Kubernetes, hub.Fleet
	for _, name := range []string{systemNamespace, workspace} {
		_, err := a.Core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
	}
	return a, nil
}

// Await looks until something is so.
func Await(ctx context.Context, what string, reached wait.ConditionWithContextFunc) error {
	const every = 20 * time.Millisecond
	if err := wait.PollUntilContextTimeout(ctx, every, Patience, true, reached); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// InParallel does something count times, so many at a time, and returns the first error.
func InParallel(count, atATime int, do func(n int) error) error {
	var group errgroup.Group
	group.SetLimit(max(atATime, 1))
	for n := range count {
		group.Go(func() error { return do(n) })
	}
	return group.Wait()
}

// Pause waits.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
