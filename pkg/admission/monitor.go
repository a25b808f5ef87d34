package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	clusternetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/clusters.clusternet.io/v1beta1"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
)

// Options configure a Monitor.
type Options struct {
	// RESTConfig connects to the API server. Required.
	RESTConfig *rest.Config
	// Namespace is a namespace in which the Monitor may create ClusterRegistrations, in dry runs. Required.
	Namespace string
	// Install creates the policies, and corrects them when somebody changes or deletes them. Otherwise, something else, for example the
	// chart, installs them, and they are only watched.
	Install bool
	// Clusternet adds the policies of ClusternetObjects.
	Clusternet bool
	// Clock defaults to the real one.
	Clock clock.WithTicker
}

// Monitor watches the policies and reports whether they are in force.
type Monitor struct {
	options   Options
	discovery discovery.DiscoveryInterface
	dynamic   dynamic.Interface
	requests  fleetclient.ClusterRegistrationInterface
	running   sync.WaitGroup
	known     chan struct{} // closed by the first call of set
	started   time.Time     // set by run

	clusternet clusternetclient.ClusterRegistrationRequestInterface

	mu        sync.Mutex
	state     PolicyState
	listeners []func()
}

// PolicyState is the current knowledge of a Monitor.
type PolicyState struct {
	// Since is the time since which the policies that prove where requests come from are in force: nothing is proved about earlier requests. It
	// may be a few seconds ahead: by then every API server applies them.
	Since time.Time
	// Missing is, for people, the reason why these policies are not in force, and the remedy; empty while they are.
	Missing string
	// NotRecorded is, for people, the reason why the API server only checks the token that a request names and does not record who creates the
	// request, and the remedy; empty if it records the creators.
	NotRecorded string
	// Reason, of a condition, and Message, for people, say which of the policies that the API server can have are not in force, or that it can
	// have none; empty while all are in force.
	Reason, Message string
	// Policies reports for each policy that the API server can have whether it and its binding exist and equal those of this hub.
	Policies map[PolicyRef]bool
}

// InForce reports whether the policies that prove where requests come from are in force.
func (s PolicyState) InForce() bool { return s.Missing == "" }

// stateOf is the state while err prevents the Monitor from watching.
func stateOf(err error) PolicyState {
	state := PolicyState{Missing: explain(err), Reason: fleet.ReasonError, Message: explain(err), Policies: noneInForce()}
	var notServed *notServedError
	if errors.As(err, &notServed) {
		state.Reason = fleet.ReasonPoliciesNotServed
	}
	return state
}

// noneInForce returns false for each policy that every API server with ValidatingAdmissionPolicies can have.
func noneInForce() map[PolicyRef]bool {
	none := map[PolicyRef]bool{}
	objects, _ := Objects("") // fails only if the embedded chart is invalid, which Install and watch report
	for _, object := range objects {
		none[policyOf(object)] = false
	}
	return none
}

// notServedError means that the API server serves no kind of policies.
type notServedError struct{ message string }

func (e *notServedError) Error() string { return e.message }

var errServedChanged = errors.New("the API server has started or stopped serving kinds of admission policies; checking again")

// New returns a Monitor. It is idle until Start.
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
	clients, err := versioned.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &Monitor{
		options:   o,
		discovery: kubernetes,
		dynamic:   policies,
		requests:  clients.FleetV1alpha1().ClusterRegistrations(o.Namespace),

		clusternet: clients.ClustersV1beta1().ClusterRegistrationRequests(),

		known: make(chan struct{}),
		state: stateOf(errors.New("it is not known yet whether the admission policies are in force")),
	}, nil
}

// State returns the current state.
func (m *Monitor) State() PolicyState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// OnChange registers a function that is called after each change of InForce, Since, Reason or Message. It is called before Start; f must
// not block.
func (m *Monitor) OnChange(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners = append(m.listeners, f)
}

// Start watches the policies until ctx ends.
func (m *Monitor) Start(ctx context.Context) {
	m.running.Go(func() { m.run(ctx) })
}

// WaitUntilKnown waits until the Monitor has checked the policies once, or ctx ends.
func (m *Monitor) WaitUntilKnown(ctx context.Context) {
	select {
	case <-m.known:
	case <-ctx.Done():
	}
}

// Wait returns when everything that Start began has ended.
func (m *Monitor) Wait() { m.running.Wait() }

const (
	watchRetry    = 5 * time.Second
	watchRetryMax = 10 * time.Minute
	checkRetry    = 200 * time.Millisecond
	checkRetryMax = time.Minute
	checkTimeout  = 15 * time.Second
	// servedRecheck is how often the Monitor asks again for a kind that the API server did not serve: after an upgrade of Kubernetes
	// the watches of the other kinds continue, and nothing else reports a new kind.
	servedRecheck = 10 * time.Minute

	// propagation is the time within which all API servers apply a policy that was stored. Each collects them once a second, and the dry
	// run reaches only one of them.
	propagation = 4 * time.Second
	// schemaDelay is the time within which an API server knows the schema of a kind that was created, and after its own start that of any
	// kind. It asks for new schemas every 5 s, and until then refuses, as unavailable, each object that a mutating policy selects.
	schemaDelay = 10 * time.Second
)

// run watches again, after a delay, when a watch has failed: the API server may have been upgraded, or the hub may have got rights.
func (m *Monitor) run(ctx context.Context) {
	m.started = m.options.Clock.Now()
	delay := watchRetry
	for ctx.Err() == nil {
		worked, err := m.watch(ctx)
		if ctx.Err() != nil {
			return
		}
		m.set(stateOf(err))
		if worked {
			delay = watchRetry
		}
		select {
		case <-ctx.Done():
		case <-m.options.Clock.After(delay):
		}
		delay = min(2*delay, watchRetryMax)
	}
}

// watch watches the policies in the versions that the API server serves, and checks them after each change. It returns the reason why it
// cannot watch them any longer; worked reports that its caches were filled.
func (m *Monitor) watch(ctx context.Context) (worked bool, err error) {
	served, err := servedBy(m.discovery)
	if err != nil {
		return false, err
	}
	var notRecorded string
	var recheck <-chan time.Time
	if served.mutating == "" {
		kubernetes, err := m.discovery.ServerVersion()
		if err != nil {
			return false, fmt.Errorf("asking the API server for its version: %w", err)
		}
		if !served.validating {
			return false, &notServedError{noValidating(kubernetes.GitVersion)}
		}
		notRecorded = noMutating(kubernetes.GitVersion)
		ticker := m.options.Clock.NewTicker(servedRecheck)
		defer ticker.Stop()
		recheck = ticker.C()
	}
	wanted, err := m.objects(served.mutating)
	if err != nil {
		return false, err
	}

	// Install the policies before they are watched, so that no temporary state is reported.
	if err := m.install(ctx, wanted); err != nil {
		logrus.Warnf("Cannot install the admission policies of the hub, using the existing ones: %v", err)
	} else if err := m.removeOthers(ctx, served.mutating); err != nil {
		logrus.Warnf("Cannot remove the admission policies for an API server that serves other kinds: %v", err)
	}

	// Watch the objects with our label. An error that does not pass by itself, such as a missing right, ends ctx.
	ctx, fail := context.WithCancelCause(ctx)
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(m.dynamic, 0, metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector = fleet.ManagedLabel + "=" + fleet.ManagedValue
	})
	defer func() { fail(nil); factory.Shutdown() }()
	changed := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	informers := map[schema.GroupVersionResource]cache.SharedIndexInformer{}
	for _, want := range wanted {
		informers[Resource(want)] = factory.ForResource(Resource(want)).Informer()
	}
	for _, informer := range informers {
		err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
			if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsUnauthorized(err) {
				fail(err)
			} else {
				cache.DefaultWatchErrorHandler(ctx, reflector, err)
			}
		})
		if err != nil {
			return false, err
		}
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: notify, UpdateFunc: func(_, object any) { notify(object) }, DeleteFunc: notify,
		})
		if err != nil {
			return false, err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}

	// Check the policies after each change, and again after an error.
	get := func(want *unstructured.Unstructured) *unstructured.Unstructured {
		object, _, _ := informers[Resource(want)].GetStore().GetByKey(want.GetName())
		got, _ := object.(*unstructured.Unstructured)
		return got
	}
	var last checked
	delay := checkRetry
	for {
		var retry <-chan time.Time
		if last, err = m.check(ctx, compare(wanted, get), wanted, notRecorded, last); err != nil {
			retry, delay = m.options.Clock.After(delay), min(2*delay, checkRetryMax)
		} else {
			delay = checkRetry
		}
		select {
		case <-ctx.Done():
			return true, context.Cause(ctx)
		case <-changed:
			delay = checkRetry // the error was about an earlier state
		case <-retry:
		case <-recheck:
			if now, err := servedBy(m.discovery); err == nil && now != served {
				return true, errServedChanged
			}
		}
	}
}

// checked is the part of a check's result that the next check uses.
type checked struct {
	originVersion string // of the objects that a dry run has proved to work
	warned        string // the last logged problems of the policies for agents
}

// check corrects the policies, proves in a dry run that new ones work, and sets the state. It is repeated after an error.
func (m *Monitor) check(
	ctx context.Context, found policyDiff, wanted []*unstructured.Unstructured, notRecorded string, last checked,
) (checked, error) {
	var installErr error
	if len(found.origin)+len(found.agents) > 0 {
		installErr = m.install(ctx, wanted)
	}
	slices.Sort(found.agents)
	if problems := strings.Join(found.agents, ", "); problems != last.warned {
		if last.warned = problems; problems != "" {
			logrus.Warnf("Agents can write more than the admission policies of the hub permit: %s", describe(found.agents))
		}
	}
	why := func(problems []string) string {
		if installErr != nil {
			return fmt.Sprintf("%s (%v)", describe(problems), installErr)
		}
		return describe(problems)
	}
	state := PolicyState{Policies: found.inForce, NotRecorded: notRecorded}
	if all := slices.Concat(found.origin, found.agents); len(all) > 0 {
		state.Reason, state.Message = fleet.ReasonPolicyMissing, why(all)
	}
	if len(found.origin) > 0 {
		state.Missing = why(found.origin)
		m.set(state)
		return last, installErr
	}
	if found.originVersion != last.originVersion {
		probeCtx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		err := Probe(probeCtx, m.requests)
		if err == nil && m.options.Clusternet && notRecorded == "" {
			err = probeClusternet(probeCtx, m.clusternet)
		}
		if err != nil {
			// An API server applies new policies after a moment. Until then the state stays as it is, unless it is that they are in force:
			// the hub must not rely on policies that are not applied.
			now := m.options.Clock.Now()
			age := now.Sub(found.since)
			isNew := age < schemaDelay || now.Sub(m.started) < schemaDelay // the API server may have started with the hub
			soon := errors.Is(err, ErrNotApplied) && age < propagation || apierrors.IsServiceUnavailable(err) && isNew
			if ctx.Err() == nil && (m.State().InForce() || !soon) {
				state.Missing = explain(err)
				m.set(state)
			}
			return last, err
		}
		last.originVersion = found.originVersion
	}
	state.Since = found.since.Add(propagation)
	m.set(state)
	return last, installErr
}

func (m *Monitor) install(ctx context.Context, wanted []*unstructured.Unstructured) error {
	if !m.options.Install {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return Install(ctx, m.dynamic, wanted)
}

// objects returns the policies of the hub for an API server.
func (m *Monitor) objects(mutatingVersion string) ([]*unstructured.Unstructured, error) {
	policies, err := Objects(mutatingVersion)
	if err != nil || !m.options.Clusternet {
		return policies, err
	}
	further, err := ClusternetObjects(mutatingVersion)
	return append(policies, further...), err
}

// removeOthers deletes the policies that the hub installed before the API server started or stopped serving MutatingAdmissionPolicies. A
// validating policy that relies on a mutating one would refuse every request without it.
func (m *Monitor) removeOthers(ctx context.Context, mutatingVersion string) error {
	if !m.options.Install {
		return nil
	}
	policies, err := others(mutatingVersion, m.objects)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return remove(ctx, m.dynamic, policies)
}

func explain(err error) string {
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("the hub has no right to use the admission policies (%v): give it the rights that the chart fleet gives it", err)
	}
	return err.Error()
}

// set logs each change of the state, and calls the listeners as OnChange says. Only run calls it.
func (m *Monitor) set(now PolicyState) {
	m.mu.Lock()
	before, listeners := m.state, m.listeners
	m.state = now
	m.mu.Unlock()
	select {
	case <-m.known:
	default:
		close(m.known)
	}
	switch {
	case now.Missing != "" && now.Missing != before.Missing:
		logrus.Warnf("The admission policies of the hub are not in force, so nothing proves where ClusterRegistrations come from: %s", now.Missing)
	case now.InForce() && !before.InForce():
		logrus.Info("The admission policies of the hub are in force")
	}
	if !now.Since.Equal(before.Since) || now.InForce() != before.InForce() || now.Reason != before.Reason || now.Message != before.Message {
		for _, f := range listeners {
			f()
		}
	}
}
