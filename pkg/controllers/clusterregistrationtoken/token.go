package clusterregistrationtoken

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corecontrollers "github.com/rancher/wrangler/v3/pkg/generated/controllers/core/v1"
	"github.com/rancher/wrangler/v3/pkg/kv"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/clusternet"
	"github.com/muster-fleet/muster/pkg/controllers/internal/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/credentialstatus"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

type handler struct {
	*app.Context
	queue          fleetcontrollers.ClusterRegistrationTokenController
	tokens         fleetcontrollers.ClusterRegistrationTokenCache
	accounts       corecontrollers.ServiceAccountCache
	secrets        corecontrollers.SecretCache
	requests       fleetcontrollers.ClusterRegistrationCache
	sets           desiredset.Sets
	written        expectations.Expectations // versions of tokens
	createdSecrets expectations.Expectations // UIDs of values Secrets
	rendered       valuesCache
}

// onChange takes a token through its life: its ServiceAccount and rights, the Secret with the chart values, the count of its uses, and
// its deletion when it expires. It writes the status once.
func (h *handler) onChange(key string, token *fleet.ClusterRegistrationToken) (*fleet.ClusterRegistrationToken, error) {
	if token == nil {
		namespace, name := kv.RSplit(key, "/")
		deleted := types.NamespacedName{Namespace: namespace, Name: name}
		h.TokenUsage.Forget(deleted)
		h.rendered.forget(deleted)
		if h.Clusternet == nil {
			return nil, nil // Kubernetes deletes everything with the token
		}
		ctx, cancel := h.Passes.Context()
		defer cancel()
		return nil, h.sets.Remove(ctx, registration.OwnedSetID(setID, namespace, name), key, tokenKind)
	}
	if token.DeletionTimestamp != nil || h.written.IsStale(token) {
		return token, nil
	}
	ctx, cancel := h.Passes.Context()
	defer cancel()
	client := h.FleetClient.ClusterRegistrationTokens(token.Namespace)

	// Delete an expired token. Kubernetes then deletes its ServiceAccount by owner reference, which invalidates every bearer token that
	// was issued. An error is retried: until the deletion, the bearer tokens may still work. The clock of the API server counts, by which the
	// token was created. If the hub's clock is behind, the bearer token expires before the deletion.
	isExpired, now, err := h.isExpired(ctx, token)
	if err != nil {
		return token, err
	}
	if isExpired {
		err := client.Delete(ctx, token.Name, writes.IfUID(token))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return token, fmt.Errorf("deleting the expired ClusterRegistrationToken %s/%s: %w", token.Namespace, token.Name, err)
		}
		return token, nil
	}

	// Create the objects of the token, count its uses, and write both into the status.
	var expires *metav1.Time // nil if the token does not expire
	if end, limited := registration.Expires(token); limited {
		expires = &metav1.Time{Time: end}
	}
	out := h.ensureObjects(ctx, token, expires)
	after := token.DeepCopy()
	after.Status.Expires = expires
	switch {
	case out.IsDone():
		after.Status.SecretName = token.Name
	case out.IsStalled(): // a wait or an error deletes nothing
		after.Status.SecretName = ""
	}
	counted, countErr := h.countUses(ctx, after)
	h.setPoliciesInForce(&after.Status.Conditions)
	h.setLabelsLimited(after)
	limited, limitErr := h.setWithinLimits(after)
	refusal, refusalErr := h.setRequestsAccepted(after)
	transition := result.Set(&after.Status.Conditions, fleet.ConditionReady, out, h.Clock.Now())
	if len(after.Status.Conditions) > len(token.Status.Conditions) {
		fleetstatus.OrderConditions(&after.Status.Conditions, fleet.ConditionReady, fleet.ConditionRequestsAccepted,
			fleet.ConditionWithinLimits, fleet.ConditionPoliciesInForce)
	}
	latest, changed := token, false
	if !isUnusedImportToken(token, after) {
		var err error
		if latest, changed, err = writes.Status(ctx, client, token, after); err != nil {
			return token, errors.Join(err, out.Err, countErr, limitErr, refusalErr)
		}
	}
	h.TokenUsage.Done(keyOf(token), counted.answered)
	if changed {
		h.written.Wrote(latest)
		transition.Record(h.Events, latest)
		limited.Record(h.Events, latest)
		refusal.Record(h.Events, latest)
	}

	// Enqueue the token for the next deadline.
	next := result.Earliest(out.After, counted.next)
	if fleetstatus.IsFalse(latest.Status.Conditions, fleet.ConditionWithinLimits) {
		next = result.Earliest(next, h.RecheckDelay())
	}
	if expires != nil {
		next = result.Earliest(next, max(expires.Sub(now), time.Millisecond))
	}
	if next > 0 {
		h.queue.EnqueueAfter(token.Namespace, token.Name, next)
	}
	return latest, errors.Join(out.Err, countErr, limitErr, refusalErr)
}

// isExpired reports whether a token has expired by the clock of the API server. now is the time that it has compared.
func (h *handler) isExpired(ctx context.Context, token *fleet.ClusterRegistrationToken) (expired bool, now time.Time, err error) {
	return h.HasPassedOnServer(ctx, func(now time.Time) bool { return registration.Expired(token, now) })
}

// isUnusedImportToken reports whether the token is ready for an import and has no other status to report. The import finds the Secret by
// its name, so the status is written with the first use: for each of hundreds of imports, a write of its own would delay them all.
func isUnusedImportToken(before, after *fleet.ClusterRegistrationToken) bool {
	conditions := after.Status.Conditions
	return registration.IsImportToken(after) && len(before.Status.Conditions) == 0 && after.Status.LastUsed == nil &&
		len(conditions) == 1 && conditions[0].Reason == fleet.ReasonTokenReady
}

// ensureObjects creates and corrects the rights of the token and the Secret with the chart values. A token is refused, and its rights are
// deleted, if its spec cannot be decoded, or if it has no TTL and the hub requires one.
func (h *handler) ensureObjects(ctx context.Context, token *fleet.ClusterRegistrationToken, expires *metav1.Time) result.Result {
	set, objects := registration.OwnedSetID(setID, token.Namespace, token.Name), rights(token)
	if h.Clusternet != nil {
		objects = append(objects, clusternet.MayCreateRequests(token.Namespace, accountOf(token).Name, h.Config.Get().Clusternet.UsersOf(token.Namespace, token.Name)...))
	}
	var refusal *result.Result
	switch {
	case token.Excess.Limit > 0 && token.Undecodable != "": // its rights stay: agents may have its credential already
		return result.Stalled(fleet.ReasonTokenInvalid, registration.TooLarge(token.Excess, "")+"; until then this token registers no agent")
	case token.Undecodable != "":
		refusal = new(result.Stalled(fleet.ReasonTokenInvalid, fmt.Sprintf(
			"%s cannot be decoded, so this token grants nothing; correct it (a ttl is a Go duration such as 240h or 30m; it is not negative, and units d and w are not known)",
			token.Undecodable)))
	case h.ttlRequired(h.Config.Get()) && expires == nil:
		refusal = new(result.Stalled(fleet.ReasonTTLRequired, "spec.ttl is missing and this hub requires one; create a token with a ttl such as 24h"))
	}
	if refusal != nil {
		objects = nil
	}
	err := h.sets.Ensure(ctx, set, token, objects...)
	var foreign *desiredset.ForeignError
	switch {
	case errors.As(err, &foreign):
		return result.Stalled(fleet.ReasonNameConflict, foreign.Error()).In(h.RecheckDelay())
	case err != nil:
		return result.Retry(fleet.ReasonError, err)
	case refusal != nil:
		return *refusal
	}
	return h.ensureValues(ctx, token, expires)
}

// ttlRequired reports whether the options of the process or the configuration require a TTL.
func (h *handler) ttlRequired(hub config.Hub) bool {
	return h.TokenTTLRequired || hub.Registration.RequireTokenTTL
}

func accountOf(token *fleet.ClusterRegistrationToken) credential.Account {
	return credential.Account{
		Namespace: token.Namespace,
		Name:      registration.TokenServiceAccount(token.Name, string(token.UID)),
	}
}

// rights let the holder of the token create ClusterRegistrations, and nothing else. The right to read an answer Secret is created with each granted
// request, and with each refused one whose agent is told the reason.
func rights(token *fleet.ClusterRegistrationToken) []runtime.Object {
	account, group := accountOf(token).Name, []string{fleet.SchemeGroupVersion.Group}
	named := func(name string) metav1.ObjectMeta { return desiredset.Managed(token.Namespace, name) }
	return []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: named(account)},
		&rbacv1.Role{
			ObjectMeta: named(registration.TokenRoleName(account)),
			Rules: []rbacv1.PolicyRule{
				{Verbs: []string{"create"}, APIGroups: group, Resources: []string{"clusterregistrations"}},
				// Not a verb of the API: policy fleet-registration-token asks about it, with the name that a request has in its label.
				{
					Verbs: []string{"register"}, APIGroups: group, Resources: []string{"clusterregistrationtokens"},
					ResourceNames: []string{registration.LabelValue(token.Name)},
				},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: named(registration.TokenRoleBindingName(account)),
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: token.Namespace, Name: account}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: registration.TokenRoleName(account)},
		},
	}
}

// setProblem sets a condition that a token has only after it was False once. An empty reason means that there is no problem.
func (h *handler) setProblem(conditions *fleetstatus.Conditions, conditionType, reason, message, reasonWithout string) *result.Transition {
	switch {
	case reason != "":
		return result.Set(conditions, conditionType, result.Stalled(reason, message), h.Clock.Now())
	case fleetstatus.Condition(*conditions, conditionType).Status != "":
		return result.Set(conditions, conditionType, result.Done(reasonWithout, ""), h.Clock.Now())
	}
	return nil
}

// setPoliciesInForce causes no event: the log of the hub and a metric report the policies once, not once for each token.
func (h *handler) setPoliciesInForce(conditions *fleetstatus.Conditions) {
	if h.Admission != nil {
		policies := h.Admission.State()
		h.setProblem(conditions, fleet.ConditionPoliciesInForce, policies.Reason, policies.Message, fleet.ReasonPoliciesInForce)
	}
}

// setLabelsLimited causes no event: the creator of the token, or the configuration, has chosen that agents choose their labels.
func (h *handler) setLabelsLimited(token *fleet.ClusterRegistrationToken) {
	reason, message := "", ""
	if registration.ManyMayChooseLabels(token, copiesUnmentionedLabels(h.Config.Get())) {
		reason, message = fleet.ReasonAgentLabelsAccepted, fmt.Sprintf(
			"each holder of this token can register a Cluster with labels of its choice, and so obtains everything, Secrets included, that "+
				"Bundles of namespace %s deploy to Clusters selected by label; set spec.allowedLabelKeys to the keys that agents may use "+
				"([] for none)", token.Namespace)
	}
	h.setProblem(&token.Status.Conditions, fleet.ConditionLabelsLimited, reason, message, fleet.ReasonLabelsLimited)
}

// copiesUnmentionedLabels reports whether the configuration copies labels of agents that their token does not mention.
func copiesUnmentionedLabels(hub config.Hub) bool {
	return hub.Registration.AllowsAnyLabel() && !hub.IgnoreClusterRegistrationLabels
}

// setWithinLimits sets the condition about the limits of the requests of the token, or of its namespace.
func (h *handler) setWithinLimits(token *fleet.ClusterRegistrationToken) (*result.Transition, error) {
	for _, row := range []struct {
		phase backlog.Phase
		what  string
	}{
		{backlog.Unconnected, "granted requests are for Clusters that have never connected; delete Clusters that will never connect"},
		{backlog.Waiting, "requests wait; decide about them"},
	} {
		limit := backlog.LimitOf(row.phase, h.Config.Get())
		ofToken, ofNamespace, err := h.Backlog.Reached(row.phase, token, limit)
		if err != nil {
			return nil, err
		}
		if !ofToken && !ofNamespace {
			continue
		}
		message := fmt.Sprintf("%d %s", limit.PerNamespace, row.what+", and see which tokens of this namespace they were made with")
		if ofToken {
			message = fmt.Sprintf("%d %s, and revoke this token if it was stolen", limit.PerToken, row.what)
		}
		return h.setProblem(&token.Status.Conditions, fleet.ConditionWithinLimits, fleet.ReasonLimitReached,
			message+"; registration.limits of the hub can be raised", fleet.ReasonWithinLimits), nil
	}
	return h.setProblem(&token.Status.Conditions, fleet.ConditionWithinLimits, "", "", fleet.ReasonWithinLimits), nil
}

// lastGranted returns when the last granted request of an agent was created; nil if there is none.
func (h *handler) lastGranted(namespace, clientID string) (last *metav1.Time, err error) {
	if clientID == "" {
		return nil, nil
	}
	sameClientID, err := index.RequestsByClientID.Find(h.requests, index.Key(namespace, clientID))
	for _, r := range sameClientID {
		if r.Status.Granted && (last == nil || last.Before(&r.CreationTimestamp)) {
			last = &r.CreationTimestamp
		}
	}
	return last, err
}

// setRequestsAccepted sets the condition about refused requests that name the token. A refused request often belongs to no Cluster, so people
// look for it at the token. A refused request does not count if a newer request of its agent was granted.
func (h *handler) setRequestsAccepted(token *fleet.ClusterRegistrationToken) (*result.Transition, error) {
	refused, err := h.requests.GetByIndex(refusedByToken, index.TokenKey(token.Namespace, token.Name))
	if err != nil {
		return nil, err
	}
	var newest *fleet.ClusterRegistration
	granted := map[string]*metav1.Time{} // by clientID; hundreds of refused requests may have the same one
	for _, r := range refused {
		last, known := granted[r.Spec.ClientID]
		if !known {
			if last, err = h.lastGranted(r.Namespace, r.Spec.ClientID); err != nil {
				return nil, err
			}
			granted[r.Spec.ClientID] = last
		}
		if isReplaced := last != nil && !last.Before(&r.CreationTimestamp); !isReplaced {
			newest = credentialstatus.Newer(newest, r)
		}
	}
	reason, message := "", ""
	if newest != nil {
		condition := fleetstatus.Condition(newest.Status.Conditions, fleet.ConditionGranted)
		reason, message = condition.Reason, fmt.Sprintf("ClusterRegistration %s is refused: %s", newest.Name, condition.Message)
	}
	return h.setProblem(&token.Status.Conditions, fleet.ConditionRequestsAccepted, reason, message, fleet.ReasonRequestsAccepted), nil
}

// roomDelay is the time after which a token is enqueued that has more uncounted requests than its status can name at once.
const roomDelay = 250 * time.Millisecond

func keyOf(token *fleet.ClusterRegistrationToken) types.NamespacedName {
	return types.NamespacedName{Namespace: token.Namespace, Name: token.Name}
}

// count is the result of countUses.
type count struct {
	answered []registration.Use // counted or refused, once the status is written
	next     time.Duration      // the time after which the others are counted; 0 if there are none
}

// countUses adds the requests that ask for a use of the token to its status, which is written once for all of them. The write names the version
// that it is based on, so a request becomes counted in one step, even if others write or the hub is killed.
func (h *handler) countUses(ctx context.Context, token *fleet.ClusterRegistrationToken) (count, error) {
	asking := h.TokenUsage.Of(keyOf(token))
	if len(asking) == 0 {
		return count{}, nil
	}
	before := registration.UsesOf(token)
	isRecorded, err := h.usesRecorded(ctx, token)
	if err != nil {
		return count{}, fmt.Errorf("counting the uses of ClusterRegistrationToken %s/%s: %w", token.Namespace, token.Name, err)
	}
	uncounted := slices.DeleteFunc(slices.Clone(asking), func(use registration.Use) bool { return !h.stillAsks(use, token) })
	uses, added, waiting := before.Release(isRecorded).Add(uncounted)
	if len(added) > 0 {
		now := metav1.NewTime(h.Clock.Now())
		token.Status.Uses, token.Status.PendingUses = uses.Count, uses.Pending
		token.Status.LastUsed, token.Status.LastCluster = &now, added[len(added)-1].Cluster
	}
	if len(waiting) == 0 {
		return count{answered: asking}, nil
	}
	waits := make(map[string]bool, len(waiting)) // by UID; in a burst of registrations there are thousands
	for _, use := range waiting {
		waits[use.UID] = true
	}
	return count{answered: slices.DeleteFunc(asking, func(use registration.Use) bool { return waits[use.UID] }), next: roomDelay}, nil
}

// stillAsks checks the status of the request: since the request asked, it may have been counted, and the token may no longer name it.
func (h *handler) stillAsks(use registration.Use, token *fleet.ClusterRegistrationToken) bool {
	request, err := h.requests.Get(token.Namespace, use.Name)
	return err == nil && string(request.UID) == use.UID && request.DeletionTimestamp == nil && request.Status.TokenUID != string(token.UID)
}

// request reads the cache. It returns nil if there is no such request.
func (h *handler) request(uid string) *fleet.ClusterRegistration {
	found, err := index.RequestsByUID.Find(h.requests, uid)
	if err != nil || len(found) == 0 {
		return nil
	}
	return found[0]
}

// usesRecorded returns a function that reports whether the token need no longer name a request, because the status of the request records the use or
// the request was deleted. If the cache lacks a request, it reads from the API server: the cache of a hub that has just started may be behind.
func (h *handler) usesRecorded(ctx context.Context, token *fleet.ClusterRegistrationToken) (func(uid string) bool, error) {
	gone := map[string]bool{}
	for _, uid := range token.Status.PendingUses {
		if h.request(uid) == nil {
			gone[uid] = true
		}
	}
	if len(gone) > 0 {
		all, err := h.Metadata.Resource(requestResource).Namespace(token.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range all.Items {
			delete(gone, string(all.Items[i].UID))
		}
	}
	return func(uid string) bool {
		request := h.request(uid)
		return gone[uid] || request != nil && request.Status.TokenUID == string(token.UID)
	}, nil
}

var requestResource = fleet.SchemeGroupVersion.WithResource("clusterregistrations")
