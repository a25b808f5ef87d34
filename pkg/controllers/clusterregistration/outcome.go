package clusterregistration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// reportAfter is the age from which the status of a request says what it waits for. Most waits end within milliseconds, in a burst of requests within seconds,
// and a write for each would cost as much as the registration. A wait for a person is reported at once.
const reportAfter = 10 * time.Second

// carryOut carries out a result by which a request is not granted: it takes back what earlier passes gave to the request, and tells the agent of a
// refusal. It returns the result to report, which is out unless something is left to do.
func (h *handler) carryOut(ctx context.Context, found *findings, out result.Result) result.Result {
	request, cluster := found.request, found.cluster
	revoke, tell := consequences(out)
	if revoke {
		// A later pass refuses the request, when the caches no longer contain what this one has revoked.
		if revoked := h.revoke(ctx, request, cluster, out.Reason); !revoked.IsDone() {
			return revoked
		}
	}

	// The Cluster was put into quarantine after an earlier pass had given the agent its rights.
	if cluster != nil && cluster.Spec.Quarantined && out.Reason != fleet.ReasonManagedElsewhere {
		if withdrawn := h.withdrawRights(ctx, request, cluster, found.token); !withdrawn.IsDone() {
			withdrawn.Err = errors.Join(withdrawn.Err, out.Err)
			return withdrawn
		}
	}

	// An earlier refusal may have given the right to read a Secret of this name, which now belongs to another request.
	var err error
	if found.answer != nil && !isFor(found.answer, request) {
		err = h.withdrawReader(ctx, request)
	}
	if registration.Renews(request) && (tell || out.IsWait()) { // other agents would use the Secret as a credential
		err = errors.Join(err, h.reconcileRefusal(ctx, found, tell, out))
	}
	if err != nil {
		out.Err = errors.Join(out.Err, err)
	}
	return out
}

// consequences returns the consequences of a refusal in addition to the status: whether the hub revokes what an earlier pass has given to the request, and
// whether it tells the agent, which then polls less often. A refusal because of an error or a temporary state has neither.
func consequences(out result.Result) (revoke, tell bool) {
	if !out.IsStalled() {
		return false, false
	}
	switch out.Reason {
	case fleet.ReasonQuarantined: // withdrawRights leaves the ServiceAccount, which the end of the quarantine needs
		return false, true
	case fleet.ReasonSuperseded: // the request is deleted with the first heartbeat of the newer one
		return false, true
	case fleet.ReasonTokenNotFound: // without a token, nobody may read the answer
		return true, false
	case fleet.ReasonDenied, fleet.ReasonClientIDInUse, fleet.ReasonTokenUsedUp, fleet.ReasonClientIDNotAllowed, fleet.ReasonLongLivedRefused,
		fleet.ReasonTokenMismatch, fleet.ReasonClientIDEmpty, fleet.ReasonClientIDTooLong, fleet.ReasonTooLarge, fleet.ReasonClientIDAmbiguous,
		fleet.ReasonClusterNameTaken:
		return true, true
	}
	return false, false
}

// revoke deletes the rights and the credential that an earlier pass created for a request that is now refused. They are created before the
// write that grants the request: if that write failed and the next pass refuses the request, its agent could still work. It returns Done if
// there is nothing to revoke.
func (h *handler) revoke(ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, reason string) result.Result {
	if reason == fleet.ReasonClientIDInUse && !h.isGrantedToOther(request, cluster) {
		return done
	}
	accounts, err := h.accountsOf(request)
	if err != nil {
		return failed(err)
	}
	if len(accounts) == 0 {
		if h.givenRights.IsExpected(string(request.UID)) {
			return result.Skip().In(cacheDelay) // the cache does not show them yet
		}
		return done
	}

	// The cache of a hub that has just started may be behind, and a granted request must keep its rights. An ordinary refusal does not
	// reach this code and costs no request.
	latest, err := h.FleetClient.ClusterRegistrations(request.Namespace).Get(ctx, request.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return result.Skip() // removeObjects is called when its deletion enqueues it
	case err != nil:
		return failed(err)
	case !latest.Status.Granted:
		if err := h.removeObjects(ctx, index.Key(request.Namespace, request.Name)); err != nil {
			return failed(err)
		}
		h.givenRights.Observed(string(request.UID))
		// The event of the ServiceAccount enqueues the request sooner. Another user may have created one that stays.
		return result.Skip().In(result.MissedEvent)
	}
	return result.Skip().In(cacheDelay)
}

// accountsOf returns the ServiceAccount that an earlier pass has created for the request. A user who may create the Namespace of a Cluster
// beforehand can mark another one there.
func (h *handler) accountsOf(request *fleet.ClusterRegistration) ([]*corev1.ServiceAccount, error) {
	accounts, err := index.AccountsByRequest.Find(h.accounts, index.Key(request.Namespace, request.Name))
	return slices.DeleteFunc(accounts, func(a *corev1.ServiceAccount) bool { return a.Name != accountName(request) }), err
}

// isGrantedToOther reports whether another request of the clientID is granted, and the agent does not use the credential of this one. If no
// other one is granted, the agent that sends heartbeats may be the one of this request, with its credential.
func (h *handler) isGrantedToOther(request *fleet.ClusterRegistration, cluster *fleet.Cluster) bool {
	if cluster == nil || isInUse(request, cluster) {
		return false
	}
	sameClientID, err := h.sameClientID(request)
	return err == nil && len(otherGranted(request, sameClientID)) > 0
}

// reconcileRefusal writes the reason of a refusal into the Secret that the agent polls, and deletes that Secret when the request waits
// again. It writes nothing if the request has a ServiceAccount: revoke has decided to keep it, and the agent may be using it.
func (h *handler) reconcileRefusal(ctx context.Context, found *findings, tell bool, out result.Result) error {
	request, token := found.request, found.token
	existing, err := h.cachedAnswer(request)
	if err != nil {
		return err
	}
	if !tell {
		if isRefusal(existing) && isFor(existing, request) {
			return h.deleteAnswer(ctx, request, existing)
		}
		return nil
	}

	accounts, err := h.accountsOf(request)
	if err != nil || len(accounts) > 0 || h.givenRights.IsExpected(string(request.UID)) {
		return err
	}

	// Without a known token, no agent could read the Secret. Some requests are refused before decide looks for their token. A Secret of
	// another request stays.
	if token == nil {
		token, _, err = h.findToken(ctx, request, registration.OriginOf(request, h.OriginPolicies()), clusterName(found.cluster, ""))
	}
	switch {
	case err != nil:
		return fmt.Errorf("looking for the token with which the agent can read why it is refused: %w", err)
	case token == nil:
		return nil
	case existing != nil && !isFor(existing, request):
		return h.sets.Ensure(ctx, ownedSet(request), request) // nobody may read it
	}
	refusal, secrets := h.refusalSecret(request, out), h.Kubernetes.CoreV1().Secrets(h.RegistrationNamespace())
	switch {
	case existing == nil:
		err = h.createAnswer(ctx, refusal)
		if apierrors.IsAlreadyExists(err) { // of an earlier pass, or of another request
			if existing, err = secrets.Get(ctx, refusal.Name, metav1.GetOptions{}); err == nil && !isFor(existing, request) {
				return h.withdrawReader(ctx, request)
			}
		}
	case !reflect.DeepEqual(existing.Data, refusal.Data):
		refusal.ResourceVersion = existing.ResourceVersion
		_, err = secrets.Update(ctx, refusal, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing Secret %s/%s, which tells the agent why it is refused: %w", refusal.Namespace, refusal.Name, err)
	}

	// The right to read the Secret comes last: see readerRights.
	err = h.sets.Ensure(ctx, ownedSet(request), request, h.readerRights(request, token)...)
	if foreign := new(desiredset.ForeignError); err != nil && !errors.As(err, &foreign) {
		return fmt.Errorf("giving the agent the right to read why it is refused: %w", err)
	}
	return nil
}

func (h *handler) refusalSecret(request *fleet.ClusterRegistration, out result.Result) *corev1.Secret {
	return h.answerSecret(request, map[string][]byte{
		registration.RefusalReason:  []byte(out.Reason),
		registration.RefusalMessage: []byte(out.Message),
	})
}

// writeStatus writes the status with condition Granted, records the event of its transition, and enqueues the request for the time
// that the result names. It does not write a wait that may end soon, or again a condition that the API server did not store.
func (h *handler) writeStatus(
	ctx context.Context, request *fleet.ClusterRegistration, status fleet.ClusterRegistrationStatus, out result.Result,
) (latest *fleet.ClusterRegistration, transition *result.Transition, changed bool, err error) {
	if out.IsWait() && !out.EventOnWait && !out.IsWrittenAtOnce && h.Clock.Since(request.CreationTimestamp.Time) < reportAfter {
		h.queue.EnqueueAfter(request.Namespace, request.Name, reportAfter)
		return request, nil, false, nil
	}
	key, decision := request.Namespace+"/"+request.Name, string(request.UID)+" "+out.Reason+": "+out.Message
	if unstored, _ := h.conditionsNotStored.Load(key); unstored == decision && reflect.DeepEqual(withoutConditions(request.Status), withoutConditions(status)) {
		if out.After > 0 {
			h.queue.EnqueueAfter(request.Namespace, request.Name, out.After)
		}
		return request, nil, false, nil // the event was recorded; another write would not store the condition either
	}
	after := request.DeepCopy()
	after.Status = *status.DeepCopy()
	transition = result.Set(&after.Status.Conditions, fleet.ConditionGranted, out, h.Clock.Now())
	granting := after.Status.Granted && !request.Status.Granted
	isEarlierUnknown := h.grantAttempts.IsStale(request) // a write on this version may have granted the request
	if granting {
		h.grantAttempts.Attempted(request)
	}
	latest, changed, err = writes.Status(ctx, h.FleetClient.ClusterRegistrations(request.Namespace), request, after)
	if err != nil {
		// Nothing is stored if, for example, a webhook refuses the write. The other requests of the identity would wait for a grant that never comes.
		isRefused := apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
		if granting && isRefused && !isEarlierUnknown {
			h.grantAttempts.Observed(string(request.UID))
		}
		return request, nil, false, err
	}
	if out.After > 0 {
		h.queue.EnqueueAfter(latest.Namespace, latest.Name, out.After)
	}
	if !changed {
		return latest, nil, false, nil
	}
	if fleetstatus.Condition(latest.Status.Conditions, fleet.ConditionGranted).Status == "" {
		h.conditionsNotStored.Store(key, decision)
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

// recordDecision counts refusals and waits because of a limit. It records events for an approval, for the grant and, on the Cluster, for a refused
// request for its identity. writeStatus records the events for a refusal and for its end, which are transitions of condition Granted.
func (h *handler) recordDecision(request *fleet.ClusterRegistration, found findings, transition *result.Transition) {
	if found.approval != nil && found.approval.After == corev1.ConditionTrue { // a denial is a transition of condition Granted
		h.Events.Event(request, corev1.EventTypeNormal, found.approval.Reason, found.approval.Message)
	}
	if transition == nil {
		return
	}
	if transition.After == corev1.ConditionFalse && transition.Reason != fleet.ReasonError { // which is no refusal: the decision is repeated
		h.Metrics.Refused(transition.Reason)
	}
	if transition.Reason == fleet.ReasonTooManyWaiting || transition.Reason == fleet.ReasonTooManyUnconnected {
		h.Metrics.OverLimit.WithLabelValues(transition.Reason).Inc()
	}
	if found.cluster == nil {
		return
	}
	if transition.After == corev1.ConditionTrue && transition.Before != corev1.ConditionFalse {
		h.Events.Eventf(request, corev1.EventTypeNormal, transition.Reason, "the agent may fetch its credential for Cluster %s", found.cluster.Name)
	}
	if transition.Reason == fleet.ReasonClientIDInUse || transition.Reason == fleet.ReasonTokenMismatch {
		creator := cmp.Or(found.origin.Creator, "an unknown user")
		h.Events.Eventf(found.cluster, corev1.EventTypeWarning, transition.Reason,
			"ClusterRegistration %s, created by %s, asked for the identity of this Cluster and was refused", request.Name, creator)
	}
}

// deleteRefused deletes refused requests after their lifetime, and the oldest ones of a creator with too many: the holder of a
// stolen token could fill the hub with them. It runs after the decision on the request was repeated.
func (h *handler) deleteRefused(ctx context.Context, request *fleet.ClusterRegistration, out result.Result) error {
	keys, _ := h.creatorOfRefused(request)
	if !out.IsStalled() || len(keys) == 0 {
		return nil
	}
	others, err := h.requests.GetByIndex(refusedByCreator, keys[0])
	if err != nil {
		return err
	}
	candidates := []*fleet.ClusterRegistration{request}
	for _, r := range others {
		if r.DeletionTimestamp == nil && r.Name != request.Name {
			candidates = append(candidates, r)
		}
	}
	var deletable []*fleet.ClusterRegistration
	_, now, err := h.HasPassedOnServer(ctx, func(now time.Time) bool {
		deletable = registration.DeletableRefused(candidates, now)
		return len(deletable) > 0
	})
	if err != nil {
		return err
	}
	for _, r := range deletable {
		if registration.IsForClusternet(r, h.HubUser) && now.Sub(r.CreationTimestamp.Time) < registration.RefusedLifetime {
			if err := h.deleteClusternetRequest(ctx, r); err != nil {
				return err
			}
		}
		err := h.FleetClient.ClusterRegistrations(request.Namespace).Delete(ctx, r.Name, writes.IfUID(r))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting the refused ClusterRegistration %s/%s: %w", request.Namespace, r.Name, err)
		}
	}
	if left := request.CreationTimestamp.Add(registration.RefusedLifetime).Sub(now); left > 0 {
		h.queue.EnqueueAfter(request.Namespace, request.Name, left)
	}
	return nil
}

// deleteClusternetRequest deletes the request of a Clusternet agent for which the hub created a ClusterRegistration. Otherwise the hub would
// create the ClusterRegistration again, as the newest one, and delete the next oldest, without end.
func (h *handler) deleteClusternetRequest(ctx context.Context, r *fleet.ClusterRegistration) error {
	name := v1beta1.RequestPrefix + r.Spec.ClientID
	err := h.ClusternetClient.ClusterRegistrationRequests().Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(r.Spec.ClientRandom)})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting the refused ClusterRegistrationRequest %s: %w", name, err)
	}
	return nil
}

// refusedByCreator is the index of refused requests by the user who created them or, where the API server does not record creators, by the
// token that they name.
const refusedByCreator = "muster.fleet.cattle.io/refused-by-creator"

func (h *handler) creatorOfRefused(request *fleet.ClusterRegistration) ([]string, error) {
	if _, isRefused := registration.RefusalOf(request); !isRefused {
		return nil, nil
	}
	creator := registration.CreatorOf(request, h.HubUser)
	if token := request.Labels[fleet.RegistrationTokenLabel]; creator == "" && token != "" {
		creator = "token " + token
	}
	return []string{index.Key(request.Namespace, creator)}, nil
}
