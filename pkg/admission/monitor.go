package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// Options say how to look after the policies of an API server.
type Options struct {
	// RESTConfig is how to reach it. Required.
	RESTConfig *rest.Config
	// Namespace is one in which requests may be created, in dry runs. Required.
	Namespace string
	// Install creates the policies, and puts them right whenever somebody changes or removes them. Without it they are
	// somebody else's, such as the chart's, and only watched.
	Install bool
	// Clock tells the time; nil means the real one.
	Clock clock.WithTicker
}

// Monitor watches the policies and knows whether they are in force.
type Monitor struct {
	options   Options
	discovery discovery.ServerResourcesInterface
	dynamic   dynamic.Interface
	requests  fleetclient.ClusterRegistrationInterface
	running   sync.WaitGroup
	first     chan struct{} // closed when something is known

	mu        sync.Mutex
	now       answer
	listeners []func()
}

// answer is what a Monitor knows. missing is "" while the policies are in force.
type answer struct {
	since   time.Time
	missing string
}

// ErrNotOverwritten is what Probe says when the API server believed a request.
var ErrNotOverwritten = errors.New("the API server does not apply the policies yet: it believes what a request says about who created it")

var errNotServed = errors.New("the API server serves no MutatingAdmissionPolicies: Kubernetes 1.36 does, and 1.34 and 1.35 do with " +
	"--runtime-config=admissionregistration.k8s.io/v1beta1=true and --feature-gates=MutatingAdmissionPolicy=true")

// New makes a Monitor, which does nothing before Start.
func New(o Options) (*Monitor, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	cfg := rest.CopyConfig(o.RESTConfig)
	cfg.Timeout = 0 // it would end every watch
	kubernetes, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	policies, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	fleet, err := versioned.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &Monitor{
		options:   o,
		discovery: kubernetes,
		dynamic:   policies,
		requests:  fleet.FleetV1alpha1().ClusterRegistrations(o.Namespace),
		first:     make(chan struct{}),
		now:       answer{missing: "it is not known yet whether the admission policies are in force"},
	}, nil
}

// InForce says whether the policies are in force, and since when. That may be a moment ahead: an API server takes a few
// seconds to apply them everywhere.
func (m *Monitor) InForce() (since time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.since, m.now.missing == ""
}

// Missing says in a sentence what keeps the policies from being in force, and what to do; "" while they are.
func (m *Monitor) Missing() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.missing
}

// OnChange calls f whenever the answer of InForce has changed. It is called before Start, and f must not block.
func (m *Monitor) OnChange(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners = append(m.listeners, f)
}

// Start looks after the policies until ctx ends.
func (m *Monitor) Start(ctx context.Context) {
	m.running.Go(func() { m.run(ctx) })
}

// Settle waits until something is known, or ctx ends.
func (m *Monitor) Settle(ctx context.Context) {
	select {
	case <-m.first:
	case <-ctx.Done():
	}
}

// Wait returns when all that Start began has ended.
func (m *Monitor) Wait() { m.running.Wait() }

const (
	sessionRetry    = 5 * time.Second
	sessionRetryMax = 10 * time.Minute
)

// run begins anew whenever the policies cannot be watched: the API server may be another one by then, or the rights may have
// come.
func (m *Monitor) run(ctx context.Context) {
	delay := sessionRetry
	for ctx.Err() == nil {
		worked, err := m.session(ctx)
		if ctx.Err() != nil {
			return
		}
		m.set(answer{missing: explain(err)})
		if worked {
			delay = sessionRetry
		}
		select {
		case <-ctx.Done():
		case <-m.options.Clock.After(delay):
		}
		delay = min(2*delay, sessionRetryMax)
	}
}

func explain(err error) string {
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("the hub may not do what it needs with the admission policies (%v): make sure that it has the rights that the chart fleet gives it", err)
	}
	return err.Error()
}

// set is called by run alone.
func (m *Monitor) set(now answer) {
	m.mu.Lock()
	before := m.now
	m.now = now
	listeners := m.listeners
	m.mu.Unlock()
	m.tell(before, now)
	if now.since.Equal(before.since) && (now.missing == "") == (before.missing == "") {
		return
	}
	for _, f := range listeners {
		f()
	}
}

// tell logs each state once.
func (m *Monitor) tell(before, now answer) {
	select {
	case <-m.first:
	default:
		close(m.first)
	}
	switch {
	case now == before:
	case now.missing != "":
		logrus.Warnf("The admission policies of the hub are not in force, so nobody knows who creates a ClusterRegistration: %s", now.missing)
	case before.missing != "":
		logrus.Info("The admission policies of the hub are in force")
	}
}
