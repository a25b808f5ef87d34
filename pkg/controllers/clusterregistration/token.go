package clusterregistration

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// findToken returns the token that the agent registers with, or the reason why it is not known. The ServiceAccount of that token gets the
// right to read the credential. Whether a token has expired is decided by the clock of the API server, by which it was created.
func (h *handler) findToken(
	ctx context.Context, request *fleet.ClusterRegistration, origin registration.Origin, clusterName string,
) (*fleet.ClusterRegistrationToken, *registration.Explanation, error) {
	// Agents of early versions name no token, and may hold any token of the namespace. Only for them all tokens are listed.
	claimed := request.Labels[fleet.RegistrationTokenLabel]
	var tokens []*fleet.ClusterRegistrationToken
	var err error
	if claimed == "" {
		tokens, err = h.tokens.List(request.Namespace, labels.Everything())
	} else {
		tokens, err = h.tokens.GetByIndex(index.ByToken, index.Key(request.Namespace, claimed))
	}
	if err != nil {
		return nil, nil, err
	}
	usable := map[string]*fleet.ClusterRegistrationToken{}
	var candidates []registration.KnownToken
	var clockErr error // it is not known whether another token has expired
	for _, token := range tokens {
		if !registration.Usable(token, time.Time{}) || isLaterToken(request, token, origin) {
			continue // unusable, whatever the time is
		}
		switch isUnusable, _, err := h.HasPassedOnServer(ctx, func(now time.Time) bool { return !registration.Usable(token, now) }); {
		case err != nil:
			clockErr = err
		case !isUnusable:
			usable[token.Name] = token
			candidates = append(candidates, asToken(token, h.bootstrapUsersOf(token)...))
		}
	}

	// The recorded creator has precedence over conclusions from the number of tokens.
	if recorded := origin.TokenOf(request.Namespace, candidates); claimed == "" && recorded != nil {
		return usable[recorded.Name], nil, nil
	}
	if clockErr != nil { // another token may be the one that is named, and the number of tokens may decide
		return nil, nil, clockErr
	}
	var named, ofImport *registration.KnownToken
	if claimed == "" {
		if token := usable[registration.ImportTokenName(clusterName)]; token != nil {
			ofImport = new(asToken(token))
		}
	} else if len(candidates) > 0 {
		// A long name is shortened in the label, so that two tokens may share it. Then the creator decides.
		if named = &candidates[0]; len(candidates) > 1 {
			named = cmp.Or(origin.TokenOf(request.Namespace, candidates), named)
		}
	}
	match, refusal := registration.MatchToken(claimed, named, ofImport, candidates)
	if refusal != nil {
		return nil, refusal, nil
	}
	return usable[match.Name], nil, nil
}

// isLaterToken reports whether a token is not the token that the request was made with, but was created later. A person who revokes a token
// may create another of the same name, and the requests of the revoked one must not count as requests of the new one: the holder of the
// revoked token may have created them. A granted request has recorded the UID of its token. For another request the recorded creator decides,
// because the name of a token's ServiceAccount contains the UID. Without a recorded creator, the creation times decide. API servers set both, with a
// resolution of one second, and their clocks may differ by clockTolerance.
func isLaterToken(request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken, origin registration.Origin) bool {
	if request.Status.Granted && request.Status.TokenUID != "" {
		return request.Status.TokenUID != string(token.UID)
	}
	return origin.Creator == "" && token.CreationTimestamp.After(request.CreationTimestamp.Add(clockTolerance))
}

// clockTolerance is by how much the clocks of two API servers of the hub may differ.
const clockTolerance = 5 * time.Second

// policiesRequired refuses every request where the hub requires its admission policies and they are not in force. A change of the
// policies enqueues the requests that are not granted.
func (h *handler) policiesRequired(settings config.Registration) *registration.Explanation {
	if !h.PoliciesRequired && !settings.RequirePolicies {
		return nil
	}
	policies := admission.PolicyState{Reason: fleet.ReasonPoliciesNotServed, Message: "the hub runs without admission policies"}
	if h.Admission != nil {
		policies = h.Admission.State()
	}
	if policies.Reason == "" {
		return nil
	}
	return &registration.Explanation{Reason: fleet.ReasonPoliciesRequired, Message: fmt.Sprintf(
		"this hub registers no cluster while its admission policies are not in force (registration.requirePolicies): %s", policies.Message)}
}

// setOriginProved sets the condition, which is written with the next decision: it is not worth a write of its own.
func setOriginProved(conditions *fleetstatus.Conditions, origin registration.Origin, now time.Time) {
	proof := result.Stalled(origin.Reason, origin.Message)
	if origin.Proved() {
		proof = result.Done(origin.Reason, origin.Message)
	}
	result.Set(conditions, fleet.ConditionOriginProved, proof, now)
}

const (
	batchDelay = 20 * time.Millisecond
	burstDelay = 250 * time.Millisecond // less than a request takes in a burst in any case

	// undelayedMax is the number of requests of one token, uncounted and pending ones together, up to which a request is counted without a delay.
	undelayedMax = 2
	burstMin     = 10 // pending requests of one token
)

// askForUse asks the controller of tokens to count the request. A request that is counted stays counted: it is pending, in
// status.pendingUses of the token, until its own status records the use.
func (h *handler) askForUse(request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken, clusterName string) {
	key := types.NamespacedName{Namespace: token.Namespace, Name: token.Name}
	h.TokenUsage.Add(key, registration.Use{
		UID: string(request.UID), Name: request.Name, Created: request.CreationTimestamp.Time, Cluster: clusterName,
	})
	h.Fleet.ClusterRegistrationToken().EnqueueAfter(token.Namespace, token.Name, countDelay(len(token.Status.PendingUses), h.TokenUsage.Count(key)))
}

// countDelay is how long a token waits for more requests to count, so that a burst of requests costs few writes. A single request does
// not wait. pending is the number of counted requests whose status does not record the use yet.
func countDelay(pending, asking int) time.Duration {
	switch {
	case pending+asking <= undelayedMax:
		return 0
	case pending < burstMin:
		return batchDelay
	}
	return burstDelay
}

// unconnectedRecheck is the interval at which the hub decides again about a request that waits until other agents connect.
const unconnectedRecheck = 10 * time.Second

// limitUnconnected lets a request wait while too many agents that registered before have never connected. If a whole fleet registers at the
// same time, it continues as its agents connect.
func (h *handler) limitUnconnected(request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken) result.Result {
	limit := backlog.LimitOf(backlog.Unconnected, h.Config.Get())
	admitted, err := h.Backlog.Admit(backlog.Unconnected, request, limit)
	switch {
	case err != nil:
		return failed(err)
	case admitted:
		return done
	}
	h.reportLimit(token)
	wait := result.Wait(fleet.ReasonTooManyUnconnected, fmt.Sprintf(
		"waiting for agents that registered before to connect; a limit is reached: %d for ClusterRegistrationToken %s, %[1]d for requests of unproved "+
			"origin, %[3]d for the namespace (registration.limits); delete Clusters that will never connect", limit.PerToken, token.Name, limit.PerNamespace))
	// The condition is written immediately, because the next step counts it. There is no event: the token has one for all requests.
	return h.waitOrRefuse(request, token, wait.WrittenAtOnce().In(unconnectedRecheck))
}

// waitOrRefuse refuses a request that has to wait if too many others wait. The first requests stay, so that a person who is deciding about
// them, and agents that came first, lose nothing. deleteRefused keeps a limited number of the refused ones.
func (h *handler) waitOrRefuse(request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken, wait result.Result) result.Result {
	limit := backlog.LimitOf(backlog.Waiting, h.Config.Get())
	admitted, err := h.Backlog.Admit(backlog.Waiting, request, limit)
	switch {
	case err != nil:
		return failed(err)
	case admitted:
		return wait
	}
	h.reportLimit(token)
	return result.Stalled(fleet.ReasonTooManyWaiting, fmt.Sprintf(
		"too many requests wait already; a limit is reached: %d for ClusterRegistrationToken %s, %[1]d for requests of unproved origin, %[3]d for the "+
			"namespace (registration.limits); decide about these requests, or revoke the token if it was stolen",
		limit.PerToken, token.Name, limit.PerNamespace)).WithoutEvent().In(h.RecheckDelay())
}

// reportLimit enqueues the token, whose condition WithinLimits reports the limit.
func (h *handler) reportLimit(token *fleet.ClusterRegistrationToken) {
	if !fleetstatus.IsFalse(token.Status.Conditions, fleet.ConditionWithinLimits) {
		h.Fleet.ClusterRegistrationToken().EnqueueAfter(token.Namespace, token.Name, burstDelay)
	}
}

func asToken(token *fleet.ClusterRegistrationToken, users ...string) registration.KnownToken {
	return registration.KnownToken{Name: token.Name, ServiceAccount: registration.TokenServiceAccount(token.Name, string(token.UID)), Users: users}
}

// bootstrapUsersOf returns the users of the bootstrap tokens of Kubernetes that stand for the token.
func (h *handler) bootstrapUsersOf(token *fleet.ClusterRegistrationToken) []string {
	return h.Config.Get().Clusternet.UsersOf(token.Namespace, token.Name)
}
