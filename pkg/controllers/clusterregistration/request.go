package clusterregistration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/enqueue"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/policy"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// reportAfter is the age from which the status of a request says what it waits for. Most waits end within milliseconds, in a
	// storm within seconds, and a write for each would cost as much as the registration. A wait for a person is reported at once.
	reportAfter = 10 * time.Second

	// cacheDelay is the time within which the cache normally contains the writes of the hub.
	cacheDelay = 50 * time.Millisecond
)

// onChange decides about a request, or maintains what it was granted. The queue of requests also has the keys of workspaces in which tokens
// have changed.
func (h *handler) onChange(key string, request *fleet.ClusterRegistration) (*fleet.ClusterRegistration, error) {
	if h.changedTokens.HandleKey(key, h.enqueueByToken) {
		return nil, nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	switch {
	case request == nil:
		h.unstoredConditions.Delete(key)
		return nil, h.removeUnlessUninstalling(ctx, key)
	case request.DeletionTimestamp != nil, request.Labels[fleet.ClusterManagementLabel] != "":
		return request, nil
	case h.written.IsStale(request) || h.writtenGrants.IsStale(request):
		return request, nil // the event of that write is on its way
	case request.Status.Granted:
		return h.maintain(ctx, request)
	}
	return h.answer(ctx, request)
}

// answer grants a request, refuses it, or lets it wait, and writes that into its status.
func (h *handler) answer(ctx context.Context, request *fleet.ClusterRegistration) (*fleet.ClusterRegistration, error) {
	unlock := h.locks.tryLock(request)
	if unlock == nil { // another request of this identity is being decided; the worker has other work meanwhile
		h.queue.EnqueueAfter(request.Namespace, request.Name, wait.Jitter(cacheDelay, 1))
		return request, nil
	}
	defer unlock()

	found := findings{request: request, status: *request.Status.DeepCopy()}
	out := h.evaluate(ctx, &found)
	out = h.revokeUngranted(ctx, found.request, found.cluster, out)
	if err := h.reconcileRefusal(ctx, found.request, found.cluster, found.token, out); err != nil {
		out.Err = errors.Join(out.Err, err)
	}

	latest, transition, changed, err := h.writeStatus(ctx, found.request, found.status, out)
	if err != nil {
		return request, errors.Join(err, out.Err)
	}
	if changed {
		recordDecision(h.Events, latest, found, transition)
		if transition != nil && transition.After == corev1.ConditionFalse {
			h.Metrics.Refused(transition.Reason)
		}
		if transition != nil && (transition.Reason == fleet.ReasonTooManyWaiting || transition.Reason == fleet.ReasonTooManyUnconnected) {
			h.Metrics.OverLimit.WithLabelValues(transition.Reason).Inc()
		}
	}
	return latest, errors.Join(out.Err, h.deleteRefused(ctx, latest, out))
}

// recordDecision records events for an approval, for the grant and, on the Cluster, for a refused request for its identity. writeStatus records
// the events for a refusal and for its end, which are transitions of condition Granted.
func recordDecision(events record.EventRecorder, request *fleet.ClusterRegistration, found findings, transition *result.Transition) {
	if found.approval != nil && found.approval.After == corev1.ConditionTrue { // a denial is a transition of condition Granted
		events.Event(request, corev1.EventTypeNormal, found.approval.Reason, found.approval.Message)
	}
	if found.cluster == nil || transition == nil {
		return
	}
	if transition.After == corev1.ConditionTrue && transition.Before != corev1.ConditionFalse {
		events.Eventf(request, corev1.EventTypeNormal, transition.Reason, "the agent may fetch its credential for Cluster %s", found.cluster.Name)
	}
	if transition.Reason == fleet.ReasonClientIDInUse || transition.Reason == fleet.ReasonTokenMismatch {
		creator := cmp.Or(found.origin.Creator, "an unknown user")
		events.Eventf(found.cluster, corev1.EventTypeWarning, transition.Reason,
			"ClusterRegistration %s, created by %s, asked for the identity of this Cluster and was refused", request.Name, creator)
	}
}

// findings are the objects and conditions that evaluate finds for a request, beside its result.
type findings struct {
	request  *fleet.ClusterRegistration // the latest version
	status   fleet.ClusterRegistrationStatus
	cluster  *fleet.Cluster                  // nil if it is not created yet, or not known
	token    *fleet.ClusterRegistrationToken // nil if it is not known
	origin   registration.Origin
	approval *result.Transition // of condition Approved
}

// evaluate takes a request from its creation to its credential. It stops at the first step that is not done, and starts again with the
// next event, so each step accepts the objects of an earlier pass. Nothing is created before registration.Judge has decided.
func (h *handler) evaluate(ctx context.Context, found *findings) result.Result {
	request := found.request

	// Find the Cluster with this clientID. If there is none, newCluster is the name of the one to create.
	cluster, newCluster, out := h.findCluster(request)
	if !out.IsDone() {
		return out
	}
	found.cluster = cluster

	// Make the Cluster the owner of the request, so that both are deleted together. This includes requests that will be refused:
	// left behind by a deleted Cluster, such a request would create the Cluster again.
	if cluster != nil {
		h.createdClusters.Observed(index.Key(cluster.Namespace, cluster.Name))
		bound, err := h.bindToCluster(ctx, request, cluster)
		if err != nil {
			return failed(err)
		}
		request = bound
		found.request, found.status = bound, *bound.Status.DeepCopy() // it may be newer than the cache: a person's approval must stay
		if cluster.Labels[fleet.ClusterManagementLabel] != "" {
			return result.Wait(fleet.ReasonManagedElsewhere, fmt.Sprintf(
				"Cluster %s is assigned to another controller by its label %s", cluster.Name, fleet.ClusterManagementLabel))
		}
	}

	// An old request that is processed late, after an outage for example, must not replace the agent's current one.
	sameClientID, err := h.sameClientID(request)
	if err != nil {
		return failed(err)
	}
	if newer := registration.NewerGranted(agentRequest(request), agentRequests(sameClientID)); newer != "" {
		return result.Stalled(fleet.ReasonSuperseded, fmt.Sprintf("the agent registered again with ClusterRegistration %s", newer))
	}

	// Find the token the request was made with, and prove the origin: compare the ServiceAccount of the token with the user who,
	// according to the API server, created the request.
	found.origin = registration.OriginOf(request, h.OriginPolicies())
	token, refusal, err := h.findToken(request, found.origin, clusterName(cluster, newCluster))
	if err != nil {
		return failed(err)
	}
	if token != nil {
		found.token, found.origin = token, found.origin.For(request.Namespace, asToken(token, h.usersOf(token)...))
	}
	setOriginProved(&found.status.Conditions, found.origin, h.Clock.Now())
	if refusal != nil {
		return refused(refusal).In(h.RecheckDelay())
	}

	// If the Cluster was put into quarantine after an earlier pass had given the agent its rights, withdraw them before refusing.
	if cluster != nil && cluster.Spec.Quarantined {
		if out := h.withdrawRights(ctx, request, cluster, token); !out.IsDone() {
			return out
		}
	}

	// Judge. This is repeated in each pass until the request is granted: the facts at the time of the grant count.
	var held, proverRevoked, clusternetReentry bool
	var freeIn time.Duration
	if cluster != nil {
		if h.otherMayBeGranted(request, sameClientID) {
			return result.Skip().In(cacheDelay)
		}
		if held, freeIn, err = h.isHeld(ctx, request, cluster, token, found.origin, sameClientID); err != nil {
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
		Request: request, Token: token, Cluster: cluster, HeldByAgent: held, ProverRevoked: proverRevoked, Origin: found.origin,
		Ruling: h.policy.Load().Rule(policy.RuleInput{
			Request: request, Token: token, TokenAssumed: found.origin.AssumesToken(request), Cluster: cluster,
		}),
		Approval: settings.Approval, LongLived: settings.LongLivedIn(request.Namespace), RenewedBy: renewedBy(request, sameClientID),
		ClusternetReentry: clusternetReentry,
	})
	found.approval = setApproved(&found.status.Conditions, judgement.Approval, h.Clock.Now())
	if judgement.Refuse != nil {
		return refused(judgement.Refuse).In(freeIn)
	}
	if judgement.Wait != nil {
		return h.waitOrRefuse(request, token, waiting(judgement.Wait).WithEvent())
	}
	return h.grant(ctx, found, newCluster, sameClientID)
}

// grant gives the agent what registration.Judge has allowed: it counts the use of the token, creates the Cluster and the rights, and issues the
// credential. It may still refuse the request, for example if the token is used up.
func (h *handler) grant(ctx context.Context, found *findings, newCluster string, sameClientID []*fleet.ClusterRegistration) result.Result {
	request, cluster, token, isAssumed := found.request, found.cluster, found.token, found.origin.AssumesToken(found.request)

	// Check that the answer Secret belongs to no other request, before a ServiceAccount gets the right to read it. Its name follows
	// from the request, so a copy of another agent's request would lead to that agent's credential.
	if existing, err := h.cachedSecret(request); err != nil {
		return failed(err)
	} else if existing != nil && !isFor(existing, request) {
		return h.secretTaken(existing)
	}

	// Limit the requests whose agents never connect: the thief of a token could fill the hub with Clusters.
	if cluster == nil || backlog.IsUnconnected(cluster) {
		if out := h.limitUnconnected(request, token); !out.IsDone() {
			return out
		}
	}

	// Have the controller of tokens count the request as a use of its token. The write of that controller enqueues the request. If the token
	// has a limit, nothing is created before. An assumed token counts nothing: the request may have come with another token.
	uses := registration.UsesOf(token)
	use := uses.State(string(request.UID), request.Status.TokenUID)
	countingUse := result.Wait(fleet.ReasonCountingUse,
		fmt.Sprintf("waiting for ClusterRegistrationToken %s to count this use", token.Name)).In(expectations.Timeout)
	switch {
	case isAssumed:
	case use == registration.UseRefused:
		return refused(uses.UsedUp())
	case use == registration.UseCounted:
		found.status.TokenUID = string(token.UID)
	case use == registration.UseUncounted:
		h.askForUse(request, token, clusterName(cluster, newCluster))
		if token.Spec.UsageLimit != nil {
			return countingUse
		}
	}

	// Create the Cluster. The controller of Clusters creates its namespace; that, or the status of the Cluster, enqueues the request.
	if cluster == nil {
		return h.createCluster(ctx, request, token, newCluster)
	}
	if !h.hasNamespace(request, cluster) {
		return waitingForNamespace(cluster.Name)
	}
	if !isAssumed && use == registration.UseUncounted {
		return countingUse // a request is granted only after its use is counted
	}

	// Give the agent its ServiceAccount and rights, then the credential: the agent uses it as soon as it can read it.
	if out := h.ensureRights(ctx, request, cluster, token); !out.IsDone() {
		return out
	}
	if out := h.ensureCredential(ctx, request, cluster); !out.IsDone() {
		if out.Reason == fleet.ReasonNameConflict { // the Secret of another request appeared after the check: nobody may read it
			if withdrawn := h.ensureRights(ctx, request, cluster, nil); !withdrawn.IsDone() { // without a token it deletes the right to read it
				return withdrawn
			}
		}
		return out
	}

	// Delete the older requests of the agent. An agent that renews its credential reports the request whose credential it uses: its older
	// requests stay until it uses this credential, so that it still has a working one if the answer is lost. Other agents do not report the
	// request. A request whose token is only assumed may come from another agent, so it deletes none.
	var err error
	if registration.Renews(request) {
		err = h.supersedeOnceUsed(ctx, request, cluster, sameClientID)
	} else if !isAssumed {
		err = h.supersede(ctx, request, sameClientID, "")
	}
	if err != nil {
		return failed(err)
	}

	// The message of condition Granted names the labels of the agent that a new Cluster would not get.
	found.status.Granted, found.status.ClusterName = true, cluster.Name
	allowed, notAllowed := registration.AllowLabels(request.Spec.ClusterLabels, token.Spec, h.Config.Get().Registration.AcceptsAgentLabels())
	_, dropped := registration.AcceptLabels(allowed)
	return result.Done(fleet.ReasonGranted, registration.DroppedLabelsMessage(dropped, notAllowed))
}

// maintain repairs the objects of a granted request. The decision is not repeated: the token may have expired long ago.
func (h *handler) maintain(ctx context.Context, request *fleet.ClusterRegistration) (*fleet.ClusterRegistration, error) {
	if isFirstPass := h.writtenGrants.IsExpected(string(request.UID)); isFirstPass {
		// The caches may lack what this hub has just created with the grant, and a repair would try to create it again. Only a
		// quarantine, which may also have enqueued the request, must not wait.
		h.writtenGrants.Observed(string(request.UID))
		if cluster, err := h.clusters.Get(request.Namespace, request.Status.ClusterName); err != nil || !cluster.Spec.Quarantined {
			h.queue.EnqueueAfter(request.Namespace, request.Name, enqueue.RepairDelay)
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
	token, _, err := h.findToken(request, registration.OriginOf(request, h.OriginPolicies()), cluster.Name)
	if err != nil {
		return failed(err)
	}
	if out := h.ensureRights(ctx, request, cluster, token); !out.IsDone() {
		return out
	}

	if registration.Renews(request) {
		if out := h.maintainCredential(ctx, request, cluster); !out.IsDone() {
			return out
		}
		sameClientID, err := h.sameClientID(request)
		if err == nil {
			err = h.supersedeOnceUsed(ctx, request, cluster, sameClientID)
		}
		if err != nil {
			return failed(err)
		}
	}
	return stillGranted(request)
}

// writeStatus writes the status with condition Granted, records the event of its transition, and enqueues the request for the time
// that the result names.
func (h *handler) writeStatus(
	ctx context.Context, request *fleet.ClusterRegistration, status fleet.ClusterRegistrationStatus, out result.Result,
) (latest *fleet.ClusterRegistration, transition *result.Transition, changed bool, err error) {
	if out.IsWait() && !out.EventOnWait && !out.Immediate && h.Clock.Since(request.CreationTimestamp.Time) < reportAfter {
		h.queue.EnqueueAfter(request.Namespace, request.Name, reportAfter)
		return request, nil, false, nil
	}
	key, decision := request.Namespace+"/"+request.Name, string(request.UID)+" "+out.Reason+": "+out.Message
	if unstored, _ := h.unstoredConditions.Load(key); unstored == decision && reflect.DeepEqual(withoutConditions(request.Status), withoutConditions(status)) {
		if out.After > 0 {
			h.queue.EnqueueAfter(request.Namespace, request.Name, out.After)
		}
		return request, nil, false, nil // the event was recorded; another write would not store the condition either, see unstoredConditions
	}
	after := request.DeepCopy()
	after.Status = *status.DeepCopy()
	transition = result.Set(&after.Status.Conditions, fleet.ConditionGranted, out, h.Clock.Now())
	granting := after.Status.Granted && !request.Status.Granted
	if granting {
		h.grantAttempts.Attempted(request)
	}
	latest, changed, err = writes.Status(ctx, h.FleetClient.ClusterRegistrations(request.Namespace), request, after)
	if err != nil {
		return request, nil, false, err
	}
	if out.After > 0 {
		h.queue.EnqueueAfter(latest.Namespace, latest.Name, out.After)
	}
	if !changed {
		return latest, nil, false, nil
	}
	if fleetstatus.Condition(latest.Status.Conditions, fleet.ConditionGranted).Status == "" {
		h.unstoredConditions.Store(key, decision)
	}
	h.written.Wrote(latest)
	if granting {
		h.writtenGrants.Wrote(latest)
		h.Metrics.Granted(h.Clock.Since(latest.CreationTimestamp.Time))
	}
	transition.Record(h.Events, latest)
	return latest, transition, true, nil
}

// withoutConditions returns the part of a status that the API server stores if the definition of the kind has no conditions.
func withoutConditions(status fleet.ClusterRegistrationStatus) fleet.ClusterRegistrationStatus {
	status.Conditions = nil
	return status
}

// stillGranted keeps the message of condition Granted, which depends on the token and the configuration at the time of the grant.
func stillGranted(request *fleet.ClusterRegistration) result.Result {
	if c := fleetstatus.Condition(request.Status.Conditions, fleet.ConditionGranted); c.Status == corev1.ConditionTrue {
		return result.Done(fleet.ReasonGranted, c.Message)
	}
	_, dropped := registration.AcceptLabels(request.Spec.ClusterLabels)
	return result.Done(fleet.ReasonGranted, registration.DroppedLabelsMessage(dropped, nil))
}

var done = result.Done("", "")

func refused(r *registration.Explanation) result.Result { return result.Stalled(r.Reason, r.Message) }

func waiting(r *registration.Explanation) result.Result { return result.Wait(r.Reason, r.Message) }

func failed(err error) result.Result { return result.Retry(fleet.ReasonError, err) }
