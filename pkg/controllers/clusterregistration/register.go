// Package clusterregistration answers the requests of agents, ClusterRegistrations. It finds or creates the Cluster that a request
// is about, gives the agent a ServiceAccount with the rights it needs, and issues its credential as a Secret.
//
// A request has a spec with the clientID (the identity of the cluster) and a clientRandom (which request of that agent it is), and
// a label with the name of the ClusterRegistrationToken that the agent registers with. request.go has the flow: bind, decide and grant until the request
// is granted, and then maintain. Their steps are in these files:
//
//   - cluster.go: find or create the Cluster
//   - token.go: find the token and report the origin, wait while too many agents have not connected, have the use counted
//   - identity.go: decide whether another agent holds the identity, report an approval, and delete superseded requests
//   - rights.go: the ServiceAccount of the agent and everything bound to it, and their removal after the request
//   - credential.go: the answer Secret with the credential, from its issue to its deletion, and whether the credential is revoked
//   - outcome.go: what follows from the decision: a refused request loses its rights and gets an answer; the status; the deletion of refused requests
//
// register.go has the events that enqueue requests.
package clusterregistration

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	rbaccontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/rbac/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	name          = "cluster-registration"
	answerCleanup = "answer-cleanup"
)

// grantTimeout limits the memory for grants whose requests are deleted before the cache shows the grant. It is far longer than any
// cache lags behind: if the hub forgot the grant earlier, it could grant the same identity to a second agent.
const grantTimeout = time.Hour

// The handler remembers writes that the caches may not show yet. An expectation ends when the cache shows its object, and at the latest after the
// time that Register sets.
//
//	memory           key             what it remembers                                  what follows from it
//	written          request         the versions of requests that this hub wrote       a pass over an older version writes nothing
//	writtenGrants    request         the versions with which it granted them            no other request of the identity is decided, and the
//	                                                                                    granted one is not maintained
//	grantAttempts    request         the versions on which it tried to grant them,      no other request of the identity is decided
//	                                 perhaps with an unknown outcome
//	createdClusters  Cluster         Clusters that it created                           a pass waits, and does not create the Cluster again
//	givenRights      UID of request  rights given to requests that are not granted yet  a refusal has to find and delete them
//	createdAnswers   UID of request  answer Secrets with a credential                   the right to read the Secret stays
//	deletedAnswers   UID of Secret   answer Secrets that this hub deleted               they are not lost
//	lostAnswers      UID of request  answers missing while the agent may poll for them  replaceLostAnswer creates them again
//	replacedAnswers  UID of request  answer Secrets created again within answerPause    they are not created again yet
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
	identities      finalizing.IdentityChecker
	policy          atomic.Pointer[policy.Policy]
	locks           clientIDLocks
	changes         *enqueue.Changes[changedDependencies]

	written, writtenGrants, grantAttempts                        expectations.Expectations
	createdClusters, givenRights, createdAnswers, deletedAnswers expectations.Expectations
	lostAnswers, replacedAnswers                                 *utilcache.Expiring

	// conditionsNotStored has, by key, the last condition of a request that the API server did not store, because the
	// CustomResourceDefinition is that of Fleet's own chart, which has no field for it.
	conditionsNotStored sync.Map
}

// Register sets up the controller. It watches requests; Clusters, their namespaces and tokens, which requests wait for; the objects created for a
// request, to repair them; and answer Secrets, to delete old ones.
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
		changes:         &enqueue.Changes[changedDependencies]{Queue: c.Fleet.ClusterRegistration(), MarkAll: (*changedDependencies).markAll},
		written:         expectations.Expectations{Clock: c.Clock},
		writtenGrants:   expectations.Expectations{Clock: c.Clock, Timeout: grantTimeout},
		grantAttempts:   expectations.Expectations{Clock: c.Clock, Timeout: grantTimeout},
		createdClusters: expectations.Expectations{Clock: c.Clock},
		createdAnswers:  expectations.Expectations{Clock: c.Clock},
		deletedAnswers:  expectations.Expectations{Clock: c.Clock, Timeout: answerLifetime},
		lostAnswers:     utilcache.NewExpiringWithClock(c.Clock),
		replacedAnswers: utilcache.NewExpiringWithClock(c.Clock),
		givenRights:     expectations.Expectations{Clock: c.Clock},
	}
	h.identities = finalizing.IdentityChecker{
		Kubernetes: c.Kubernetes, Accounts: h.accounts, Clusters: c.FleetClient, KindDeleted: c.KindDeleted, Clock: c.Clock,
	}
	secretsByRequest.AddTo(h.secrets)
	h.requests.AddIndexer(refusedByCreator, h.creatorOfRefused)

	c.Fleet.ClusterRegistration().OnChange(ctx, name, app.Handler(c.Passes, name, h.onChange))
	c.Core.Secret().OnChange(ctx, answerCleanup, app.Handler(c.Passes, answerCleanup, h.deleteOldAnswer))
	h.watch()
}

// watch enqueues requests when something changes that they depend on. Each reason for which a request waits, or is refused, has an
// event here or a timer in its result.
func (h *handler) watch() {
	h.policy.Store(policy.Of(h.Config.Get().Registration.Policy))
	h.Config.OnChange(h.onConfigChange)
	if h.Admission != nil {
		h.Admission.OnChange(func() { h.enqueueUngranted(metav1.NamespaceAll) })
	}
	requests, clusters, tokens, secrets := h.Fleet.ClusterRegistration(), h.Fleet.Cluster(), h.Fleet.ClusterRegistrationToken(), h.Core.Secret()
	enqueue.OnTransition(requests, h.queue, h.dependentsOfRequest)
	enqueue.OnEvent(clusters, h.onCluster)
	enqueue.OnTransition(clusters, h.queue, h.dependentsOfQuarantine)
	enqueue.OnTransition(h.Core.Namespace(), h.queue, h.dependentsOfNamespace)
	enqueue.OnEvent(tokens, h.onToken)
	enqueue.OnAnyChange(secrets, h.queue, h.requestOfAccountToken)
	enqueue.OnEvent(secrets, h.observeAnswer)
	enqueue.OnAnyChange(secrets, h.queue, h.dependentsOfAnswer)
	enqueue.OnAnyChange(secrets, h.queue, h.deletedRequestOf)
	for _, kind := range []enqueue.Source{h.Core.ServiceAccount(), h.RBAC.Role(), h.RBAC.RoleBinding(), h.RBAC.ClusterRoleBinding()} {
		enqueue.OnAnyChange(kind, h.queue, h.deletedRequestOf)
		enqueue.OnDamage(kind, h.queue, h.RepairDelay(), h.requestOfManaged)
	}
	enqueue.OnAnyChange(h.Coordination.Lease(), h.queue, h.deletedRequestOf)
	enqueue.OnTransition(h.Coordination.Lease(), h.queue, h.requestOfDamagedLease)
}

// onConfigChange enqueues every request that is not granted when the rules of the hub change.
func (h *handler) onConfigChange(before, after config.Hub) {
	if reflect.DeepEqual(before.Registration, after.Registration) && reflect.DeepEqual(before.Clusternet, after.Clusternet) {
		return
	}
	h.policy.Store(policy.Of(after.Registration.Policy))
	h.enqueueUngranted(metav1.NamespaceAll)
}

// enqueueUngranted lists all requests. Its callers are rare changes: of the configuration, of the admission policies by which the API server
// records who creates requests, and of very many tokens.
func (h *handler) enqueueUngranted(namespace string) {
	requests, _ := h.requests.List(namespace, labels.Everything()) // fails only if the selector is invalid
	h.enqueue(ungranted(requests))
}

func (h *handler) enqueue(keys []types.NamespacedName) {
	for _, key := range keys {
		h.queue.EnqueueAfter(key.Namespace, key.Name, 0)
	}
}

// dependentsOfRequest returns the other requests of the agent when a granted one is deleted: they may have been refused because the deleted
// one held the identity or superseded them.
func (h *handler) dependentsOfRequest(before, after *fleet.ClusterRegistration) []types.NamespacedName {
	if before == nil || !before.Status.Granted || after != nil && after.DeletionTimestamp == nil {
		return nil
	}
	sameClientID, _ := index.RequestsByClientID.Find(h.requests, index.Key(before.Namespace, before.Spec.ClientID))
	return ungranted(sameClientID)
}

// fewRequests is how many requests a change of a Cluster enqueues at once. Few agents have more than two.
const fewRequests = 20

// onCluster enqueues the requests that depend on a Cluster. A user may send thousands of requests with one clientID, and change the Cluster as fast as
// the API server accepts it: if more than fewRequests depend on the Cluster, a change that concerns no decision enqueues none of them, and any other
// change is noted for a pass over the workspace.
func (h *handler) onCluster(before, after *fleet.Cluster) {
	var keys []types.NamespacedName
	for _, cluster := range []*fleet.Cluster{before, after} {
		if cluster != nil {
			keys = append(keys, h.dependentsOfCluster(cluster)...)
		}
	}
	switch {
	case len(keys) <= fewRequests:
		h.enqueue(keys)
	case before != nil && after != nil && h.isSameForRequests(before, after):
	default:
		h.changes.Note(cmp.Or(after, before).Namespace, func(c *changedDependencies) {
			for _, cluster := range []*fleet.Cluster{before, after} {
				if cluster != nil {
					c.clusters.Add(cluster.Name, cluster.Spec.ClientID, 0, func(a, b string) bool { return a == b })
				}
			}
		})
	}
}

// isSameForRequests reports whether two versions of a Cluster lead to the same decisions about requests. A rule of the hub's policy may read every field.
func (h *handler) isSameForRequests(before, after *fleet.Cluster) bool {
	read := func(c *fleet.Cluster) *fleet.Cluster {
		return &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{
				UID: c.UID, DeletionTimestamp: c.DeletionTimestamp, Annotations: c.Annotations,
				Labels: map[string]string{fleet.ClusterManagementLabel: c.Labels[fleet.ClusterManagementLabel]},
			},
			Spec:   fleet.ClusterSpec{ClientID: c.Spec.ClientID, KubeConfigSecret: c.Spec.KubeConfigSecret, Quarantined: c.Spec.Quarantined},
			Status: fleet.ClusterStatus{Namespace: c.Status.Namespace, Agent: c.Status.Agent, Conditions: c.Status.Conditions},
		}
	}
	return len(h.Config.Get().Registration.Policy) == 0 && equality.Semantic.DeepEqual(read(before), read(after))
}

// dependentsOfCluster returns the requests of the Cluster's agent, and the requests whose new Cluster cannot be created because this Cluster
// has its name. They include a granted request if the agent uses its credential and something is left to delete.
func (h *handler) dependentsOfCluster(cluster *fleet.Cluster) []types.NamespacedName {
	requests, _ := h.requests.GetByIndex(index.ByNewCluster, index.Key(cluster.Namespace, cluster.Name))
	var own []*fleet.ClusterRegistration
	if cluster.Spec.ClientID != "" {
		own, _ = index.RequestsByClientID.Find(h.requests, index.Key(cluster.Namespace, cluster.Spec.ClientID))
	}
	keys := ungranted(slices.Concat(requests, own))
	for _, r := range own {
		if r.Name != cluster.Status.Agent.Registration || !r.Status.Granted || !registration.Renews(r) {
			continue
		}
		secrets, _ := h.answersOf(index.Key(r.Namespace, r.Name))
		if len(secrets) > 0 || len(registration.Superseded(r, own)) > 0 {
			keys = append(keys, types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
		}
	}
	return keys
}

// dependentsOfNamespace returns the requests of a Cluster whose namespace appears in the cache.
func (h *handler) dependentsOfNamespace(before, after *corev1.Namespace) []types.NamespacedName {
	if before != nil || after.Annotations[fleet.ClusterAnnotation] == "" {
		return nil
	}
	cluster, err := h.clusterNamed(after.Annotations[fleet.WorkspaceAnnotation], after.Annotations[fleet.ClusterAnnotation])
	if err != nil || cluster == nil || after.Name != clusterNamespace(cluster) {
		return nil // the event of the Cluster enqueues its requests
	}
	return h.dependentsOfCluster(cluster)
}

// dependentsOfQuarantine returns every request that has a ServiceAccount in the namespace of a Cluster when the Cluster is put into
// quarantine or released: a pass then withdraws the rights of its agent or restores them, and the answer Secret that the agent could not read. No
// other change of a Cluster's spec enqueues a granted request.
func (h *handler) dependentsOfQuarantine(before, after *fleet.Cluster) (keys []types.NamespacedName) {
	if before == nil || after == nil || before.Spec.Quarantined == after.Spec.Quarantined {
		return nil
	}
	accounts, _ := index.AccountsByNamespace.Find(h.accounts, clusterNamespace(after)) // fails only without the index
	for _, account := range accounts {
		keys = append(keys, requestOf(account)...)
	}
	for _, key := range keys {
		if request, err := h.requests.Get(key.Namespace, key.Name); err == nil && !after.Spec.Quarantined {
			h.lostAnswers.Set(request.UID, nil, answerLifetime)
		}
	}
	return keys
}

// changedDependencies are the objects of a workspace that have changed since the last call of enqueueDependents.
type changedDependencies struct {
	tokens   enqueue.ChangedNames
	clusters enqueue.EarlierVersions[string] // with many requests; their clientIDs
}

func (c *changedDependencies) markAll() {
	c.tokens.MarkAll()
	c.clusters.MarkAll()
}

// onToken enqueues the requests that were counted as uses of a token, and notes other changes of the token: thousands of requests may name
// it, so a pass over its workspace enqueues them, once for all changes of its tokens.
func (h *handler) onToken(before, after *fleet.ClusterRegistrationToken) {
	if before == nil || after == nil || concernsAll(before, after) {
		token := cmp.Or(after, before)
		h.changes.Note(token.Namespace, func(c *changedDependencies) { c.tokens.Add(token.Name) })
		return
	}
	for _, uid := range after.Status.PendingUses {
		if !slices.Contains(before.Status.PendingUses, uid) {
			requests, _ := index.RequestsByUID.Find(h.requests, uid)
			h.enqueue(ungranted(requests))
		}
	}
}

// concernsAll reports whether a change of a token may change the decision about every request that names it. Each count of a use concerns
// only the requests that are counted, unless it is the last use of the token. The conditions concern no request.
func concernsAll(before, after *fleet.ClusterRegistrationToken) bool {
	others := func(token *fleet.ClusterRegistrationToken) *fleet.ClusterRegistrationToken {
		copied := *token
		copied.ResourceVersion, copied.ManagedFields = "", nil
		copied.Status = fleet.ClusterRegistrationTokenStatus{Expires: token.Status.Expires, SecretName: token.Status.SecretName}
		return &copied
	}
	return registration.UsesOf(before).IsUsedUp() != registration.UsesOf(after).IsUsedUp() || !equality.Semantic.DeepEqual(others(before), others(after))
}

// enqueueDependents enqueues the requests that depend on the changes in a workspace.
func (h *handler) enqueueDependents(namespace string, c changedDependencies) {
	switch {
	case c.tokens.All || c.clusters.All:
		h.enqueueUngranted(namespace)
	case len(c.tokens.ByName) > 0:
		h.enqueueByToken(namespace, c.tokens)
	}
	if c.clusters.All {
		all, _ := h.clusters.List(namespace, labels.Everything())
		for _, cluster := range all {
			h.enqueue(h.dependentsOfCluster(cluster))
		}
		return
	}
	for name, clientIDs := range c.clusters.ByName {
		for _, clientID := range clientIDs {
			version := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: fleet.ClusterSpec{ClientID: clientID}}
			h.enqueue(h.dependentsOfCluster(version))
		}
		if cluster, err := h.clusterNamed(namespace, name); err == nil && cluster != nil {
			h.enqueue(h.dependentsOfCluster(cluster)) // a granted request too
		}
	}
}

// enqueueByToken enqueues the requests that name one of the tokens, and those that name none: whether the token of such a request is known
// depends on how many tokens there are.
func (h *handler) enqueueByToken(namespace string, tokens enqueue.ChangedNames) {
	for _, name := range append(slices.Collect(maps.Keys(tokens.ByName)), "") {
		requests, _ := h.requests.GetByIndex(index.ByToken, index.TokenKey(namespace, name))
		h.enqueue(ungranted(requests))
	}
}

// requestOfAccountToken returns the request for whose agent Kubernetes put a long-lived token into a Secret.
func (h *handler) requestOfAccountToken(secret *corev1.Secret) []types.NamespacedName {
	if secret.Type != corev1.SecretTypeServiceAccountToken {
		return nil
	}
	account, err := h.accounts.Get(secret.Namespace, secret.Annotations[corev1.ServiceAccountNameKey])
	if err != nil {
		return nil
	}
	return h.requestOfManaged(account)
}

// observeAnswer ends the expectation that the cache lacks the answer Secret of a request. It notes a Secret that another client has deleted.
func (h *handler) observeAnswer(before, after *corev1.Secret) {
	if answered := h.answeredBy(cmp.Or(after, before)); answered != nil {
		h.createdAnswers.Observed(string(answered.UID))
		if after == nil && !h.deletedAnswers.IsExpected(string(before.UID)) {
			h.lostAnswers.Set(answered.UID, nil, answerLifetime)
		}
	}
	if after == nil {
		h.deletedAnswers.Observed(string(before.UID))
	}
}

// dependentsOfAnswer returns the other requests of an agent whose answer Secret is created or deleted: until an agent has used the
// credential, the Secret decides whether the identity is held. If the request of the Secret is gone, dependentsOfRequest has returned them. A
// granted request itself is included: the right to read the Secret exists as long as the Secret.
func (h *handler) dependentsOfAnswer(secret *corev1.Secret) []types.NamespacedName {
	answered := h.answeredBy(secret)
	if answered == nil {
		return nil
	}
	sameClientID, _ := index.RequestsByClientID.Find(h.requests, index.Key(answered.Namespace, answered.Spec.ClientID))
	keys := ungranted(sameClientID)
	if answered.Status.Granted {
		keys = append(keys, requestKeyOf(secret))
	}
	return keys
}

// answeredBy returns the request, granted or not yet, whose answer Secret with a credential this is; nil if there is none.
func (h *handler) answeredBy(secret *corev1.Secret) *fleet.ClusterRegistration {
	if secret.Namespace != h.RegistrationNamespace() || secret.Type != registration.SecretTypeAnswer || isRefusal(secret) {
		return nil
	}
	key := requestKeyOf(secret)
	request, err := h.requests.Get(key.Namespace, key.Name)
	if err != nil {
		return nil
	}
	return request
}

// requestOfDamagedLease returns the request of a Lease that was deleted, or whose change includes fields that its agent may not write.
func (h *handler) requestOfDamagedLease(before, after *coordinationv1.Lease) []types.NamespacedName {
	if before == nil || after != nil && maps.Equal(before.Labels, after.Labels) && len(after.Finalizers) == 0 &&
		maps.Equal(withoutReport(before), withoutReport(after)) {
		return nil
	}
	return h.requestOfManaged(before)
}

func withoutReport(lease *coordinationv1.Lease) map[string]string {
	annotations := maps.Clone(lease.Annotations)
	delete(annotations, registration.LeaseReport)
	delete(annotations, registration.LeaseProof)
	return annotations
}

// deletedRequestOf returns the request that an object was created for if the request is gone, for example because it was deleted while no hub
// was running. The pass over the request deletes the object.
func (h *handler) deletedRequestOf(object metav1.Object) (keys []types.NamespacedName) {
	for _, key := range h.requestOfManaged(object) {
		if _, err := h.requests.Get(key.Namespace, key.Name); apierrors.IsNotFound(err) {
			keys = append(keys, key)
		}
	}
	return keys
}

func ungranted(requests []*fleet.ClusterRegistration) (keys []types.NamespacedName) {
	for _, r := range requests {
		if !r.Status.Granted {
			keys = append(keys, types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
		}
	}
	return keys
}

var requestKind = fleet.SchemeGroupVersion.WithKind("ClusterRegistration")

// requestOf returns the request that an object of a set was created for.
var requestOf = enqueue.OwnerOf(requestKind)

// requestOfManaged returns the request that an object was created for, if the object is where the hub creates objects for that request: in no
// namespace, or in the namespace of the request, of the answer Secrets or of a Cluster. With annotations on objects elsewhere, users of one
// workspace could otherwise make the hub work on requests of another workspace.
func (h *handler) requestOfManaged(object metav1.Object) []types.NamespacedName {
	in := object.GetNamespace()
	return slices.DeleteFunc(requestOf(object), func(request types.NamespacedName) bool {
		return in != "" && in != request.Namespace && in != h.RegistrationNamespace() && !strings.HasPrefix(in, "cluster-")
	})
}
