package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rancher/lasso/pkg/controller"
	"github.com/rancher/wrangler/v3/pkg/apply"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/muster-fleet/muster/pkg/admission"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/bootstrap"
	"github.com/muster-fleet/muster/pkg/controllers/bundle"
	"github.com/muster-fleet/muster/pkg/controllers/cluster"
	"github.com/muster-fleet/muster/pkg/controllers/clusterimport"
	"github.com/muster-fleet/muster/pkg/controllers/clusterregistration"
	"github.com/muster-fleet/muster/pkg/controllers/clusterregistrationtoken"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/controllers/index"
	"github.com/muster-fleet/muster/pkg/controllers/liveness"
	"github.com/muster-fleet/muster/pkg/controllers/manageagent"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/controllers/orphans"
	"github.com/muster-fleet/muster/pkg/controllers/settings"
	"github.com/muster-fleet/muster/pkg/crds"
	"github.com/muster-fleet/muster/pkg/credential"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

// Run runs a hub until ctx ends, and returns when everything it started has stopped. An error means that it could not
// start; then nothing of it goes on either. Only one hub may run against an API server at a time, unless all of them share the
// work; see pkg/leader for a program that has no election of its own, and pkg/shard for one that shares.
func Run(ctx context.Context, options Options) error {
	o, err := options.complete()
	if err != nil {
		return err
	}
	if err := run(ctx, o); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// run has a context of its own, for a hub that could not start has started some of its parts.
func run(ctx context.Context, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	h, err := newHub(ctx, o)
	if err != nil {
		return err
	}
	defer func() { stop(); h.close() }()
	if err := h.prepare(ctx); err != nil {
		return err
	}
	if err := h.register(ctx); err != nil {
		return err
	}
	if err := h.start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// hub is one running hub.
type hub struct {
	*app.Context
	options   Options
	factories []controller.SharedControllerFactory
	events    record.EventBroadcaster
	imports   *clusterimport.Step
	bundles   *bundle.Step // nil when Bundles are left to others
	audible   *liveness.Audible
	connected *liveness.Step
	orphans   *orphans.Collector
	admission *admission.Monitor
	transport http.RoundTripper
	words     *words
	series    *prometheus.Registry // the hub's metrics, all together
	// endMetrics is for a program that goes on serving metrics when the hub has ended, and may run it anew.
	endMetrics func()
}

func newHub(ctx context.Context, o Options) (*hub, error) {
	cfg, audible := hubConfig(o.RESTConfig), liveness.NewAudible(o.Clock)
	cfg.Wrap(audible.Wrap)
	cfg.Wrap(o.Shards.Wrap)
	own, err := newFactory(cfg, o.SystemNamespace)
	if err != nil {
		return nil, fmt.Errorf("preparing the hub's caches: %w", err)
	}
	h := &hub{
		options: o, audible: audible, factories: []controller.SharedControllerFactory{own}, words: newWords(o.Clock),
		series: prometheus.NewRegistry(), endMetrics: func() {},
	}
	fleetFactory := own
	if o.SharedControllerFactory != nil {
		fleetFactory = o.SharedControllerFactory
		h.factories = append(h.factories, fleetFactory)
	}
	if h.Context, err = newContext(cfg, o, own, fleetFactory); err != nil {
		return nil, err
	}
	if h.transport, err = rest.TransportFor(cfg); err != nil {
		return nil, err
	}
	if h.admission, err = newAdmission(cfg, o); err != nil {
		return nil, err
	}
	h.Admission, h.Metrics = h.admission, metrics.New(h.series)
	h.Passes = guard.NewPasses(ctx)
	h.events = record.NewBroadcaster(record.WithContext(ctx))
	h.Events = h.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "fleetcontroller"})
	h.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: h.Kubernetes.CoreV1().Events("")})
	return h, nil
}

// newContext makes the clients that all controllers share.
func newContext(cfg *rest.Config, o Options, own, fleetFactory controller.SharedControllerFactory) (*app.Context, error) {
	client, err := kubernetes.NewForConfig(builtIn(cfg))
	if err != nil {
		return nil, err
	}
	watching := rest.CopyConfig(cfg)
	watching.Timeout = 0 // it would end every watch
	metadataClient, err := metadata.NewForConfig(watching)
	if err != nil {
		return nil, err
	}
	sets, err := apply.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &app.Context{
		RESTConfig:       cfg,
		Kubernetes:       client,
		Metadata:         metadataClient,
		Fleet:            fleetcontrollers.New(fleetFactory),
		Core:             corecontrollers.New(own),
		RBAC:             rbaccontrollers.New(own),
		Apply:            sets,
		Config:           &config.Store{},
		Issuer:           credential.Issuer{Client: client.CoreV1(), Clock: o.Clock},
		Clock:            o.Clock,
		SystemNamespace:  o.SystemNamespace,
		TokenTTLRequired: o.TokenTTLRequired,
		Agent:            o.Agent,
		Recheck:          o.Recheck,
		ImportBackoff:    o.ImportBackoff,
		DisableBundles:   o.DisableBundles,
		FarewellGrace:    o.FarewellGrace,
		ContentGrace:     o.ContentGrace,
		Shards:           o.Shards,
	}, nil
}

func newAdmission(cfg *rest.Config, o Options) (*admission.Monitor, error) {
	return admission.New(admission.Options{RESTConfig: cfg, Namespace: o.SystemNamespace, Install: !o.LeaveAdmission, Clock: o.Clock})
}

// prepare makes what the caches and every registration need.
func (h *hub) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	extensions, err := apiextensions.NewForConfig(h.RESTConfig)
	if err != nil {
		return err
	}
	if err := crds.Ensure(ctx, extensions); err != nil {
		return err
	}
	return ensureGround(ctx, h.Kubernetes, sharedRoles(h.DisableBundles), h.SystemNamespace, h.RegistrationNamespace())
}

// register sets up every controller. All caches are asked for here: one that is first asked for later never fills.
func (h *hub) register(ctx context.Context) error {
	if index.Registered(h.Fleet) {
		return errors.New("Options.SharedControllerFactory has served a hub before; make a new one for each Run")
	}
	watcher, err := settings.Load(ctx, h.Context)
	if err != nil {
		return err
	}
	index.Register(h.Fleet, h.Core)
	clusterregistrationtoken.Register(ctx, h.Context)
	clusterregistration.Register(ctx, h.Context)
	h.imports = clusterimport.Register(ctx, h.Context)
	h.connected = liveness.Register(ctx, h.Context, h.audible)
	steps := []cluster.Step{h.imports, manageagent.Register(ctx, h.Context)}
	if !h.DisableBundles {
		h.bundles = bundle.Register(ctx, h.Context)
		h.words.slim(h.Fleet.BundleDeployment().Informer())
		h.words.slimAfter(h.Fleet.Bundle().Informer(), h.bundles.ShareTexts)
		steps = append(steps, h.bundles)
		agentrole.Register(ctx, h.Context)
		h.words.slim(h.RBAC.ClusterRole().Informer())
	} else {
		h.words.slim(h.Fleet.Bundle().Informer())
	}
	cluster.Register(ctx, h.Context, append(steps, h.connected)...)
	h.orphans = orphans.Register(ctx, h.Context)
	var next settings.Next
	if !h.options.DisableBootstrap {
		next = bootstrap.New(h.Context)
	}
	watcher.Register(ctx, next)
	if err := h.startMetrics(); err != nil {
		return err
	}
	h.Shards.OnCatchUp(newBarrier(h.Context).await)
	h.words.slim(
		h.Core.Namespace().Informer(), h.Core.Secret().Informer(), h.Core.ServiceAccount().Informer(), h.Core.ConfigMap().Informer(),
		h.RBAC.Role().Informer(), h.RBAC.RoleBinding().Informer(), h.RBAC.ClusterRoleBinding().Informer(),
		h.Fleet.Cluster().Informer(), h.Fleet.ClusterGroup().Informer(), h.Fleet.ClusterRegistration().Informer(),
		h.Fleet.ClusterRegistrationToken().Informer(),
	)
	return nil
}

const (
	startWarning = 10 * time.Second
	startTimeout = 3 * time.Minute
)

// start fills the caches and lets the workers begin. A right that is missing keeps a cache from filling for ever and says
// so only in the log of client-go, so there is an end to the patience.
func (h *hub) start(ctx context.Context) error {
	h.admission.Start(ctx)
	h.imports.Start(ctx)
	if h.bundles != nil {
		h.bundles.Start(ctx)
	}
	warning := time.AfterFunc(startWarning, func() { //nolint:forbidigo // app.Context.Clock has no AfterFunc, and a log line needs none
		logrus.Warn("Still filling the caches; if this goes on, the hub may lack the right to list one of the kinds it watches")
	})
	defer warning.Stop()
	started := make(chan error, 1)
	go func() { started <- h.startCaches(ctx) }()
	select {
	case err := <-started:
		if err == nil && ctx.Err() == nil {
			logrus.Infof("The hub is at work, with its configuration in namespace %s", h.SystemNamespace)
			h.Shards.Ready()
			h.options.OnReady()
		}
		return err
	case <-h.Clock.After(startTimeout):
		return fmt.Errorf("the caches were not filled in %s: is a CustomResourceDefinition missing, or the right to list a kind?", startTimeout)
	}
}

func (h *hub) startCaches(ctx context.Context) error {
	if err := h.imports.Synced(ctx); err != nil {
		return err
	}
	if h.bundles != nil {
		if err := h.bundles.Synced(ctx); err != nil {
			return err
		}
	}
	h.awaitAdmission(ctx)
	for _, factory := range h.factories {
		if err := factory.Start(ctx, h.options.Workers); err != nil {
			return err
		}
	}
	h.orphans.Start(ctx)
	return nil
}

// admissionTimeout is little: a hub that does not know yet whether the policies are in force can do all but believe who
// created a request.
const admissionTimeout = 10 * time.Second

// awaitAdmission: requests that wait already are not to be judged before it is known what can be known of them.
func (h *hub) awaitAdmission(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, admissionTimeout)
	defer cancel()
	h.admission.Settle(ctx)
}

// close waits for what ends with the context.
func (h *hub) close() {
	h.endMetrics()
	h.Passes.Wait() // first: they begin the work that the others wait for
	if h.imports != nil {
		h.imports.Wait()
	}
	if h.connected != nil {
		h.connected.Wait()
	}
	if h.orphans != nil {
		h.orphans.Wait()
	}
	h.admission.Wait()
	if h.bundles != nil {
		h.bundles.Wait()
	}
	h.events.Shutdown()
	utilnet.CloseIdleConnectionsFor(h.transport)
}
