package clusterregistration

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

// cacheDelay is the time within which the cache normally contains the writes of the hub.
const cacheDelay = 50 * time.Millisecond

// onChange decides about a request, or maintains what it was granted. The queue of requests also has the keys of workspaces in which tokens,
// or Clusters with many requests, have changed.
func (h *handler) onChange(key string, request *fleet.ClusterRegistration) (*fleet.ClusterRegistration, error) {
	if h.changes.HandleKey(key, h.enqueueDependents) {
		return nil, nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	switch {
	case request == nil:
		h.conditionsNotStored.Delete(key)
		return nil, h.removeObjectsUnlessUninstalling(ctx, key)
	case request.DeletionTimestamp != nil, request.Labels[fleet.ClusterManagementLabel] != "":
		return request, nil
	case h.written.IsStale(request) || h.writtenGrants.IsStale(request):
		return request, nil // the event of that write is on its way; the table at handler tells the two apart
	case request.Status.Granted:
		return h.maintain(ctx, request)
	}
	return h.process(ctx, request)
}

// findings are what one pass knows of a request: bind, decide and grant fill them in, in this order.
type findings struct {
	request      *fleet.ClusterRegistration // the latest version
	status       fleet.ClusterRegistrationStatus
	cluster      *fleet.Cluster // nil if it is not created yet, or not known
	newCluster   string         // the name of the Cluster to create, if there is none
	sameClientID []*fleet.ClusterRegistration
	token        *fleet.ClusterRegistrationToken // nil until it is found; decide refuses a request without one
	origin       registration.Origin
	answer       *corev1.Secret     // the Secret with the name of the answer, nil if there is none; it may belong to another request
	approval     *result.Transition // of condition Approved
}

// process decides about a request, carries the decision out, and writes it to the status.
func (h *handler) process(ctx context.Context, request *fleet.ClusterRegistration) (*fleet.ClusterRegistration, error) {
	unlock := h.locks.tryLock(request)
	if unlock == nil { // another request of this identity is being decided; the worker has other work meanwhile
		h.queue.EnqueueAfter(request.Namespace, request.Name, wait.Jitter(cacheDelay, 1))
		return request, nil
	}
	defer unlock()

	found := findings{request: request, status: *request.Status.DeepCopy()}
	out := h.advance(ctx, &found)
	latest, transition, changed, err := h.writeStatus(ctx, found.request, found.status, out)
	if err != nil {
		return request, errors.Join(err, out.Err)
	}
	if changed {
		h.recordDecision(latest, found, transition)
	}
	return latest, errors.Join(out.Err, h.deleteRefused(ctx, latest, out))
}

// advance runs the steps from a request to its credential. The first step that is not done ends the pass, and the next event begins a pass from the
// start. So each step accepts the objects of an earlier pass, and the facts at the time of the grant count.
func (h *handler) advance(ctx context.Context, found *findings) result.Result {
	out := h.bind(ctx, found)
	if out.IsDone() {
		out = h.decide(ctx, found)
	}
	if out.IsDone() {
		out = h.grant(ctx, found)
	}
	if !out.IsDone() {
		out = h.carryOut(ctx, found, out)
	}
	return out
}

// bind finds the Cluster with the clientID of the request, and makes it the owner of the request, so that both are deleted together. This
// includes requests that will be refused: left behind by a deleted Cluster, such a request would create the Cluster again.
func (h *handler) bind(ctx context.Context, found *findings) (out result.Result) {
	found.cluster, found.newCluster, out = h.findCluster(found.request)
	cluster := found.cluster
	if !out.IsDone() || cluster == nil {
		return out
	}
	h.createdClusters.Observed(index.Key(cluster.Namespace, cluster.Name))
	bound, err := h.bindToCluster(ctx, found.request, cluster)
	if err != nil {
		return failed(err)
	}
	found.request, found.status = bound, *bound.Status.DeepCopy() // it may be newer than the cache: a person's approval must stay
	if cluster.Labels[fleet.ClusterManagementLabel] != "" {
		return result.Wait(fleet.ReasonManagedElsewhere, fmt.Sprintf(
			"Cluster %s is assigned to another controller by its label %s", cluster.Name, fleet.ClusterManagementLabel))
	}
	return done
}

// decide returns Done if the request may be granted, and otherwise why it is refused or has to wait. It writes nothing to the API server.
func (h *handler) decide(ctx context.Context, found *findings) result.Result {
	request, cluster := found.request, found.cluster

	// An old request that is processed late, after an outage for example, must not replace the agent's current one.
	sameClientID, err := h.sameClientID(request)
	if err != nil {
		return failed(err)
	}
	found.sameClientID = sameClientID
	if newer := registration.NewerGranted(request, sameClientID); newer != nil {
		return result.Stalled(fleet.ReasonSuperseded, fmt.Sprintf("the agent registered again with ClusterRegistration %s", newer.Name))
	}

	// Find the token the request was made with, and prove the origin: compare the ServiceAccount of the token with the user who,
	// according to the API server, created the request.
	found.origin = registration.OriginOf(request, h.OriginPolicies())
	token, refusal, err := h.findToken(ctx, request, found.origin, clusterName(cluster, found.newCluster))
	if err != nil {
		return failed(err)
	}
	if token != nil {
		found.token, found.origin = token, found.origin.For(request.Namespace, asToken(token, h.bootstrapUsersOf(token)...))
	}
	setOriginProved(&found.status.Conditions, found.origin, h.Clock.Now())
	if refusal != nil {
		return refused(refusal).In(h.RecheckDelay())
	}

	// Judge with the facts about the identity.
	var hasAgent, proverRevoked, clusternetReentry bool
	var freeIn time.Duration // until an unread answer Secret no longer holds the identity; otherwise 0
	if cluster != nil {
		if h.otherMayBeGranted(request, sameClientID) {
			return result.Skip().In(cacheDelay)
		}
		if hasAgent, freeIn, err = h.hasAgentOrAnswer(ctx, request, cluster, token, found.origin, sameClientID); err != nil {
			return failed(err)
		}
		if proverRevoked, err = h.isProverRevoked(ctx, request, cluster, sameClientID); err != nil {
			return failed(err)
		}
		if clusternetReentry, err = h.isClusternetReentry(ctx, request, token, cluster, found.origin, sameClientID); err != nil {
			return failed(err)
		}
	}
	settings := h.Config.Get().Registration
	if settings.Unknown {
		return result.Wait(fleet.ReasonConfigInvalid, h.Config.Problem()).In(h.RecheckDelay())
	}
	if refusal := h.policiesRequired(settings); refusal != nil {
		return refused(refusal)
	}
	judgement := registration.Judge(registration.Case{
		Request: request, Token: token, Cluster: cluster, HasAgentOrAnswer: hasAgent, ProverRevoked: proverRevoked, Origin: found.origin,
		Ruling: h.policy.Load().Rule(policy.RuleInput{
			Request: request, Token: token, TokenAssumed: found.origin.AssumesToken(request), Cluster: cluster,
		}),
		Approval: settings.Approval, LongLived: settings.LongLivedIn(request.Namespace), RenewingRequest: renewingRequest(request, sameClientID),
		ClusternetReentry: clusternetReentry,
	})
	found.approval = setApproved(&found.status.Conditions, judgement.Approval, h.Clock.Now())
	if judgement.Refuse != nil {
		return refused(judgement.Refuse).In(freeIn)
	}
	if judgement.Wait != nil {
		return h.waitOrRefuse(request, token, waiting(judgement.Wait).WithEvent())
	}

	// Check that the answer Secret belongs to no other request. Its name follows from the request, so a copy of another agent's request would
	// lead to that agent's credential.
	if found.answer, err = h.cachedAnswer(request); err != nil {
		return failed(err)
	} else if found.answer != nil && !isFor(found.answer, request) {
		return h.answerTaken(found.answer)
	}

	// Limit the long-lived credentials that are issued to requests whose token is only assumed: such a request deletes no older one.
	isAssumed := found.origin.AssumesToken(request)
	if isAssumed && !registration.Renews(request) {
		if refusal := registration.TooManyAssumed(request, otherGranted(request, sameClientID)); refusal != nil {
			return refused(refusal)
		}
	}

	// Limit the requests whose agents never connect: the thief of a token could fill the hub with Clusters.
	if cluster == nil || backlog.IsUnconnected(cluster) {
		if out := h.limitUnconnected(request, token); !out.IsDone() {
			return out
		}
	}

	// A request whose token is only assumed is not counted as a use: it may have come with another token.
	if uses := registration.UsesOf(token); !isAssumed && uses.State(string(request.UID), request.Status.TokenUID) == registration.UseRefused {
		return refused(uses.UsedUp())
	}
	return done
}

// grant creates what the agent needs after decide has allowed its request: it has the use of the token counted, creates the Cluster and the
// rights, and issues the credential.
func (h *handler) grant(ctx context.Context, found *findings) result.Result {
	request, cluster, token, isAssumed := found.request, found.cluster, found.token, found.origin.AssumesToken(found.request)

	// Have the controller of tokens count the request as a use of its token. The write of that controller enqueues the request. If the token
	// has a limit, nothing is created before.
	use := registration.UsesOf(token).State(string(request.UID), request.Status.TokenUID)
	asks := !isAssumed && use == registration.UseUncounted
	waitForCount := result.Wait(fleet.ReasonCountingUse,
		fmt.Sprintf("waiting for ClusterRegistrationToken %s to count this use", token.Name)).In(result.MissedEvent)
	if asks {
		h.askForUse(request, token, clusterName(cluster, found.newCluster))
		if token.Spec.UsageLimit != nil {
			return waitForCount
		}
	}
	if !isAssumed && use == registration.UseCounted {
		found.status.TokenUID = string(token.UID)
	}

	// Create the Cluster. The controller of Clusters creates its namespace; that, or the status of the Cluster, enqueues the request.
	if cluster == nil {
		return h.createCluster(ctx, request, token, found.newCluster)
	}
	if !h.hasNamespace(request, cluster) {
		return waitingForNamespace(cluster.Name)
	}
	if asks {
		return waitForCount // a request is granted only after its use is counted
	}

	// Give the agent its ServiceAccount and rights, then the credential, and last the right to read it. The agent uses the credential as soon as it can
	// read it. Before the Secret exists, the right could open the Secret of a request of another workspace: see readerRights.
	readerNow, isReaderLast := token, found.answer == nil || isRefusal(found.answer)
	if isReaderLast {
		readerNow = nil
	}
	if out := h.ensureRights(ctx, request, cluster, readerNow); !out.IsDone() {
		return out
	}
	if out := h.ensureCredential(ctx, request, cluster, found.answer); !out.IsDone() {
		return out
	}
	if isReaderLast {
		if out := h.addReader(ctx, request, token); !out.IsDone() {
			return out
		}
	}

	// Delete the older requests of the agent. An agent that renews its credential reports the request whose credential it uses: its older
	// requests stay until it uses this credential, so that it still has a working one if the answer is lost. Other agents do not report the
	// request. A request whose token is only assumed may come from another agent, so it deletes none.
	var err error
	if registration.Renews(request) {
		err = h.deleteOlderOnceUsed(ctx, request, cluster, found.sameClientID)
	} else if !isAssumed {
		err = h.deleteOlder(ctx, request, found.sameClientID, "")
	}
	if err != nil {
		return failed(err)
	}

	// The message of condition Granted names the labels of the agent that a new Cluster would not get.
	found.status.Granted, found.status.ClusterName = true, cluster.Name
	allowed, notAllowed := registration.AllowedLabels(request.Spec.ClusterLabels, token.Spec, h.Config.Get().Registration.AllowsAnyLabel())
	_, dropped := registration.ValidLabels(allowed)
	return result.Done(fleet.ReasonGranted, registration.DroppedLabelsMessage(dropped, notAllowed))
}

// maintain repairs the objects of a granted request. The decision is not repeated: the token may have expired long ago.
func (h *handler) maintain(ctx context.Context, request *fleet.ClusterRegistration) (*fleet.ClusterRegistration, error) {
	if isFirstPass := h.writtenGrants.IsExpected(string(request.UID)); isFirstPass {
		// The cache has only just received the grant. It may lack what this hub has just created with the grant, and a repair would try to
		// create it again. Only a quarantine, which may also have enqueued the request, must not wait; the rights that the caches lack are
		// withdrawn later.
		h.writtenGrants.Observed(string(request.UID))
		h.queue.EnqueueAfter(request.Namespace, request.Name, h.RepairDelay())
		if cluster, err := h.clusters.Get(request.Namespace, request.Status.ClusterName); err != nil || !cluster.Spec.Quarantined {
			return request, nil
		}
	}
	out := h.repair(ctx, request)
	latest, _, _, err := h.writeStatus(ctx, request, request.Status, out)
	return latest, errors.Join(err, out.Err)
}

// repair stops at the first step that is not done.
func (h *handler) repair(ctx context.Context, request *fleet.ClusterRegistration) result.Result {
	cluster, err := h.clusterNamed(request.Namespace, request.Status.ClusterName)
	if err != nil {
		return failed(err)
	}
	if cluster == nil || cluster.DeletionTimestamp != nil {
		return result.Skip() // Kubernetes deletes the request with its Cluster
	}

	// A deleted ServiceAccount is not created again: the old credential would not work with the new account, and somebody may have
	// deleted it to lock the agent out.
	if revoked, err := h.isRevoked(ctx, request, cluster); err != nil {
		return failed(err)
	} else if revoked {
		return result.Stalled(fleet.ReasonCredentialRevoked, fmt.Sprintf(
			"ServiceAccount %s/%s was deleted; the agent has to register again", clusterNamespace(cluster), accountName(request)))
	}

	// In a namespace that the hub has not created, it gives no rights. It can only withdraw them.
	if !h.hasNamespace(request, cluster) && !cluster.Spec.Quarantined {
		return result.Skip()
	}

	// Repair the rights. If the token is gone, the right to read the credential goes too, and the request stays granted.
	token, _, err := h.findToken(ctx, request, registration.OriginOf(request, h.OriginPolicies()), cluster.Name)
	if err != nil {
		return failed(err)
	}
	if out := h.ensureRights(ctx, request, cluster, token); !out.IsDone() {
		return out
	}

	if registration.Renews(request) {
		if out := h.maintainCredential(ctx, request, cluster, token); !out.IsDone() {
			return out
		}
		sameClientID, err := h.sameClientID(request)
		if err == nil {
			err = h.deleteOlderOnceUsed(ctx, request, cluster, sameClientID)
		}
		if err != nil {
			return failed(err)
		}
	}
	return stillGranted(request)
}

// stillGranted keeps the message of condition Granted, which depends on the token and the configuration at the time of the grant.
func stillGranted(request *fleet.ClusterRegistration) result.Result {
	if c := fleetstatus.Condition(request.Status.Conditions, fleet.ConditionGranted); c.Status == corev1.ConditionTrue {
		return result.Done(fleet.ReasonGranted, c.Message)
	}
	_, dropped := registration.ValidLabels(request.Spec.ClusterLabels)
	return result.Done(fleet.ReasonGranted, registration.DroppedLabelsMessage(dropped, nil))
}

var done = result.Done("", "")

func refused(r *registration.Explanation) result.Result { return result.Stalled(r.Reason, r.Message) }

func waiting(r *registration.Explanation) result.Result { return result.Wait(r.Reason, r.Message) }

func failed(err error) result.Result { return result.Retry(fleet.ReasonError, err) }
