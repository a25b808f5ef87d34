package clusterregistration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// clientIDLocks makes workers decide the requests of one clientID one after another: two workers at the same time would both find that no
// agent holds the identity. The zero value is ready to use.
type clientIDLocks struct{ held sync.Map }

// tryLock returns nil if another request of the clientID is being decided.
func (l *clientIDLocks) tryLock(request *fleet.ClusterRegistration) (unlock func()) {
	key := index.Key(request.Namespace, request.Spec.ClientID)
	if _, locked := l.held.LoadOrStore(key, true); locked {
		return nil
	}
	return func() { l.held.Delete(key) }
}

// sameClientID returns all requests with the clientID of this one, itself included.
func (h *handler) sameClientID(request *fleet.ClusterRegistration) ([]*fleet.ClusterRegistration, error) {
	return index.RequestsByClientID.Find(h.requests, index.Key(request.Namespace, request.Spec.ClientID))
}

// otherMayBeGranted reports whether this hub may have granted another request of the clientID, and the cache does not show it yet. A write
// that ended with an error may have been accepted by the API server, for example if the connection broke before the response.
func (h *handler) otherMayBeGranted(request *fleet.ClusterRegistration, sameClientID []*fleet.ClusterRegistration) bool {
	return slices.ContainsFunc(sameClientID, func(r *fleet.ClusterRegistration) bool {
		return r.UID != request.UID && (h.writtenGrants.IsStale(r) || h.grantAttempts.IsStale(r))
	})
}

// otherGranted returns the other granted requests of the clientID, except those that are being deleted.
func otherGranted(request *fleet.ClusterRegistration, sameClientID []*fleet.ClusterRegistration) []*fleet.ClusterRegistration {
	return slices.DeleteFunc(slices.Clone(sameClientID), func(r *fleet.ClusterRegistration) bool {
		return r.UID == request.UID || !r.Status.Granted || r.DeletionTimestamp != nil
	})
}

// renewingRequest names a granted request of the clientID whose agent renews its credential; "" if there is none. A request whose token is only
// assumed does not count: its creator may be anybody.
func renewingRequest(request *fleet.ClusterRegistration, sameClientID []*fleet.ClusterRegistration) string {
	for _, r := range otherGranted(request, sameClientID) {
		if registration.Renews(r) && !registration.HasAssumedToken(r) {
			return r.Name
		}
	}
	return ""
}

// isClusternetReentry reports whether the Clusternet agent of the Cluster may have sent the request to register again without its credential,
// and may do so. The agent must be disconnected, so that no working agent loses its identity; it must have registered with the same token; and
// its credential must not be revoked: an agent that a person locked out is disconnected too, and still has its token.
func (h *handler) isClusternetReentry(
	ctx context.Context, request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken, cluster *fleet.Cluster, origin registration.Origin,
	sameClientID []*fleet.ClusterRegistration,
) (bool, error) {
	allowed := slices.Contains(h.Config.Get().Clusternet.ReentryNamespaces, request.Namespace)
	if !allowed || !origin.Proved() || !registration.IsForClusternet(request, h.HubUser) ||
		!fleetstatus.IsFalse(cluster.Status.Conditions, fleet.ConditionConnected) {
		return false, nil
	}
	granted := otherGranted(request, sameClientID)
	for _, r := range granted {
		if !registration.IsForClusternet(r, h.HubUser) || r.Status.TokenUID != string(token.UID) {
			return false, nil
		}
		if fleetstatus.Condition(r.Status.Conditions, fleet.ConditionGranted).Reason == fleet.ReasonCredentialRevoked {
			return false, nil
		}
		if revoked, err := h.isRevoked(ctx, r, cluster); err != nil || revoked {
			return false, err
		}
	}
	return len(granted) > 0, nil
}

// unusedAfter is the age of an answer Secret from which the hub assumes that no agent has read the credential, if the request is of an agent
// that does not renew its credential and the Cluster has no heartbeat: a heartbeat is the first write of such an agent.
const unusedAfter = 5 * time.Minute

// hasAgentOrAnswer reports whether an agent, perhaps the one that sent this request, has sent a heartbeat for the Cluster, or the answer
// Secret of a granted request still exists on the hub. Such a Secret counts until the hub deletes it (answerLifetime). If the request may come
// from the agent that sent the earlier one (mayBeSameAgent), it counts only until it is unusedAfter old; freeIn is then the rest of that time,
// and otherwise 0. A kubeconfig Secret, with which a Cluster is held too, is a fact that registration.Judge reads from the Cluster itself.
func (h *handler) hasAgentOrAnswer(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, token *fleet.ClusterRegistrationToken, origin registration.Origin,
	sameClientID []*fleet.ClusterRegistration,
) (has bool, freeIn time.Duration, err error) {
	if !cluster.Status.Agent.LastSeen.IsZero() && !h.isHeartbeatOf(request, cluster, sameClientID) {
		return true, 0, nil
	}
	for _, r := range otherGranted(request, sameClientID) {
		secret, err := h.confirmedAnswer(ctx, r)
		switch {
		case err != nil:
			return false, 0, err
		case secret == nil || !isFor(secret, r):
			continue
		case !h.mayBeSameAgent(request, token, origin, r):
			return true, 0, nil
		}
		if freeIn = unusedAfter - h.Clock.Since(secret.CreationTimestamp.Time); freeIn > 0 {
			return true, freeIn, nil
		}
	}
	return false, 0, nil
}

// isHeartbeatOf reports whether the heartbeat of the Cluster came from the agent of this request, which is not granted yet. That happens if an
// earlier pass created the ServiceAccount and the credential, the agent used the credential, and the write that grants the request failed, or
// the hub was killed before it. The ServiceAccount proves that pass: its name contains the UID of the request, and the hub creates it only for
// a request that may be granted. If the heartbeat names no request, it counts as this agent's only if no other request was granted.
func (h *handler) isHeartbeatOf(request *fleet.ClusterRegistration, cluster *fleet.Cluster, sameClientID []*fleet.ClusterRegistration) bool {
	if _, err := h.accounts.Get(clusterNamespace(cluster), accountName(request)); err != nil {
		return false
	}
	if cluster.Status.Agent.Registration != "" {
		return isInUse(request, cluster)
	}
	return !slices.ContainsFunc(sameClientID, func(r *fleet.ClusterRegistration) bool { return r.UID != request.UID && r.Status.Granted })
}

// confirmedAnswer returns the answer Secret of a granted request, nil if there is none. It reads from the API server if the cache has none:
// the watch of Secrets may be behind the watch of requests, and a second agent would get the same identity.
func (h *handler) confirmedAnswer(ctx context.Context, request *fleet.ClusterRegistration) (*corev1.Secret, error) {
	secret, err := h.cachedAnswer(request)
	if err == nil && secret == nil {
		secret, err = h.Kubernetes.CoreV1().Secrets(h.RegistrationNamespace()).Get(ctx, secretName(request), metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the credential of ClusterRegistration %s: %w", request.Name, err)
	}
	return secret, nil
}

// mayBeSameAgent reports whether one agent may have sent both requests, because it was stopped before it stored the credential of the earlier
// one. Both requests came with the same token, whose holder can read that credential anyway, so the second grant gives no new rights. An agent
// that renews its credential stores its request before it sends it, and never needs a second one.
func (h *handler) mayBeSameAgent(
	request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken, origin registration.Origin, earlier *fleet.ClusterRegistration,
) bool {
	before := registration.OriginOf(earlier, h.OriginPolicies())
	if !origin.Proved() || !before.Proved() || registration.Renews(request) || registration.Renews(earlier) {
		return false
	}
	if origin.Creator == "" { // both are proved by the token that they name
		return before.Creator == "" && earlier.Status.TokenUID == string(token.UID)
	}
	return before.Creator == origin.Creator
}

// isProverRevoked reports whether the credential with which the agent proved possession of the request was revoked. Agents report the request
// with which they have registered. An agent that uses the stored credential of an agent of Fleet does not; that credential belongs to a
// granted request whose agent does not renew. If there is no granted request that can be the prover's, its credential counts as revoked.
func (h *handler) isProverRevoked(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, sameClientID []*fleet.ClusterRegistration,
) (bool, error) {
	agent := cluster.Status.Agent
	if agent.PossessionProof != request.Name {
		return false, nil
	}
	for _, r := range otherGranted(request, sameClientID) {
		if isProver := agent.Registration == r.Name || agent.Registration == "" && !registration.Renews(r); !isProver {
			continue
		}
		if revoked, err := h.isRevoked(ctx, r, cluster); err != nil || !revoked {
			return false, err
		}
	}
	return true, nil
}

// setApproved sets condition Approved, which exists if a person or a rule has decided, or if the token, the policy or the
// configuration requires an approval.
func setApproved(conditions *fleetstatus.Conditions, approval *registration.Explanation, now time.Time) *result.Transition {
	if approval == nil {
		*conditions = slices.DeleteFunc(slices.Clone(*conditions), func(c genericcondition.GenericCondition) bool { return c.Type == fleet.ConditionApproved })
		return nil
	}
	out := result.Wait(approval.Reason, approval.Message)
	switch approval.Reason {
	case fleet.ReasonApproved:
		out = result.Done(approval.Reason, approval.Message)
	case fleet.ReasonDenied:
		out = result.Stalled(approval.Reason, approval.Message)
	}
	return result.Set(conditions, fleet.ConditionApproved, out, now)
}

// deleteOlderOnceUsed deletes the older requests of the agent once it uses the credential of this request. The next request of the agent, for
// which it has proved possession, stays: it may have been created in the same second. Until the agent uses the credential, only the oldest
// unused requests above registration.MostUnused are deleted: an agent resumes its request after a restart, so it has one, but the thief of a
// token for this Cluster could create any number.
func (h *handler) deleteOlderOnceUsed(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, sameClientID []*fleet.ClusterRegistration,
) error {
	proof := cluster.Status.Agent.PossessionProof
	if isInUse(request, cluster) {
		return h.deleteOlder(ctx, request, sameClientID, proof)
	}
	var unused []*fleet.ClusterRegistration
	for _, r := range sameClientID {
		if r.Name != request.Name && r.DeletionTimestamp == nil && r.Status.Granted && registration.Renews(r) && !isInUse(r, cluster) && r.Name != proof {
			unused = append(unused, r)
		}
	}
	return h.deleteSuperseded(ctx, registration.OldestUnused(unused))
}

// deleteOlder deletes the older requests of the agent, except the named one. Their rights are deleted with them, so an old credential stops working.
func (h *handler) deleteOlder(ctx context.Context, request *fleet.ClusterRegistration, sameClientID []*fleet.ClusterRegistration, except string) error {
	older := registration.Superseded(request, sameClientID)
	return h.deleteSuperseded(ctx, slices.DeleteFunc(older, func(r *fleet.ClusterRegistration) bool { return r.Name == except }))
}

func (h *handler) deleteSuperseded(ctx context.Context, requests []*fleet.ClusterRegistration) error {
	for _, r := range requests {
		err := h.FleetClient.ClusterRegistrations(r.Namespace).Delete(ctx, r.Name, writes.IfUID(r))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting the superseded ClusterRegistration %s: %w", r.Name, err)
		}
	}
	return nil
}

// isInUse reports whether the agent has sent a heartbeat with the credential of this request.
func isInUse(request *fleet.ClusterRegistration, cluster *fleet.Cluster) bool {
	return cluster.Status.Agent.Registration == request.Name
}
