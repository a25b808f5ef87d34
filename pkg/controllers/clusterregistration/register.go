// Package clusterregistration answers the requests of agents, ClusterRegistrations. It finds or creates the Cluster that a request
// is about, gives the agent a ServiceAccount with the rights it needs, and issues its credential as a Secret.
//
// A request has a spec with the clientID (the identity of the cluster) and a clientRandom (which request of that agent it is), and
// a label with the name of the ClusterRegistrationToken that the agent registers with. Each file calls only files below it:
//
//   - request.go: the flow of one request; grant and repair list all steps
//   - watch.go: which event enqueues which requests
//   - refusal.go: the answer to a refused request, the removal of its rights, and its deletion
//   - cluster.go: the Cluster a request is about
//   - identity.go: which agent holds an identity, and which requests of one agent supersede others
//   - limits.go: requests that have to wait, or are refused, because too many others have led to no connected agent
//   - token.go: the token a request was made with, who created the request, and the uses of a token
//   - rights.go: the ServiceAccount of the agent and everything bound to it
//   - removal.go: the deletion of a request
//   - credential.go: the Secret with the credential, from its issue to its expiry
//   - names.go: names, keys and results that the other files use
package clusterregistration

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"

	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/policy"
)

const (
	name       = "cluster-registration"
	expiryName = "credential-expiry"
)

// grantTimeout limits the memory for grants whose requests are deleted before the cache shows the grant. It is far longer than any
// cache lags behind: if the hub forgot the grant earlier, it could grant the same identity to a second agent.
const grantTimeout = time.Hour

type handler struct {
	*app.Context
	queue           fleetcontrollers.ClusterRegistrationController
	requests        fleetcontrollers.ClusterRegistrationCache
	clusters        fleetcontrollers.ClusterCache
	tokens          fleetcontrollers.ClusterRegistrationTokenCache
	namespaces      corecontrollers.NamespaceCache
	accounts        corecontrollers.ServiceAccountCache
	secrets         corecontrollers.SecretCache
	bindings        rbaccontrollers.RoleBindingCache
	clusterBindings rbaccontrollers.ClusterRoleBindingCache
	sets            desiredset.Sets
	agents          finalizing.UninstallingAgents
	policy          atomic.Pointer[policy.Policy]
	locks           clientIDLocks
	changedTokens   *enqueue.Changes[changedTokens]

	// written has the versions of requests that this hub has written, so that a pass over an older version of the cache writes nothing.
	written expectations.Expectations
	// writtenGrants has the versions with which it granted requests: until the cache shows one, no other request of the identity is decided.
	writtenGrants expectations.Expectations
	// grantAttempts has the versions on which a grant was tried and its outcome may be unknown: they block the same requests.
	grantAttempts expectations.Expectations
	// createdClusters has the keys of Clusters that the cache may lack: a pass waits for them, and does not send the create again.
	createdClusters expectations.Expectations
	// createdCredentials has the UIDs of requests whose credential Secret the cache may lack.
	createdCredentials expectations.Expectations
	// givenRights has the UIDs of requests that got rights before they are granted: a refusal has to find and delete these rights.
	givenRights expectations.Expectations

	// unstoredConditions has, by key, the last condition of a request that the API server did not store: the definition of Fleet's own
	// chart has no field for it.
	unstoredConditions sync.Map
}

// Register sets up the controller. It watches requests; Clusters, their namespaces and tokens, which requests wait for; the objects created for a
// request, to repair them; and credential Secrets, to delete them when they expire.
func Register(ctx context.Context, c *app.Context) {
	h := &handler{
		Context:         c,
		queue:           c.Fleet.ClusterRegistration(),
		requests:        c.Fleet.ClusterRegistration().Cache(),
		clusters:        c.Fleet.Cluster().Cache(),
		tokens:          c.Fleet.ClusterRegistrationToken().Cache(),
		namespaces:      c.Core.Namespace().Cache(),
		accounts:        c.Core.ServiceAccount().Cache(),
		secrets:         c.Core.Secret().Cache(),
		bindings:        c.RBAC.RoleBinding().Cache(),
		clusterBindings: c.RBAC.ClusterRoleBinding().Cache(),
		sets: desiredset.New(c.Kubernetes, c.Core.ServiceAccount().Informer(), c.Coordination.Lease().Informer(), c.RBAC.Role().Informer(),
			c.RBAC.RoleBinding().Informer(), c.RBAC.ClusterRoleBinding().Informer()),
		changedTokens:      &enqueue.Changes[changedTokens]{Queue: c.Fleet.ClusterRegistration(), MarkAll: (*changedTokens).MarkAll},
		written:            expectations.Expectations{Clock: c.Clock},
		writtenGrants:      expectations.Expectations{Clock: c.Clock, Timeout: grantTimeout},
		grantAttempts:      expectations.Expectations{Clock: c.Clock, Timeout: grantTimeout},
		createdClusters:    expectations.Expectations{Clock: c.Clock},
		createdCredentials: expectations.Expectations{Clock: c.Clock},
		givenRights:        expectations.Expectations{Clock: c.Clock},
	}
	h.agents = finalizing.UninstallingAgents{Kubernetes: c.Kubernetes, Accounts: h.accounts, Clusters: c.FleetClient}
	secretsByRequest.AddTo(h.secrets)
	h.requests.AddIndexer(refusedByCreator, h.creatorOfRefused)

	c.Fleet.ClusterRegistration().OnChange(ctx, name, app.Handler(c.Passes, name, h.onChange))
	c.Core.Secret().OnChange(ctx, expiryName, app.Handler(c.Passes, expiryName, h.expireCredential))
	h.watch()
}
