package clusterregistration

import (
	"fmt"
	"time"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// unconnectedRecheck is the interval at which the hub decides again about a request that waits until other agents connect.
const unconnectedRecheck = 10 * time.Second

// limitUnconnected lets a request wait while too many agents that registered before have never connected. A fleet that registers at
// once continues as its agents connect.
func (h *handler) limitUnconnected(request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken) result.Result {
	limits := h.Config.Get().Registration.Limits.WithDefaults()
	limit := backlog.PhaseLimit{PerToken: limits.UnconnectedPerToken, PerNamespace: limits.UnconnectedPerNamespace}
	admitted, err := h.Backlog.Admit(backlog.Unconnected, request, limit)
	switch {
	case err != nil:
		return failed(err)
	case admitted:
		return done
	}
	h.reportLimit(token)
	wait := result.Wait(fleet.ReasonTooManyUnconnected, fmt.Sprintf(
		"waiting for agents that registered before to connect: %d of ClusterRegistrationToken %s, as many of unproved origin, or %d of the namespace "+
			"have not yet (registration.limits); delete Clusters that will never connect", limit.PerToken, token.Name, limit.PerNamespace))
	// The condition is written at once, because the next step counts it. There is no event: the token has one for all requests.
	return h.waitOrRefuse(request, token, wait.WrittenAtOnce().In(unconnectedRecheck))
}

// waitOrRefuse refuses a request that has to wait if too many others wait. The first requests stay, so that a person who is deciding about
// them, and agents that came first, lose nothing. deleteRefused keeps a limited number of the refused ones.
func (h *handler) waitOrRefuse(request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken, wait result.Result) result.Result {
	limits := h.Config.Get().Registration.Limits.WithDefaults()
	limit := backlog.PhaseLimit{PerToken: limits.WaitingPerToken, PerNamespace: limits.WaitingPerNamespace}
	admitted, err := h.Backlog.Admit(backlog.Waiting, request, limit)
	switch {
	case err != nil:
		return failed(err)
	case admitted:
		return wait
	}
	h.reportLimit(token)
	return result.Stalled(fleet.ReasonTooManyWaiting, fmt.Sprintf(
		"%d requests of ClusterRegistrationToken %s, as many of unproved origin, or %d of the namespace wait already (registration.limits); decide about these requests, or "+
			"revoke the token if it was stolen", limit.PerToken, token.Name, limit.PerNamespace)).WithoutEvent().In(h.RecheckDelay())
}

// reportLimit enqueues the token, whose condition WithinLimits reports the limit.
func (h *handler) reportLimit(token *fleet.ClusterRegistrationToken) {
	if !fleetstatus.IsFalse(token.Status.Conditions, fleet.ConditionWithinLimits) {
		h.Fleet.ClusterRegistrationToken().EnqueueAfter(token.Namespace, token.Name, batchStormDelay)
	}
}
