// Package hub is the hub: it registers member clusters with the cluster it runs against. Run is all a program
// needs, whether it is the hub's own binary or a management server that embeds it.
package hub

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rancher/lasso/pkg/controller"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/version"
)

// Options say which hub to run. Only RESTConfig is required.
type Options struct {
	// RESTConfig is how the hub reaches its API server. It is copied; limits on requests are taken off the copy, for the API
	// server's own priority and fairness does that better, and a Timeout of 0 becomes 30 seconds.
	RESTConfig *rest.Config
	// SharedControllerFactory, if given, serves the fleet.cattle.io kinds, so that a server which watches them anyway keeps
	// them in memory once. It must not have been started; Run starts it. The Kubernetes kinds always have caches of the
	// hub's own, which hold only what the hub made.
	SharedControllerFactory controller.SharedControllerFactory
	// SystemNamespace is where the hub's ConfigMap is; empty means "cattle-fleet-system".
	SystemNamespace string
	// DisableBootstrap keeps the hub from registering its own cluster, whatever its configuration says.
	DisableBootstrap bool
	// TokenTTLRequired refuses ClusterRegistrationTokens that would live for ever.
	TokenTTLRequired bool
	// DisableBundles leaves Bundles, BundleDeployments and Contents to Fleet's own controllers, where they run beside this
	// hub. The Bundles of agents are made all the same.
	DisableBundles bool
	// LeaveAdmission leaves the admission policies to others, such as the chart fleet: the hub relies on them where they are,
	// and needs only the right to watch them. Otherwise it installs them itself, and puts them right whenever somebody changes
	// or removes them.
	LeaveAdmission bool
	// FarewellGrace is how long a deleted Cluster waits for its agent to remove what it deployed; 0 means 30 seconds. An
	// agent that is not there is not waited for.
	FarewellGrace time.Duration
	// ContentGrace is how long a Content is kept that no BundleDeployment names; 0 means 40 seconds.
	ContentGrace time.Duration
	// Metrics, if given, has the hub's metrics for as long as it runs; two hubs cannot share one at a time.
	Metrics prometheus.Registerer
	// Agent is how agents are run that the hub installs. An empty image means the agent of this release.
	Agent app.AgentSettings
	// ImportBackoff is how soon and how rarely an import that failed is tried again; the zero value means 2 seconds to 5
	// minutes.
	ImportBackoff app.Backoff
	// Recheck is when something is looked at again that stalled on an object the hub does not watch, such as one of
	// somebody else that has a name it needs; 0 means a minute.
	Recheck time.Duration
	// Workers is the number of workers for each kind; 0 means 50.
	Workers int
	// Clock tells the time; nil means the real one.
	Clock clock.WithTicker
	// Election, if given, is the Lease that the hub holds while it works; while another process holds it, the hub is a hot
	// standby. nil means that no other hub runs.
	Election *leader.Election
	// OnStandby, if given, is called once when the caches of a standby are filled.
	OnStandby func()
	// OnElected, if given, is called once the hub has acquired the Lease, before it fills what is left of its caches.
	OnElected func()
	// OnReady, if given, is called once all caches are filled and the hub is at work.
	OnReady func()
}

const (
	defaultWorkers = 50
	defaultTimeout = 30 * time.Second
	farewellGrace  = 30 * time.Second
	agentImage     = "muster-fleet/fleet-agent:"
)

// complete checks the options and fills in the defaults.
func (o Options) complete() (Options, error) {
	if o.RESTConfig == nil {
		return o, errors.New("Options.RESTConfig is missing: it says which API server the hub works on")
	}
	if o.SystemNamespace == "" {
		o.SystemNamespace = registration.DefaultSystemNamespace
	}
	if o.Workers == 0 {
		o.Workers = defaultWorkers
	}
	if o.FarewellGrace == 0 {
		o.FarewellGrace = farewellGrace
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.ImportBackoff == (app.Backoff{}) {
		o.ImportBackoff = app.Backoff{Base: 2 * time.Second, Max: 5 * time.Minute}
	}
	if o.Agent.Image == "" {
		o.Agent.Image = agentImage + version.Version
	}
	if o.OnStandby == nil {
		o.OnStandby = func() {}
	}
	if o.OnElected == nil {
		o.OnElected = func() {}
	}
	if o.Election != nil && o.Election.OnWaiting == nil {
		election := *o.Election
		election.OnWaiting = func(string) {}
		o.Election = &election
	}
	if o.OnReady == nil {
		o.OnReady = func() {}
	}
	return o, nil
}
