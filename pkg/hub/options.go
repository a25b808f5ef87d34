// Package hub runs the hub, which registers member clusters with the cluster that it runs against. Run is all that a program needs:
// the hub's own binary, and a management server that embeds the hub.
package hub

import (
	"errors"
	"fmt"
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

// Options configure a hub. Only RESTConfig is required.
type Options struct {
	// RESTConfig is the configuration for the hub's API server. Run copies it, removes client-side rate limits from the copy, because
	// the priority and fairness of the API server limits requests better, and replaces a Timeout of 0 with 30 seconds.
	RESTConfig *rest.Config
	// SharedControllerFactory, if given, is used for the fleet.cattle.io kinds, so that a server that watches them too has them in
	// memory only once. It must not have been started; Run starts it. For Kubernetes kinds the hub always has caches of its own, with the
	// objects that have its label, its own ConfigMap, and the metadata of other Secrets and ConfigMaps.
	SharedControllerFactory controller.SharedControllerFactory
	// SystemNamespace is the namespace of the hub's ConfigMap; empty means "cattle-fleet-system".
	SystemNamespace string
	// ConfigVersion is the version of the chart that installed this hub: the annotation "fleet.cattle.io/version" of the ConfigMaps that the hub
	// applies. While an upgrade or a rollback replaces the hub, it ignores those of the other version. Empty means the version of the first ConfigMap
	// that it reads. A ConfigMap without the annotation applies, unless it is of a Helm release, such as one of Fleet's chart.
	ConfigVersion string
	// DisableBootstrap prevents the hub from registering its own cluster, whatever its configuration says.
	DisableBootstrap bool
	// TokenTTLRequired refuses ClusterRegistrationTokens without a TTL.
	TokenTTLRequired bool
	// DisableBundles leaves Bundles, BundleDeployments and Contents to Fleet's own controllers beside this hub. The hub still creates
	// the Bundles of agents.
	DisableBundles bool
	// Clusternet lets unchanged agents of Clusternet register: the hub creates and watches the kinds that they use, installs further
	// admission policies, and lets the holders of ClusterRegistrationTokens create ClusterRegistrationRequests. It requires an API server
	// that serves MutatingAdmissionPolicies, as Kubernetes 1.36 and later do; on others such requests wait.
	Clusternet bool
	// LeaveAdmission leaves the admission policies to others, such as the chart fleet. The hub then only watches them. Otherwise it
	// installs them, and restores them when somebody changes or deletes them.
	LeaveAdmission bool
	// RequirePolicies refuses registrations while the admission policies are not in force, and always if the API server serves none.
	// registration.requirePolicies of the configuration does the same.
	RequirePolicies bool
	// FarewellGrace limits how long the deletion of a Cluster waits for the member; 0 means 30 seconds. The hub first waits for the agent to remove
	// what it deployed, unless the agent is disconnected, and then for its own removal with the kubeconfig. agentRemovalTimeout of the configuration
	// replaces it.
	FarewellGrace time.Duration
	// ContentGrace is the time for which a Content is kept after the last BundleDeployment that names it; 0 means 40 seconds.
	ContentGrace time.Duration
	// Metrics, if given, is the registry of the hub's metrics while the hub works. Two hubs cannot use the same registry.
	Metrics prometheus.Registerer
	// FleetMetrics adds series for each Cluster, ClusterGroup, Bundle and BundleDeployment under the names that Fleet's own controllers use.
	FleetMetrics bool
	// Agent configures the agents that the hub installs. An empty image means the agent of this version.
	Agent app.AgentSettings
	// ImportBackoff is the backoff of an import that failed; the zero value means 2 seconds to 5 minutes.
	ImportBackoff app.Backoff
	// Delays are the times for which the hub collects changes; zero fields mean a second for the statuses of Bundles, ClusterGroups and Clusters, and two
	// seconds for the repair of objects.
	Delays app.Delays
	// Recheck is the interval at which an object is reconciled that waits for an object which the hub does not watch, such as the
	// deletion of a foreign object with a name that the hub needs; 0 means a minute.
	Recheck time.Duration
	// Workers is the number of objects of one kind and namespace that the hub reconciles at the same time, and twice that for all
	// namespaces; with SharedControllerFactory, of one kind in all namespaces. 0 means 50.
	Workers int
	// Clock is replaced in tests; nil means the real clock.
	Clock clock.WithTicker
	// Election, if given, is the Lease that the hub holds while it works; while another process holds it, the hub is a hot
	// standby. nil means that no other hub runs.
	Election *leader.Config
	// OnStandby, if given, is called once when the caches of a standby are filled.
	OnStandby func()
	// OnElected, if given, is called once the hub has acquired the Lease, before it fills the rest of its caches.
	OnElected func()
	// OnReady, if given, is called once the hub is at work.
	OnReady func()
	// OnWatching, if given, is called with false when the API server has refused to let one of the hub's caches list or watch its kind for a minute,
	// mostly because a right is missing: the hub does not notice changes then, and is not ready. It is called with true once the API server accepts those
	// watches again. The caches of SharedControllerFactory do not count. It must not block: requests of the caches wait for it.
	OnWatching func(watching bool)
}

const (
	defaultWorkers = 50
	defaultTimeout = 30 * time.Second
	farewellGrace  = 30 * time.Second
	agentImage     = "muster-fleet/fleet-agent:"
)

// complete validates the options and sets the defaults.
func (o Options) complete() (Options, error) {
	if o.RESTConfig == nil {
		return o, errors.New("Options.RESTConfig is missing: set the configuration for the hub's API server")
	}
	if err := o.checkNumbers(); err != nil {
		return o, err
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
	if o.OnWatching == nil {
		o.OnWatching = func(bool) {}
	}
	return o, nil
}

// checkNumbers refuses numbers with which the hub would do nothing, would give up at once, or would repeat a failed import without a pause.
func (o Options) checkNumbers() error {
	var errs []error
	if o.Workers < 0 {
		errs = append(errs, fmt.Errorf("Options.Workers is %d: it must not be negative", o.Workers))
	}
	for _, option := range []struct {
		name  string
		value time.Duration
	}{
		{"FarewellGrace", o.FarewellGrace},
		{"ContentGrace", o.ContentGrace},
		{"Recheck", o.Recheck},
		{"Delays.Status", o.Delays.Status},
		{"Delays.Repair", o.Delays.Repair},
	} {
		if option.value < 0 {
			errs = append(errs, fmt.Errorf("Options.%s is %s: it must not be negative", option.name, option.value))
		}
	}
	if b := o.ImportBackoff; b != (app.Backoff{}) && (b.Base <= 0 || b.Max < b.Base) {
		errs = append(errs, fmt.Errorf("Options.ImportBackoff is from %s to %s: set both, or none", b.Base, b.Max))
	}
	return errors.Join(errs...)
}
