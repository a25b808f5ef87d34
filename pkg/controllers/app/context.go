// Package app has what the controllers of a hub share: clients, caches, configuration, clock and event recorder. Each hub has one Context,
// which it passes to the Register function of each controller. The controllers wrap their handlers in Handler.
package app

import (
	"cmp"
	"sync"
	"time"

	coordinationcontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/coordination.k8s.io/v1"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/admission"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/matching"
	"github.com/muster-fleet/muster/pkg/controllers/internal/namespacekey"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/tokenusage"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/credential"
	clusternetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/clusters.clusternet.io/v1beta1"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	clusternetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/clusters.clusternet.io/v1beta1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Context is what the controllers of one hub share.
type Context struct {
	// RESTConfig connects to the API server of the hub.
	RESTConfig *rest.Config
	// Kubernetes is the typed client of the Kubernetes kinds: for writes, for tokens, and for reads that must not come from a cache.
	Kubernetes kubernetes.Interface
	// Metadata reads the metadata of objects.
	Metadata metadata.Interface
	// Fleet has the controllers of the fleet.cattle.io kinds; their caches contain every object.
	Fleet fleetcontrollers.Interface
	// FleetClient writes the fleet.cattle.io kinds: unlike the clients of Fleet, it takes a context, so that a write ends with
	// its pass.
	FleetClient fleetclient.FleetV1alpha1Interface
	// Core and RBAC have the controllers of the Kubernetes kinds; their caches hold only objects with the label
	// fleet.cattle.io/managed=true, except ConfigMaps, of which they hold the hub's own configuration.
	Core corecontrollers.Interface
	RBAC rbaccontrollers.Interface
	// Coordination has the controller of Leases; its cache contains only the Leases of agents, which have the same label.
	Coordination coordinationcontrollers.Interface
	// SecretMetadata caches the identity and version of every Secret except those of Helm releases and of tokens of ServiceAccounts. It is filled before
	// the controllers start.
	SecretMetadata cache.SharedIndexInformer
	// ConfigMapMetadata caches name, UID and version of every ConfigMap but the root certificates of namespaces; nil with DisableBundles. It is
	// filled before the controllers start.
	ConfigMapMetadata cache.SharedIndexInformer
	// ContentMetadata caches the metadata of every Content; nil with DisableBundles. It is filled before the controllers start.
	ContentMetadata cache.SharedIndexInformer
	// Config has the current configuration of the hub.
	Config *config.Store
	// Issuer issues ServiceAccount tokens.
	Issuer credential.Issuer
	// Clock is the real clock, or a fake clock in tests.
	Clock clock.WithTicker
	// Passes tracks the passes of all controllers.
	Passes *Passes
	// Events records the events of transitions.
	Events record.EventRecorder
	// SystemNamespace is the namespace of the hub.
	SystemNamespace string
	// ConfigVersion is the annotation fleet.VersionAnnotation of the ConfigMaps that the hub applies; empty means that of the first ConfigMap.
	ConfigVersion string
	// PoliciesRequired refuses registrations while the admission policies are not in force.
	PoliciesRequired bool
	// TokenTTLRequired refuses ClusterRegistrationTokens that do not expire.
	TokenTTLRequired bool
	// Agent configures the agents that the hub installs.
	Agent AgentSettings
	// Recheck is the interval at which a stalled pass is repeated if it stalled because of an object that the hub does not watch; 0 means
	// result.Recheck.
	Recheck time.Duration
	// ImportBackoff is the time between the attempts of an import.
	ImportBackoff Backoff
	// Delays are the times for which the hub collects changes; see StatusDelay and RepairDelay.
	Delays Delays
	// DisableBundles leaves Bundles to Fleet's own controllers.
	DisableBundles bool
	// ClustersHaveStatus is whether a Cluster has an empty status from its creation on. Otherwise the hub must write its status before an agent of
	// Fleet can send a heartbeat.
	ClustersHaveStatus bool
	// Clusternet has the controllers of ClusterRegistrationRequests and ManagedClusters, and ClusternetClient writes them; both are nil
	// unless the hub serves Clusternet agents.
	Clusternet       clusternetcontrollers.Interface
	ClusternetClient clusternetclient.ClustersV1beta1Interface
	// HubUser is the user name of this hub on its API server; empty unless the hub serves Clusternet agents.
	HubUser string
	// FarewellGrace is how long a deleted Cluster waits until its agent, and what it deployed, is removed from the member, if the configuration
	// has no agentRemovalTimeout.
	FarewellGrace time.Duration
	// ContentGrace is the time for which a Content is kept after the last BundleDeployment that names it; 0 means 40 seconds.
	ContentGrace time.Duration
	// Metrics counts what the hub does.
	Metrics *metrics.Counters
	// Admission reports whether the admission policies of the hub are in force; nil means that the hub has none.
	Admission Admission
	// TokenUsage has the requests that wait to be counted as uses of their token.
	TokenUsage tokenusage.Uncounted
	// Backlog limits the registrations that have led to no connected agent yet.
	Backlog *backlog.Counter
	// Matching limits the CPUs that passes over the objects of one workspace take to match selectors and to render Helm values.
	Matching matching.Limiter
	// NamespaceKeys prove which cluster namespaces this hub creates.
	NamespaceKeys namespacekey.Keys
	// RequestsDeletedWithCluster are the requests that were deleted because their Cluster was finalized.
	RequestsDeletedWithCluster finalizing.RequestsDeletedWithCluster

	serverClock  serverClock
	definedKinds sync.Map // of *definedKind, by the name of the CustomResourceDefinition
}

// Admission reports whether the admission policies are in force on the API server of the hub.
type Admission interface {
	State() admission.PolicyState
	// OnChange registers a function that is called after each change. It is called before the hub starts.
	OnChange(f func())
}

// OriginPolicies is whether the API server proves where requests come from, and since when.
func (c *Context) OriginPolicies() registration.OriginPolicies {
	if c.Admission == nil {
		return registration.OriginPolicies{Missing: "the hub runs without admission policies, so the creators of requests are not recorded"}
	}
	state := c.Admission.State()
	return registration.OriginPolicies{
		InForce: state.InForce(), Since: state.Since, Missing: state.Missing, NotRecorded: state.NotRecorded, Hub: c.HubUser,
	}
}

// Delays are the times for which a hub collects changes before it works on them, so that many changes cause one pass and one write. A zero field has
// its default. They are options because a test that counts the requests of a change has to wait for the last of them.
type Delays struct {
	// Status is the time between the first change of an object and the write of a status that shows it: of a Bundle, a ClusterGroup or a Cluster.
	Status time.Duration
	// Repair is the time between the change of an object that the hub has created for an owner and the pass over the owner. The caches then contain
	// the hub's own writes.
	Repair time.Duration
}

// The defaults of Delays.
const (
	DefaultStatusDelay = time.Second
	DefaultRepairDelay = 2 * time.Second
)

// Backoff doubles from Base to Max.
type Backoff struct {
	Base, Max time.Duration
}

// AgentSettings configures the agents that a hub installs by options of its process, not by its ConfigMap.
type AgentSettings struct {
	// Image is the agent image of this version, used if the ConfigMap names none.
	Image string
	// Replicas of the agent's Deployment; 0 means 1.
	Replicas int
	// LeaseDuration, RenewDeadline and RetryPeriod are the agents' leader election; 0 means 30s, 25s and 10s.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// DisableProbes installs agents without probes, which Fleet's own agents do not answer.
	DisableProbes bool
	// ServeMetrics installs agents that serve metrics at port 8080.
	ServeMetrics bool
	// LogJSON lets agents log in JSON.
	LogJSON bool
	// Debug and DebugLevel are passed to the agents.
	Debug      bool
	DebugLevel int
	// DisableSecurityContext installs agents without security contexts.
	DisableSecurityContext bool
}

// RecheckDelay is Recheck or its default.
func (c *Context) RecheckDelay() time.Duration {
	if c.Recheck > 0 {
		return c.Recheck
	}
	return result.Recheck
}

// StatusDelay is Delays.Status or its default.
func (c *Context) StatusDelay() time.Duration { return cmp.Or(c.Delays.Status, DefaultStatusDelay) }

// RepairDelay is Delays.Repair or its default.
func (c *Context) RepairDelay() time.Duration { return cmp.Or(c.Delays.Repair, DefaultRepairDelay) }

// RegistrationNamespace is the namespace of the answer Secrets.
func (c *Context) RegistrationNamespace() string {
	return registration.SystemRegistrationNamespace(c.SystemNamespace)
}
