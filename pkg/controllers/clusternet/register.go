// Package clusternet lets unchanged agents of Clusternet register with the hub. It only translates: for a ClusterRegistrationRequest it creates a
// ClusterRegistration in the workspace of the token that created the request, package clusterregistration decides about the ClusterRegistration,
// and this package writes the decision into the request. It creates a ManagedCluster for each granted ClusterRegistration, and copies the report
// of the agent from there to status.agent of the Cluster.
//
//   - request.go: the flow of one ClusterRegistrationRequest
//   - answer.go: what an approved request contains, and the right to read it
//   - managedcluster.go: the ManagedCluster, and the heartbeats that arrive in it
//   - report.go: the translation of a heartbeat
//   - rights.go: the rights of tokens and agents
//
// The hub registers this controller only if hub.Options.Clusternet is set.
package clusternet

import (
	"context"
	"reflect"
	"sync"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	clusternetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/clusters.clusternet.io/v1beta1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	requestName   = "clusternet-request"
	memberName    = "clusternet-member"
	heartbeatName = "clusternet-heartbeat"
)

type handler struct {
	*app.Context
	queue          clusternetcontrollers.ClusterRegistrationRequestController
	requests       clusternetcontrollers.ClusterRegistrationRequestCache
	members        clusternetcontrollers.ManagedClusterCache
	registrations  fleetcontrollers.ClusterRegistrationCache
	clusters       fleetcontrollers.ClusterCache
	tokens         fleetcontrollers.ClusterRegistrationTokenCache
	accounts       corecontrollers.ServiceAccountCache
	secrets        corecontrollers.SecretCache
	readerBindings rbaccontrollers.ClusterRoleBindingCache

	written        expectations.Expectations // of requests
	writtenMembers expectations.Expectations
	answered       sync.Map // the approval of each request by its name
	heartbeats     sync.Map // the storedHeartbeat of each ManagedCluster, by its key
	heartbeatQueue enqueue.Enqueuer
	misnamed       misnamedRequests
}

// approvalTime is when this hub approved a request, or first saw it approved.
type approvalTime struct {
	request types.UID
	time    time.Time
}

// Register sets up the controller. It watches ClusterRegistrationRequests and ManagedClusters; the ClusterRegistrations made of the
// requests, and their Clusters; the configuration, which has the CA of the hub; and the admission policies, which record who creates requests.
func Register(ctx context.Context, c *app.Context) {
	h := &handler{
		Context:        c,
		queue:          c.Clusternet.ClusterRegistrationRequest(),
		requests:       c.Clusternet.ClusterRegistrationRequest().Cache(),
		members:        c.Clusternet.ManagedCluster().Cache(),
		registrations:  c.Fleet.ClusterRegistration().Cache(),
		clusters:       c.Fleet.Cluster().Cache(),
		tokens:         c.Fleet.ClusterRegistrationToken().Cache(),
		accounts:       c.Core.ServiceAccount().Cache(),
		secrets:        c.Core.Secret().Cache(),
		readerBindings: c.RBAC.ClusterRoleBinding().Cache(),
		written:        expectations.Expectations{Clock: c.Clock},
		writtenMembers: expectations.Expectations{Clock: c.Clock},
		heartbeatQueue: c.Clusternet.ManagedCluster(),
	}
	h.requests.AddIndexer(unregisteredByCreator, creatorOfUnregistered)
	requests, registrations, members := queueOfRequests{h.queue}, c.Fleet.ClusterRegistration(), c.Clusternet.ManagedCluster()
	c.Clusternet.ClusterRegistrationRequest().OnChange(ctx, requestName, app.Handler(c.Passes, requestName, h.onRequest))
	registrations.OnChange(ctx, memberName, app.Handler(c.Passes, memberName, h.onRegistration))
	members.OnChange(ctx, heartbeatName, app.Handler(c.Passes, heartbeatName, h.onManagedCluster))

	enqueue.OnAnyChange(registrations, requests, h.requestOfRegistration)
	enqueue.OnTransition(c.Fleet.Cluster(), requests, h.requestOfCluster)
	enqueue.OnTransition(c.Clusternet.ClusterRegistrationRequest(), registrations, h.registrationOfRequest)
	enqueue.OnTransition(c.Fleet.Cluster(), registrations, h.registrationOfCluster)
	enqueue.OnTransition(members, registrations, h.registrationOfMember)
	c.Config.OnChange(func(before, after config.Hub) {
		if string(before.APIServerCA) != string(after.APIServerCA) || !reflect.DeepEqual(before.Clusternet, after.Clusternet) {
			h.enqueueAll()
		}
	})
	c.Admission.OnChange(h.enqueueAll)
}

// queueOfRequests is the work queue of requests, which have no namespace.
type queueOfRequests struct {
	requests clusternetcontrollers.ClusterRegistrationRequestController
}

// EnqueueAfter ignores the namespace.
func (q queueOfRequests) EnqueueAfter(_, name string, after time.Duration) {
	q.requests.EnqueueAfter(name, after)
}

func (h *handler) enqueueAll() {
	all, _ := h.requests.List(labels.Everything()) // fails only if the selector is invalid
	for _, request := range all {
		h.queue.EnqueueAfter(request.Name, 0)
	}
}

// requestOfIdentity returns the request for a clientID, if there is one.
func (h *handler) requestOfIdentity(clientID string) []types.NamespacedName {
	if request, err := h.requests.Get(v1beta1.RequestPrefix + clientID); err == nil {
		return []types.NamespacedName{{Name: request.Name}}
	}
	return nil
}

func (h *handler) requestOfRegistration(r *fleet.ClusterRegistration) []types.NamespacedName {
	if !registration.IsForClusternet(r, h.HubUser) {
		return nil
	}
	return h.requestOfIdentity(r.Spec.ClientID)
}

// registrationOfRequest returns the registration of a request that was deleted.
func (h *handler) registrationOfRequest(before, after *v1beta1.ClusterRegistrationRequest) []types.NamespacedName {
	if before == nil || after != nil {
		return nil
	}
	workspace := h.workspaceOf(before.Annotations[fleet.CreatorAnnotation])
	return []types.NamespacedName{{Namespace: workspace, Name: registration.ClusternetRequestName(string(before.UID))}}
}

// requestOfCluster returns the request of a Cluster when a heartbeat arrives, after which the request is deleted, and when the Cluster is put
// into quarantine or released.
func (h *handler) requestOfCluster(before, after *fleet.Cluster) []types.NamespacedName {
	if before == nil || after == nil || before.Status.Agent.LastSeen.Equal(&after.Status.Agent.LastSeen) && before.Spec.Quarantined == after.Spec.Quarantined {
		return nil
	}
	return h.requestOfIdentity(after.Spec.ClientID)
}

// registrationOfCluster returns the registration of a Cluster when its agent is connected or disconnected, which the ManagedCluster shows.
func (h *handler) registrationOfCluster(before, after *fleet.Cluster) []types.NamespacedName {
	if before == nil || after == nil || isDisconnected(before) == isDisconnected(after) {
		return nil
	}
	return h.registrationOfIdentity(after)
}

// registrationOfMember returns the registration of a ManagedCluster that was deleted, to create it again.
func (h *handler) registrationOfMember(before, after *v1beta1.ManagedCluster) []types.NamespacedName {
	if before == nil || after != nil {
		return nil
	}
	cluster := h.clusterOf(before)
	if cluster == nil {
		return nil
	}
	return h.registrationOfIdentity(cluster)
}

func (h *handler) registrationOfIdentity(cluster *fleet.Cluster) []types.NamespacedName {
	if granted := h.grantedFor(cluster); granted != nil {
		return []types.NamespacedName{{Namespace: granted.Namespace, Name: granted.Name}}
	}
	return nil
}

// grantedFor returns the granted ClusterRegistration of a Clusternet agent for a Cluster, nil if there is none.
func (h *handler) grantedFor(cluster *fleet.Cluster) *fleet.ClusterRegistration {
	same, _ := index.RequestsByClientID.Find(h.registrations, index.Key(cluster.Namespace, cluster.Spec.ClientID))
	for _, r := range same {
		if r.Status.Granted && r.DeletionTimestamp == nil && registration.IsForClusternet(r, h.HubUser) {
			return r
		}
	}
	return nil
}

func isDisconnected(cluster *fleet.Cluster) bool {
	return fleetstatus.IsFalse(cluster.Status.Conditions, fleet.ConditionConnected)
}
