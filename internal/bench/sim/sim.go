// Package sim simulates the clients of a hub: agents, clusters to import, and a plain client that makes the writes of a registration without
// a hub.
package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Patience is the time after which a run fails because an expected event did not happen.
const Patience = 5 * time.Minute

// userAgent identifies the requests of this program in an audit log.
const userAgent = "muster-bench"

// API is the hub's API server.
type API struct {
	// Config has the credential of an administrator.
	Config *rest.Config
	Core   kubernetes.Interface
	Fleet  fleetclient.FleetV1alpha1Interface
	// SystemNamespace is the namespace of the hub, Workspace is the namespace of the Clusters.
	SystemNamespace, Workspace string
}

// Connect returns clients without rate limits, and creates the namespaces.
func Connect(ctx context.Context, config *rest.Config, systemNamespace, workspace string) (*API, error) {
	a := &API{Config: rest.CopyConfig(config), SystemNamespace: systemNamespace, Workspace: workspace}
	a.Config.UserAgent, a.Config.QPS = userAgent, -1
	if err := connect(a.Config, &a.Core, &a.Fleet); err != nil {
		return nil, err
	}
	for _, name := range []string{systemNamespace, workspace} {
		_, err := a.Core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
	}
	return a, nil
}

func connect(config *rest.Config, core *kubernetes.Interface, fleet *fleetclient.FleetV1alpha1Interface) error {
	coreClient, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	fleetClient, err := fleetclient.NewForConfig(config)
	if err != nil {
		return err
	}
	*core, *fleet = coreClient, fleetClient
	return nil
}

// as returns a client configuration with the token of an agent. All agents share their connections.
func (a *API) as(token string) *rest.Config {
	config := rest.AnonymousClientConfig(a.Config)
	config.BearerToken, config.UserAgent, config.QPS = token, userAgent+"-agent", -1
	return config
}

// Await polls until the condition is true.
func Await(ctx context.Context, what string, condition wait.ConditionWithContextFunc) error {
	const every = 20 * time.Millisecond
	if err := wait.PollUntilContextTimeout(ctx, every, Patience, true, condition); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// InParallel calls do for 0 to count-1 with a limited number of goroutines, and returns the first error.
func InParallel(count, limit int, do func(n int) error) error {
	var group errgroup.Group
	group.SetLimit(max(limit, 1))
	for n := range count {
		group.Go(func() error { return do(n) })
	}
	return group.Wait()
}

// steadily calls do for 0 to count-1 with equal distances over a time, in at most limit goroutines. If all of them are busy it falls behind, and
// catches up when it can. When the time is over it makes no more calls. It returns the number of calls, and of those that failed, when all have ended.
func steadily(ctx context.Context, count, limit int, over time.Duration, do func(n int) error) (calls, failures int, err error) {
	var failed atomic.Int64
	var running sync.WaitGroup
	free := make(chan struct{}, max(limit, 1))
	began := time.Now()
	for ; calls < count; calls++ {
		due := time.Duration(float64(over) * float64(calls) / float64(count))
		if err = Pause(ctx, time.Until(began.Add(due))); err != nil {
			break
		}
		free <- struct{}{} // waits for a goroutine to end
		if time.Since(began) >= over {
			break
		}
		n := calls
		running.Go(func() {
			if do(n) != nil {
				failed.Add(1)
			}
			<-free
		})
	}
	running.Wait()
	return calls, int(failed.Load()), err
}

// Pause waits for a duration or for the end of ctx.
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

// follow calls handle with every object of a kind, and again for each change, until ctx ends.
func follow[T runtime.Object, L runtime.Object](ctx context.Context, kind T, client transport.ListWatcher[L], handle func(T)) error {
	informer := cache.NewSharedIndexInformer(transport.ListWatch(client, func(*metav1.ListOptions) {}), kind, 0, nil)
	onChange := func(object any) {
		if typed, ok := object.(T); ok {
			handle(typed)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: onChange, UpdateFunc: func(_, object any) { onChange(object) }})
	if err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("the API server did not answer a list")
	}
	return nil
}

// names is a set of names whose users can wait for a name to be added.
type names struct {
	mu    sync.Mutex
	added map[string]chan struct{}
}

// channel returns the channel that add closes for the name.
func (s *names) channel(name string) chan struct{} {
	if s.added == nil {
		s.added = map[string]chan struct{}{}
	}
	if s.added[name] == nil {
		s.added[name] = make(chan struct{})
	}
	return s.added[name]
}

func (s *names) add(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	channel := s.channel(name)
	select {
	case <-channel:
	default:
		close(channel)
	}
}

// wait returns when the name has been added, or with an error after Patience.
func (s *names) wait(ctx context.Context, name string) error {
	s.mu.Lock()
	channel := s.channel(name)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("%s did not appear within %s", name, Patience))
	defer cancel()
	select {
	case <-channel:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
