package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/credentialstatus"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// stateWaitCheckIn is what management servers display for a Cluster whose agent has never sent a heartbeat.
const stateWaitCheckIn = "WaitCheckIn"

// maxQuarantineReason limits the length of an annotation in a message.
const maxQuarantineReason = 400

// registeredResult returns the result for condition Registered. Until the agent has sent a heartbeat, the condition is Unknown, which management servers
// display as "in progress". It is False, which they display as an error, if a request was refused, if the agent is quarantined, if its
// credential was revoked or has expired, or if it has a clone.
func (h *handler) registeredResult(cluster *fleet.Cluster) result.Result {
	switch {
	case cluster.Spec.Quarantined:
		why := cluster.Annotations[fleet.QuarantineReasonAnnotation]
		if why != "" {
			why = " (" + fleetstatus.Cut(why, maxQuarantineReason) + ")"
		}
		return result.Stalled(fleet.ReasonQuarantined, fmt.Sprintf(
			"the agent is quarantined%[3]s and has no access to the hub; if its credential may be stolen, first revoke it with `muster -n %[1]s revoke --yes %[2]s`; "+
				"`muster -n %[1]s release %[2]s`, or spec.quarantined: false, restores the rights of the credential",
			cluster.Namespace, cluster.Name, why))
	case h.subReconcilers.Liveness.HasClones(cluster):
		which := "" // after a start of the hub, it does not know both
		if names := h.subReconcilers.Liveness.Instances(cluster); len(names) > 1 {
			which = fmt.Sprintf(" (%s; the part before an underscore is the name of the pod)", quoted(names))
		}
		return result.Stalled(fleet.ReasonCloneDetected, fmt.Sprintf(
			"two agents send heartbeats with the identity of this cluster%s; "+
				"the second one runs on a copy of the cluster or uses a stolen credential; "+
				"delete Secret fleet-agent on the copy and register it with another clientID, or, if there is no copy, revoke the credential with `muster -n %s revoke --yes %s`",
			which, cluster.Namespace, cluster.Name))
	}
	requests, err := credentialstatus.Of(h.requests, cluster)
	switch {
	case err != nil:
		return result.Retry(fleet.ReasonError, err)
	case requests.Revoked != nil:
		granted := fleetstatus.Condition(requests.Revoked.Status.Conditions, fleet.ConditionGranted)
		return mustRegisterAgain(cluster, requests, fleet.ReasonCredentialRevoked, granted.Message)
	case requests.LostRegistration(cluster):
		return mustRegisterAgain(cluster, requests, fleet.ReasonCredentialRevoked,
			"the agent is not connected and its granted ClusterRegistration does not exist any more; it has to register again")
	case credentialstatus.Expired(cluster, h.Clock.Now()):
		return mustRegisterAgain(cluster, requests, fleet.ReasonCredentialExpired, fmt.Sprintf(
			"the agent's credential expired at %s while the agent was not connected", cluster.Status.Agent.CredentialExpires.UTC().Format(time.RFC3339)))
	case !cluster.Status.Agent.LastSeen.IsZero():
		return result.Done(fleet.ReasonRegistered, "").In(credentialstatus.ExpiryIn(cluster, h.Clock.Now()))
	}
	if refusal, found := h.refusal(cluster); found {
		return result.Stalled(refusal.Reason, "a registration was refused: "+refusal.Message)
	}
	return result.Wait(fleet.ReasonWaitingForAgent, "waiting for the agent to register and send its first heartbeat"+h.requestWithOtherClientID(cluster))
}

// releasesManaged decides condition ReleasesManaged, which exists since the agent first reported kept releases.
func releasesManaged(cluster *fleet.Cluster) (out result.Result, exists bool) {
	kept := cluster.Status.Agent.KeptReleases
	if kept == nil {
		exists = fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionReleasesManaged).Status != ""
		return result.Done(fleet.ReasonReleasesManaged, ""), exists
	}
	return result.Stalled(fleet.ReasonBundlesMissing, fmt.Sprintf(
		"the hub was restored from a backup, or the agent has come from another hub, and no Bundle deploys these Helm releases, which the agent "+
			"keeps (%d): %s; create their Bundles again, or uninstall the releases on the member with helm", kept.Count, kept.Names)), true
}

// recordRegistered records an event and a metric for the first heartbeat after a registration. It records nothing for a Cluster that had other
// conditions but no condition Registered, such as a Cluster that Fleet's own hub registered.
func (h *handler) recordRegistered(before, cluster *fleet.Cluster, t *result.Transition) {
	first := len(before.Status.Conditions) == 0 // see firstStatusDelay
	if t == nil || t.Before != corev1.ConditionUnknown && !first || t.After != corev1.ConditionTrue {
		return
	}
	h.Events.Event(cluster, corev1.EventTypeNormal, fleet.ReasonRegistered, "the agent has registered and sent its first heartbeat")
	way, approval := metrics.WayAgent, metrics.ApprovalAuto
	own := h.Config.Get().Bootstrap
	switch {
	case cluster.Name == registration.LocalCluster && cluster.Namespace == own.Namespace && cluster.Spec.KubeConfigSecret == registration.LocalSecret:
		way = metrics.WayLocal
	case cluster.Spec.KubeConfigSecret != "":
		way = metrics.WayManager
	}

	// An import counts from the time since which the hub waits for the agent: the creation of the Cluster, or a later import.
	since, err := time.Parse(time.RFC3339, fleetstatus.Condition(before.Status.Conditions, fleet.ConditionRegistered).LastTransitionTime)
	if err != nil {
		since = cluster.CreationTimestamp.Time
	}
	var granted *fleet.ClusterRegistration // the newest one
	for _, r := range h.requestsOf(cluster) {
		if r.Status.Granted {
			granted = credentialstatus.Newer(granted, r)
		}
	}
	if granted != nil {
		if granted.Status.Approval != nil {
			approval = metrics.ApprovalManual
		}
		if way == metrics.WayAgent {
			since = granted.CreationTimestamp.Time
		}
	}
	h.Metrics.Registered(way, approval, h.Clock.Since(since))
}

// proofIsVoid reports whether the proof of possession that the agent of the Cluster has written no longer counts: the agent is quarantined, or its
// credential was revoked. It ignores an error of credentialstatus, which registeredResult reports.
func (h *handler) proofIsVoid(cluster *fleet.Cluster) bool {
	requests, err := credentialstatus.Of(h.requests, cluster)
	return cluster.Spec.Quarantined || err == nil && requests.Revoked != nil
}

func setDisplay(cluster *fleet.Cluster) {
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

// quoted lists names that agents have chosen.
func quoted(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, strconv.Quote(name))
	}
	return strings.Join(all, ", ")
}

// mustRegisterAgain returns the result for an agent whose credential was revoked or has expired. It adds to the message what happens next: the request
// with which the agent registers again is decided, the hub installs the agent again if it has a kubeconfig, or a user has to act. The agent's
// chart cannot be used for that: the hub owns the agent's Deployment since the agent has registered, and Helm does not overwrite the objects of
// another owner.
func mustRegisterAgain(cluster *fleet.Cluster, requests credentialstatus.Status, reason, message string) result.Result {
	if request := requests.NotGranted; request != nil {
		granted := fleetstatus.Condition(request.Status.Conditions, fleet.ConditionGranted)
		message += fmt.Sprintf("; its new ClusterRegistration %s is not granted (%s: %s)", request.Name, granted.Reason, granted.Message)
		if _, isRefused := registration.RefusalOf(request); !isRefused {
			return result.Stalled(reason, message)
		}
	}
	if cluster.Spec.KubeConfigSecret != "" {
		return result.Stalled(reason, message+"; the hub installs the agent again so that it registers, see condition Imported")
	}
	return result.Stalled(reason, message+fmt.Sprintf("; create a token for this Cluster alone, and register the member again: "+
		"`muster -n %[1]s token create --cluster %[2]s --usage-limit 1 --ttl 1h -o values | muster join - --kubeconfig MEMBER`, or put the values into "+
		"Secret %[3]s (key %[4]s) in the agent's namespace on the member; for an agent of Fleet, upgrade its chart with these values instead",
		cluster.Namespace, cluster.Name, registration.BootstrapSecret, registration.ValuesKey))
}

// requestsOf returns the requests with the clientID of the Cluster.
func (h *handler) requestsOf(cluster *fleet.Cluster) []*fleet.ClusterRegistration {
	if cluster.Spec.ClientID == "" {
		return nil
	}
	found, _ := index.RequestsByClientID.Find(h.requests, index.Key(cluster.Namespace, cluster.Spec.ClientID)) // fails only without the index
	return found
}

// refusal finds the condition of the newest refused request, unless another request of the same agent was granted.
func (h *handler) refusal(cluster *fleet.Cluster) (condition genericcondition.GenericCondition, found bool) {
	requests := h.requestsOf(cluster)
	slices.SortFunc(requests, byAge)
	for _, request := range requests {
		if request.Status.Granted {
			return genericcondition.GenericCondition{}, false
		}
		if refusal, isRefused := registration.RefusalOf(request); isRefused {
			condition, found = refusal, true
		}
	}
	return condition, found
}

// requestWithOtherClientID names the newest refused request that names the token of this import and has another clientID than the Cluster: the agent
// that the hub installed kept the clientID of an earlier registration, and the Cluster would wait for it without a reason. Everybody who
// may create requests may name the token, so this adds to the message only.
func (h *handler) requestWithOtherClientID(cluster *fleet.Cluster) string {
	if cluster.Spec.KubeConfigSecret == "" {
		return ""
	}
	requests, _ := h.requests.GetByIndex(index.ByToken, index.TokenKey(cluster.Namespace, registration.ImportTokenName(cluster.Name)))
	requests = slices.DeleteFunc(slices.Clone(requests), func(r *fleet.ClusterRegistration) bool {
		_, isRefused := registration.RefusalOf(r)
		return r.Spec.ClientID == cluster.Spec.ClientID || !isRefused
	})
	if len(requests) == 0 {
		return ""
	}
	newest := slices.MaxFunc(requests, byAge)
	granted := fleetstatus.Condition(newest.Status.Conditions, fleet.ConditionGranted)
	return fmt.Sprintf("; ClusterRegistration %s names the token of this import, but has another clientID than this Cluster, and was refused (%s: %s)",
		newest.Name, granted.Reason, granted.Message)
}

// byAge orders requests by age, the newest last, and requests of the same second by name: an index has no order.
func byAge(a, b *fleet.ClusterRegistration) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}
