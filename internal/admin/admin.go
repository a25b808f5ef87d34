// Package admin implements tasks of operators on a hub, such as creating tokens and rotating credentials, for the command line and the demo.
package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// Hub contains the clients for the API server of a hub.
type Hub struct {
	Kubernetes kubernetes.Interface
	Fleet      fleetclient.FleetV1alpha1Interface
	// Flags are the flags that select this hub, for the commands in error messages. They are quoted for a shell, each with a space before it.
	Flags string
}

// Connect creates the clients. It sends no request.
func Connect(config *rest.Config) (*Hub, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	clients, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Hub{Kubernetes: kube, Fleet: clients.FleetV1alpha1()}, nil
}

// Explain adds the remedy to the error of a request that failed because its namespace or its kind does not exist.
func (h *Hub) Explain(err error, namespace string) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return err
	}
	details := status.Status().Details
	switch {
	case details != nil && details.Kind == "namespaces":
		return fmt.Errorf("%w: create it with `kubectl%s create namespace %s`, or choose another with --namespace", err, h.Flags, namespace)
	case details == nil || details.Name == "":
		return fmt.Errorf("%w: is this a hub? Its kinds come with the chart fleet-crd, or `muster crds | kubectl%s apply --server-side -f -`", err, h.Flags)
	}
	return err
}

// pollInterval is the pause between two requests of awaited.wait.
const pollInterval = 250 * time.Millisecond

var errDeleted = errors.New("it was deleted")

// awaited is an object to wait for.
type awaited[T any] struct {
	// what names the object in errors.
	what string
	get  func(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	name string
	// mayAppear is true if the object need not exist yet.
	mayAppear bool
	// status describes the state of the object in errors. Each status that check returns replaces it.
	status string
	// check is called with the object. It returns whether the wait is over and, if known, what the object waits for.
	check func(T) (done bool, status string, err error)
}

// wait polls the object until check returns done or an error. It fails at once if the API server answers Forbidden or Unauthorized, or if the
// object was deleted, and retries after every other error. If ctx ends first, the error contains the error of the last request if that
// failed, and otherwise the last status.
func (a awaited[T]) wait(ctx context.Context) (found T, err error) {
	var failed error
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (done bool, err error) {
		object, err := a.get(ctx, a.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && a.mayAppear:
			failed = nil
			return false, nil
		case apierrors.IsNotFound(err):
			return false, errDeleted
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return false, err
		case err != nil && ctx.Err() == nil:
			failed = err
			return false, nil
		case err != nil:
			return false, nil
		}
		found, failed, a.mayAppear = object, nil, false
		var status string
		if done, status, err = a.check(object); status != "" {
			a.status = status
		}
		return done, err
	})
	switch {
	case err == nil:
		return found, nil
	case ctx.Err() == nil:
		return found, fmt.Errorf("%s: %w", a.what, err)
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return found, fmt.Errorf("stopped waiting for %s: %w", a.what, ctx.Err())
	case failed != nil:
		return found, fmt.Errorf("%s: gave up waiting, and its state is not known: %w", a.what, failed)
	}
	return found, fmt.Errorf("%s: gave up waiting: %s", a.what, a.status)
}
