package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/standing"
)

// stateWaitCheckIn is what management servers show for a Cluster whose agent was never heard of.
const stateWaitCheckIn = "WaitCheckIn"

// registeredStep says whether the agent has arrived. While it has not, the condition is Unknown, which shows as "in
// progress"; False, which shows as broken, is only for a request that was refused.
type registeredStep struct{ *handler }

func (registeredStep) Condition() string { return fleet.ConditionRegistered }

func (registeredStep) Forget(string) {}

func (s registeredStep) Reconcile(_ context.Context, cluster *fleet.Cluster) result.Result {
	display(cluster)
	switch {
	case cluster.Spec.Quarantined:
		return quarantined(cluster)
	case s.hasClones(cluster):
		return cloned(cluster)
	}
	requests, err := standing.Of(s.requests, cluster)
	switch {
	case err != nil:
		return result.Retry(fleet.ReasonError, err)
	case requests.Revoked != nil:
		return revoked(cluster, result.Get(requests.Revoked.Status.Conditions, fleet.ConditionGranted).Message)
	case requests.Lost(cluster):
		return revoked(cluster, "the agent is silent and its ClusterRegistration is gone; it has to register again")
	}
	if standing.Expired(cluster, s.Clock.Now()) {
		return expired(cluster)
	}
	if !cluster.Status.Agent.LastSeen.IsZero() {
		return result.Done(fleet.ReasonRegistered, "").In(standing.ExpiryIn(cluster, s.Clock.Now()))
	}
	if refusal, found := s.refusal(cluster); found {
		return result.Stalled(refusal.Reason, "a registration was refused: "+refusal.Message)
	}
	return result.Wait(fleet.ReasonWaitingForAgent, "waiting for the agent to register and check in for the first time")
}

func display(cluster *fleet.Cluster) {
	d := &cluster.Status.Display
	if d.ReadyBundles == "" {
		d.ReadyBundles = "0/0"
	}
	switch {
	case cluster.Status.Agent.LastSeen.IsZero():
		d.State = stateWaitCheckIn
	case d.State == stateWaitCheckIn:
		d.State = ""
	}
}

func quarantined(cluster *fleet.Cluster) result.Result {
	return result.Stalled(fleet.ReasonQuarantined, fmt.Sprintf(
		"the agent is cut off from the hub; `muster -n %s release %s`, or spec.quarantined: false, gives it its rights back",
		cluster.Namespace, cluster.Name))
}

func (h *handler) hasClones(cluster *fleet.Cluster) bool {
	return slices.ContainsFunc(h.steps, func(step Step) bool {
		witness, hears := step.(Witness)
		return hears && witness.HasClones(cluster)
	})
}

// cloned says what to do. Which of the two agents is the right one only a person can tell.
func cloned(cluster *fleet.Cluster) result.Result {
	return result.Stalled(fleet.ReasonCloneDetected, fmt.Sprintf(
		"two agents check in with the identity of this cluster, which a copy of the cluster or a stolen credential has too; "+
			"delete Secret fleet-agent on the copy and register it with another clientID, or, if there is none, make the credential void with `muster -n %s revoke %s`",
		cluster.Namespace, cluster.Name))
}

// revoked says what follows from a void credential. Where the hub has a kubeconfig it installs the agent again by itself.
func revoked(cluster *fleet.Cluster, message string) result.Result {
	if cluster.Spec.KubeConfigSecret != "" {
		return result.Stalled(fleet.ReasonCredentialRevoked, message+
			"; the hub installs the agent again to have it do so, see condition Imported")
	}
	return result.Stalled(fleet.ReasonCredentialRevoked, message+"; "+wayBack(cluster))
}

// refusal finds the reason of the newest refused request, unless another one of the same agent was granted. An index has
// no order, so without one of its own the status would change from pass to pass.
func (s registeredStep) refusal(cluster *fleet.Cluster) (found genericcondition.GenericCondition, refused bool) {
	if cluster.Spec.ClientID == "" {
		return found, false
	}
	requests, _ := s.requests.GetByIndex(index.ByClientID, index.Key(cluster.Namespace, cluster.Spec.ClientID))
	slices.SortFunc(requests, byAge)
	for _, request := range requests {
		if request.Status.Granted {
			return genericcondition.GenericCondition{}, false
		}
		condition := result.Get(request.Status.Conditions, fleet.ConditionGranted)
		if condition.Status == corev1.ConditionFalse && condition.Reason != fleet.ReasonError { // an error passes
			found, refused = condition, true
		}
	}
	return found, refused
}

func byAge(a, b *fleet.ClusterRegistration) int {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}
