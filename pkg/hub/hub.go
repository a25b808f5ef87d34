package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationcontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/coordination.k8s.io/v1"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	"github.com/sirupsen/logrus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/muster-fleet/muster/pkg/admission"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/liveness"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/crds"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned/scheme"
	clusternetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/clusters.clusternet.io/v1beta1"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	clusternetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/clusters.clusternet.io/v1beta1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/transport"
)

const (
	// startWarning is the time after which the log says that the caches are still being filled.
	startWarning = 10 * time.Second
	// startTimeout limits the time until the caches are filled. Without the right to list a kind, its cache is never filled, and
	// only client-go logs the error.
	startTimeout = 3 * time.Minute
	// admissionTimeout limits the wait for the state of the admission policies. A hub that does not know the state yet works, but
	// does not rely on the recorded creator of a request.
	admissionTimeout = 10 * time.Second
)

// Run runs a hub until ctx ends, and returns when everything it started has stopped. It returns nil when ctx ended, and an error
// when the hub could not start, or leader.ErrLost when it lost its Lease.
//
// Only one hub may work against an API server at a time. Options.Election ensures that: Run waits for the Lease, and while
// another hub holds it, Run fills its caches and keeps them up to date (a standby). Without an election Run works at once.
func Run(ctx context.Context, options Options) error {
	o, err := options.complete()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	h, err := newHub(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		stop()
		h.caches.wait()
		h.watches.stop()
		utilnet.CloseIdleConnectionsFor(h.transport)
	}()
	unregister, err := h.serveProcessMetrics()
	if err != nil {
		return err
	}
	defer unregister()

	if o.Election == nil {
		err = h.work(ctx)
	} else {
		election := *o.Election
		election.OnWaiting = func(holder string) {
			h.standBy(ctx)
			o.Election.OnWaiting(holder)
		}
		err = leader.Run(ctx, election, h.work)
		h.standingBy.Wait()
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// hub is a hub that may not work yet: it has the configuration of the clients, and the caches.
type hub struct {
	options      Options
	config       *rest.Config
	transport    http.RoundTripper
	reachability *liveness.APIReachability
	fence        *fence
	watches      *watches
	caches       *caches
	leading      prometheus.Gauge

	startStandby sync.Once
	standingBy   sync.WaitGroup
	wasStandby   bool // written once, before the Lease can be acquired
}

func newHub(ctx context.Context, o Options) (*hub, error) {
	h := &hub{
		options: o, config: hubConfig(o.RESTConfig), reachability: liveness.NewAPIReachability(o.Clock), fence: &fence{},
		watches: newWatches(o.Clock, o.OnWatching), leading: metrics.NewLeader(),
	}
	h.config.Wrap(h.reachability.Wrap)
	h.config.Wrap(transport.Sender(h.fence.send).Wrap)
	ofCaches := rest.CopyConfig(h.config)
	ofCaches.Wrap(transport.Sender(h.watches.send).Wrap)
	var err error
	if h.caches, err = newCaches(ctx, ofCaches, o); err != nil {
		return nil, fmt.Errorf("preparing the hub's caches: %w", err)
	}
	h.transport, err = rest.TransportFor(h.config)
	return h, err
}

// standBy fills the caches while another replica holds the Lease. After an error, work fills the rest of the caches.
func (h *hub) standBy(ctx context.Context) {
	h.startStandby.Do(func() {
		h.wasStandby = true
		h.standingBy.Go(func() {
			if err := h.caches.fill(ctx); err != nil {
				logrus.Warnf("Cannot fill the caches while another replica holds the Lease; they are filled on takeover: %v", err)
				return
			}
			if ctx.Err() == nil {
				h.options.OnStandby()
			}
		})
	})
}

// work runs the controllers until ctx ends, which it also does when the hub loses its Lease.
func (h *hub) work(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	h.fence.bind(ctx)
	h.options.OnElected()
	h.leading.Set(1)
	defer h.leading.Set(0)
	c, err := h.newContext(ctx)
	if err != nil {
		return err
	}
	if err := h.prepare(ctx, c); err != nil {
		return err
	}
	if err := h.fillCaches(ctx, c); err != nil {
		return err
	}
	if controllers.IndexesRegistered(c) {
		return errors.New("Options.SharedControllerFactory has served a hub before; create a new one for each Run")
	}

	events := record.NewBroadcaster(record.WithContext(ctx))
	defer events.Shutdown()
	c.Events = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "fleetcontroller"})
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.Kubernetes.CoreV1().Events("")})

	policies, err := admission.New(admission.Options{
		RESTConfig: h.config, Namespace: c.SystemNamespace, Install: !h.options.LeaveAdmission, Clock: h.options.Clock,
		Clusternet: h.options.Clusternet,
	})
	if err != nil {
		return err
	}
	c.Admission = policies
	series := prometheus.NewRegistry()
	c.Metrics = metrics.New(series)
	series.MustRegister(metrics.Policies(func() map[admission.PolicyRef]bool { return policies.State().Policies }))
	all, err := controllers.Register(ctx, c, h.reachability, h.options.DisableBootstrap)
	if err != nil {
		return err
	}
	defer func() {
		stop()
		c.Passes.Wait() // first, because a handler that still runs may start goroutines that the others wait for
		all.Wait()
		policies.Wait()
	}()
	if err := h.caches.own.listen(); err != nil { // before the workers start, so that an object with several events has one pass
		return err
	}
	unregister, err := h.serveMetrics(c, series)
	if err != nil {
		return err
	}
	defer unregister()

	policies.Start(ctx)
	awaitPolicies(ctx, policies)
	all.Start(ctx)
	if err := h.caches.startWorkers(ctx, h.options.Workers); err != nil {
		return err
	}
	var reloading sync.WaitGroup // of large objects, for which the caches had no room
	reloading.Go(func() { h.caches.large.follow(ctx, c) })
	defer reloading.Wait()
	if ctx.Err() == nil {
		logrus.Infof("The hub is at work, with its configuration in namespace %s", c.SystemNamespace)
		h.options.OnReady()
	}
	<-ctx.Done()
	return nil
}

// newContext creates the clients that all controllers share.
func (h *hub) newContext(ctx context.Context) (*app.Context, error) {
	client, err := kubernetes.NewForConfig(builtIn(h.config))
	if err != nil {
		return nil, err
	}
	metadataClient, err := metadata.NewForConfig(h.config)
	if err != nil {
		return nil, err
	}
	fleetClient, err := fleetclient.NewForConfig(h.config)
	if err != nil {
		return nil, err
	}
	o := h.options
	c := &app.Context{
		RESTConfig:        h.config,
		Kubernetes:        client,
		Metadata:          metadataClient,
		Fleet:             fleetcontrollers.New(h.caches.fleet),
		FleetClient:       fleetClient,
		Core:              corecontrollers.New(h.caches.own),
		RBAC:              rbaccontrollers.New(h.caches.own),
		Coordination:      coordinationcontrollers.New(h.caches.own),
		SecretMetadata:    h.caches.secrets,
		ContentMetadata:   h.caches.contents,
		ConfigMapMetadata: h.caches.configMaps,
		Config:            &config.Store{},
		Issuer:            credential.Issuer{Client: client.CoreV1(), Clock: o.Clock, Keys: keysOf(h.config)},
		Clock:             o.Clock,
		Passes:            app.NewPasses(ctx),
		SystemNamespace:   o.SystemNamespace,
		ConfigVersion:     o.ConfigVersion,
		PoliciesRequired:  o.RequirePolicies,
		TokenTTLRequired:  o.TokenTTLRequired,
		Agent:             o.Agent,
		Recheck:           o.Recheck,
		ImportBackoff:     o.ImportBackoff,
		Delays:            o.Delays,
		DisableBundles:    o.DisableBundles,
		FarewellGrace:     o.FarewellGrace,
		ContentGrace:      o.ContentGrace,
	}
	if !o.Clusternet {
		return c, nil
	}
	if c.ClusternetClient, err = clusternetclient.NewForConfig(h.config); err != nil {
		return nil, err
	}
	c.Clusternet = clusternetcontrollers.New(h.caches.own)
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("asking the API server for the hub's own user name: %w", err)
	}
	c.HubUser = review.Status.UserInfo.Username
	return c, nil
}

// keysOf returns the signing keys, with the key of the hub's own token if the hub runs in a pod: the API server accepts that token, and the kubelet
// renews it.
func keysOf(config *rest.Config) *credential.SigningKeys {
	keys := &credential.SigningKeys{}
	if config.BearerTokenFile != "" {
		if token, err := os.ReadFile(config.BearerTokenFile); err == nil {
			keys.Observe(credential.Token(strings.TrimSpace(string(token))))
		}
	}
	return keys
}

// prepare creates the kinds that the caches watch, and the namespaces and ClusterRoles that registrations need.
func (h *hub) prepare(ctx context.Context, c *app.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	extensions, err := apiextensions.NewForConfig(h.config)
	if err != nil {
		return err
	}
	if c.ClustersHaveStatus, err = crds.Ensure(ctx, extensions); err != nil {
		return err
	}
	if h.options.Clusternet {
		if err := crds.EnsureClusternet(ctx, extensions); err != nil {
			return err
		}
	}
	return controllers.EnsureNamespacesAndRoles(ctx, c)
}

// fillCaches returns when the caches are filled. A hub that was a standby then waits until they contain the writes of the previous
// hub.
func (h *hub) fillCaches(ctx context.Context, c *app.Context) error {
	warning := time.AfterFunc(startWarning, func() { //nolint:forbidigo // app.Context.Clock has no AfterFunc, and a log line needs none
		logrus.Warn("Still filling the caches; the hub may lack the right to list one of the kinds it watches")
	})
	defer warning.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filled := make(chan error, 1)
	go func() {
		err := h.caches.fill(ctx)
		if err == nil && h.wasStandby {
			err = newCatchUp(c).await(ctx)
		}
		filled <- err
	}()
	select {
	case err := <-filled:
		return err
	case <-h.options.Clock.After(startTimeout):
		return fmt.Errorf("the caches were not filled in %s: is a CustomResourceDefinition missing, or the right to list a kind?", startTimeout)
	}
}

// awaitPolicies waits until the hub knows the state of its admission policies, so that its first decisions take them into account.
func awaitPolicies(ctx context.Context, policies *admission.Monitor) {
	ctx, cancel := context.WithTimeout(ctx, admissionTimeout)
	defer cancel()
	policies.WaitUntilKnown(ctx)
}

// errFenced is the error of a write that a hub without its Lease tries to send.
var errFenced = errors.New("this hub has lost its Lease and writes nothing any more")

// fence refuses every write of a hub that has lost its Lease. A handler that is delayed between two writes must not send the
// second one while the next hub works. An orderly stop refuses nothing: the hub keeps the Lease until its handlers have returned.
type fence struct {
	term atomic.Pointer[context.Context]
}

// bind makes the fence refuse writes after term has ended with leader.ErrLost as its cause.
func (f *fence) bind(term context.Context) { f.term.Store(&term) }

func (f *fence) closed() bool {
	term := f.term.Load()
	return term != nil && errors.Is(context.Cause(*term), leader.ErrLost)
}

// send sends a request of the hub unless it is a write and the Lease is lost.
func (f *fence) send(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet && f.closed() {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errFenced
	}
	return next.RoundTrip(req)
}
