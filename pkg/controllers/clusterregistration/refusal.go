package clusterregistration

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

// revokeUngranted deletes the rights and the credential that an earlier pass created for a request that is now refused. They are created
// before the write that grants the request: if that write failed and the next pass refuses the request, its agent could still work. A later
// pass writes the refusal, when the caches no longer contain these objects.
func (h *handler) revokeUngranted(ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, out result.Result) result.Result {
	if !out.IsStalled() {
		return out
	}
	switch {
	case out.Reason == fleet.ReasonQuarantined: // withdrawRights leaves the ServiceAccount, which a release from quarantine needs
		return out
	case out.Reason == fleet.ReasonSuperseded: // the request is deleted with the first heartbeat of the newer one
		return out
	case out.Reason == fleet.ReasonClientIDInUse && !h.isGrantedToOther(request, cluster):
		return out
	case out.Reason != fleet.ReasonTokenNotFound && !isDecision(out.Reason):
		return out
	}
	key := index.Key(request.Namespace, request.Name)
	accounts, err := h.accountsOf(request)
	if err != nil {
		return failed(err)
	}
	if len(accounts) == 0 {
		if h.givenRights.IsExpected(string(request.UID)) {
			return result.Skip().In(cacheDelay) // the cache does not show them yet
		}
		return out
	}

	// The cache of a hub that has just started may be behind, and a granted request must keep its rights. An ordinary refusal does not
	// reach this code and costs no request.
	latest, err := h.FleetClient.ClusterRegistrations(request.Namespace).Get(ctx, request.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return result.Skip() // its removal deletes everything
	case err != nil:
		return failed(err)
	case !latest.Status.Granted:
		if err := h.remove(ctx, key); err != nil {
			return failed(err)
		}
		h.givenRights.Observed(string(request.UID))
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
// again. It does so only for agents that renew their credential: other agents would use the Secret as a credential. It writes nothing if the
// request has a ServiceAccount: revokeUngranted has decided to keep it, and the agent may be using it.
func (h *handler) reconcileRefusal(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, token *fleet.ClusterRegistrationToken, out result.Result,
) error {
	isRefused := out.IsStalled() && isDecision(out.Reason)
	if !registration.Renews(request) || !isRefused && !out.IsWait() {
		return nil
	}
	existing, err := h.cachedSecret(request)
	if err != nil {
		return err
	}
	if !isRefused {
		if isRefusal(existing) && isFor(existing, request) {
			return h.deleteSecret(ctx, existing)
		}
		return nil
	}

	accounts, err := h.accountsOf(request)
	if err != nil || len(accounts) > 0 || h.givenRights.IsExpected(string(request.UID)) {
		return err
	}

	// Without a known token, no agent could read the Secret. A Secret of another request stays.
	if token == nil {
		token, _, err = h.findToken(request, registration.OriginOf(request, h.OriginPolicies()), clusterName(cluster, ""))
	}
	refusal := h.refusalSecret(request, out)
	if err != nil || token == nil || existing != nil && (!isFor(existing, request) || reflect.DeepEqual(existing.Data, refusal.Data)) {
		return nil //nolint:nilerr // the pass reports the error in its result
	}
	err = h.sets.Ensure(ctx, ownedSet(request), request, h.readerRights(request, token)...)
	if foreign := new(desiredset.ForeignError); errors.As(err, &foreign) {
		return nil
	} else if err != nil {
		return fmt.Errorf("giving the agent the right to read why it is refused: %w", err)
	}
	secrets := h.Kubernetes.CoreV1().Secrets(refusal.Namespace)
	if existing == nil {
		_, err = secrets.Create(ctx, refusal, metav1.CreateOptions{})
	} else {
		refusal.ResourceVersion = existing.ResourceVersion
		_, err = secrets.Update(ctx, refusal, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsAlreadyExists(err) { // the next pass compares a Secret that the cache does not show yet
		return fmt.Errorf("writing Secret %s/%s, which tells the agent why it is refused: %w", refusal.Namespace, refusal.Name, err)
	}
	return nil
}

// isDecision reports whether the reason of a refusal is a decision by a rule or a person, not an error or a temporary state. The hub then
// deletes the objects of earlier passes and reports the refusal to the agent, which then polls less often.
func isDecision(reason string) bool {
	switch reason {
	case fleet.ReasonDenied, fleet.ReasonClientIDInUse, fleet.ReasonTokenUsedUp, fleet.ReasonClientIDNotAllowed,
		fleet.ReasonLongLivedRefused, fleet.ReasonQuarantined, fleet.ReasonTokenMismatch, fleet.ReasonSuperseded,
		fleet.ReasonClientIDEmpty, fleet.ReasonClientIDTooLong, fleet.ReasonClientIDAmbiguous, fleet.ReasonClusterNameTaken:
		return true
	}
	return false
}

func (h *handler) refusalSecret(request *fleet.ClusterRegistration, out result.Result) *corev1.Secret {
	return h.answerSecret(request, map[string][]byte{
		registration.RefusalReason:  []byte(out.Reason),
		registration.RefusalMessage: []byte(out.Message),
	})
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
	requests := map[string]*fleet.ClusterRegistration{request.Name: request}
	for _, r := range others {
		if r.DeletionTimestamp == nil && r.Name != request.Name {
			requests[r.Name] = r
		}
	}
	var candidates []registration.Refused
	for name, r := range requests {
		candidates = append(candidates, registration.Refused{Name: name, Created: r.CreationTimestamp.Time, Decided: r.Status.Approval != nil})
	}
	now := h.Clock.Now()
	for _, name := range registration.DeletableRefused(candidates, now) {
		r := requests[name]
		if registration.IsForClusternet(r, h.HubUser) && now.Sub(r.CreationTimestamp.Time) < registration.RefusedLifetime {
			if err := h.deleteClusternetRequest(ctx, r); err != nil {
				return err
			}
		}
		err := h.FleetClient.ClusterRegistrations(request.Namespace).Delete(ctx, name, writes.IfUID(r))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting the refused ClusterRegistration %s/%s: %w", request.Namespace, name, err)
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
