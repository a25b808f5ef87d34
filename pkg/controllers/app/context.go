// Package app is what the hub's controllers share: clients, caches, configuration, clock and recorder. One Context is
// built per hub and handed to each controller's Register.
package app

import (
	"context"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/controllers/uses"
	"github.com/muster-fleet/muster/pkg/credential"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Context is what the controllers of one hub share.
type Context struct {
	// RESTConfig is how the hub reaches its own API server.
	RESTConfig *rest.Config
	// Kubernetes is the typed client: for reads that must be live, for tokens, and for Secrets, which never pass through
	// apply because that keeps a part of every value in an annotation.
	Kubernetes kubernetes.Interface
	// Metadata reads objects without their content.
	Metadata metadata.Interface
	// Fleet has the controllers of the fleet.cattle.io kinds; their caches hold every object.
	Fleet fleetcontrollers.Interface
	// FleetClient writes the fleet.cattle.io kinds: unlike the clients of Fleet, it takes a context, so that a write ends with
	// its pass.
	FleetClient fleetclient.FleetV1alpha1Interface
	// Core and RBAC have the controllers of the Kubernetes kinds; their caches hold only objects with the label
	// fleet.cattle.io/managed=true, except ConfigMaps, of which they hold the hub's own configuration.
	Core corecontrollers.Interface
	RBAC rbaccontrollers.Interface
	// Secrets has the identity and version of every Secret that may be a kubeconfig. It is filled before the controllers start.
	Secrets cache.SharedIndexInformer
	// Contents has the identity of every Content; nil with DisableBundles. It is filled before the controllers start.
	Contents cache.SharedIndexInformer
	// Apply is the base of desired sets.
	Apply apply.Apply
	// Config is the hub's configuration in force.
	Config *config.Store
	// Issuer issues ServiceAccount tokens.
	Issuer credential.Issuer
	// Clock tells the time; tests bring their own.
	Clock clock.WithTicker
	// Passes are those of all controllers.
	Passes *guard.Passes
	// Events records the events of transitions.
	Events record.EventRecorder
	// SystemNamespace is where the hub lives.
	SystemNamespace string
	// TokenTTLRequired refuses ClusterRegistrationTokens that would live for ever.
	TokenTTLRequired bool
	// Agent is how agents are run that the hub installs.
	Agent AgentSettings
	// Recheck is when something is looked at again that stalled on an object the hub does not watch; 0 means
	// result.Recheck.
	Recheck time.Duration
	// ImportBackoff is how soon and how rarely an import that failed is tried again.
	ImportBackoff Backoff
	// DisableBundles leaves Bundles to Fleet's own controllers.
	DisableBundles bool
	// FarewellGrace is how long a deleted Cluster waits for its agent to leave.
	FarewellGrace time.Duration
	// ContentGrace is how long a Content is kept that no BundleDeployment names; 0 means 40 seconds.
	ContentGrace time.Duration
	// Metrics counts what the hub does.
	Metrics *metrics.Hub
	// Admission knows whether the admission policies of the hub are in force; nil means that they are not.
	Admission Admission
	// Uses are the requests that wait to be counted as uses of their token.
	Uses uses.Asks
	// DeletedRequests are the requests that were deleted because their Cluster was finalized.
	DeletedRequests finalizing.DeletedRequests
}

// Admission knows whether the admission policies are in force on the hub's API server.
type Admission interface {
	// InForce says whether they are now, and since when: what was created before may have been created by anybody.
	InForce() (since time.Time, ok bool)
	// OnChange calls f whenever the answer has changed. It is called before the hub starts.
	OnChange(f func())
	// Missing says in a sentence what keeps them from being in force, and what to do; "" while they are.
	Missing() string
}

// Backoff doubles from Base to Max.
type Backoff struct {
	Base, Max time.Duration
}

// AgentSettings is what a hub's process, not its ConfigMap, says about the agents it installs.
type AgentSettings struct {
	// Image is the agent of this release, for a configuration that names none.
	Image string
	// Replicas of the agent's Deployment; 0 means 1.
	Replicas int
	// LeaseDuration, RenewDeadline and RetryPeriod are the agents' leader election; 0 means 30s, 25s and 10s.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// DisableProbes installs agents without probes: Fleet's own agents do not answer them.
	DisableProbes bool
	// Debug and DebugLevel are passed on to the agents.
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

// RegistrationNamespace is the namespace of the credential Secrets.
func (c *Context) RegistrationNamespace() string {
	return registration.SystemRegistrationNamespace(c.SystemNamespace)
}

// NewPasses returns the Passes of a hub whose work ends with ctx.
func NewPasses(ctx context.Context) *guard.Passes { return guard.NewPasses(ctx) }
