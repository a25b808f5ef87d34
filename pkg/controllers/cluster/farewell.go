package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// eventMemberLeft is the reason of the event that says that something may be left on a member.
const eventMemberLeft = "MemberLeft"

// farewellPoll is how often the agent's answer is looked for where BundleDeployments are not watched.
const farewellPoll = 2 * time.Second

// askAgent asks an agent that is there and knows how to leave to do so, and waits until it has removed what it deployed. It
// does not wait for ever: where there is another way to the member, a third of the time is for that.
func (f *farewell) askAgent(context.Context) result.Result {
	if f.nobody || !hadAgent(f.cluster) {
		return gone
	}
	if why := unasked(f.cluster); why != nil {
		f.left = why
		return gone
	}
	deployment, err := f.asked()
	switch {
	case apierrors.IsNotFound(err):
		f.left = mayBeLeft(fleet.ReasonAgentUnaware, "the agent has no Bundle, with which the hub could ask it to leave")
		return gone
	case err != nil:
		return f.notAsked(err)
	}
	answer, patience := result.Get(deployment.Status.Conditions, fleet.ConditionFarewell), f.agentUntil().Sub(f.Clock.Now())
	switch {
	case answer.Status == corev1.ConditionTrue:
		f.agentLeft = true
		return gone
	case patience <= 0:
		f.left = late(answer.Message)
		return gone
	}
	if f.DisableBundles {
		patience = min(patience, farewellPoll)
	}
	return result.Wait(fleet.ReasonFarewell, fmt.Sprintf("waiting until %s for the agent to remove what it deployed",
		f.agentUntil().UTC().Format(time.RFC3339))).In(patience)
}

// notAsked tries again as long as there is time. A question that can never be put, refused by a webhook, say, must not keep
// the Cluster for ever.
func (f *farewell) notAsked(err error) result.Result {
	if f.Clock.Now().Before(f.agentUntil()) {
		return failed(err)
	}
	f.left = mayBeLeft(fleet.ReasonFarewellTimeout, "the agent could not be asked to leave: "+err.Error())
	return gone
}

// late repeats what the agent said of its trouble, if it said anything.
func late(trouble string) *result.Result {
	message := "the agent did not say in time that it has removed what it deployed"
	if trouble != "" {
		message += ": " + trouble
	}
	return mayBeLeft(fleet.ReasonFarewellTimeout, message)
}

// agentUntil is how long the agent is waited for.
func (f *farewell) agentUntil() time.Time {
	if f.cluster.Spec.KubeConfigSecret == "" {
		return f.until()
	}
	return f.began().Add(f.FarewellGrace * 2 / 3)
}

// asked puts the question on the agent's own BundleDeployment, once, and returns it.
func (f *farewell) asked() (*fleet.BundleDeployment, error) {
	namespace, name := registration.ClusterNamespace(f.cluster.Namespace, f.cluster.Name), registration.AgentBundleName(f.cluster.Name)
	found, err := f.deployment(namespace, name)
	if err != nil || found.Annotations[fleet.FarewellAnnotation] != "" {
		return found, err
	}
	asked, err := f.Fleet.BundleDeployment().Patch(namespace, name, types.MergePatchType, farewellPatch(f.cluster))
	if err != nil {
		return nil, fmt.Errorf("asking the agent to leave by BundleDeployment %s/%s: %w", namespace, name, err)
	}
	return asked, nil
}

// deployment is from the cache, where there is one. One that it does not have may have been made a moment ago.
func (f *farewell) deployment(namespace, name string) (*fleet.BundleDeployment, error) {
	if f.deployments != nil {
		if known, err := f.deployments.Get(namespace, name); err == nil {
			return known, nil
		}
	}
	return f.Fleet.BundleDeployment().Get(namespace, name, metav1.GetOptions{})
}

func farewellPatch(cluster *fleet.Cluster) []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`,
		fleet.FarewellAnnotation, cluster.DeletionTimestamp.UTC().Format(time.RFC3339))
}

// unasked says why an agent is not asked; nil where it is.
func unasked(cluster *fleet.Cluster) *result.Result {
	switch {
	case cluster.Spec.Quarantined:
		return mayBeLeft(fleet.ReasonQuarantined, "the agent is quarantined, so it could not be asked to leave")
	case result.Get(cluster.Status.Conditions, fleet.ConditionConnected).Status != corev1.ConditionTrue:
		return mayBeLeft(fleet.ReasonDisconnected, "the agent is not connected, so it could not be asked to leave")
	case cluster.Status.Agent.Version == "" && cluster.Status.Agent.Generation == "":
		// One that a chart installed has no GENERATION until it takes its Bundle over, but says its version.
		return mayBeLeft(fleet.ReasonAgentUnaware, "the agent is of a release that cannot be asked to leave")
	}
	return nil
}

// hadAgent says whether an agent of the Cluster was ever heard of.
func hadAgent(cluster *fleet.Cluster) bool { return !cluster.Status.Agent.LastSeen.IsZero() }

func mayBeLeft(reason, message string) *result.Result {
	out := result.Stalled(reason, message)
	return &out
}

// report tells a person that something may be left on the member.
func (f *farewell) report() {
	if f.nobody || f.agentLeft || f.clean || f.left == nil {
		return
	}
	f.Metrics.MembersLeft.WithLabelValues(f.left.Reason).Inc()
	f.Events.Event(f.cluster, corev1.EventTypeWarning, eventMemberLeft, fmt.Sprintf(
		"something may be left on the member: %s: %s", f.left.Reason, f.left.Message))
}

// clusterOfFarewell finds the Cluster whose agent was asked to leave. Its labels may have a name that was shortened.
func (h *handler) clusterOfFarewell(deployment *fleet.BundleDeployment) []types.NamespacedName {
	if deployment.Annotations[fleet.FarewellAnnotation] == "" {
		return nil
	}
	namespace, err := h.namespaces.Get(deployment.Namespace)
	if err != nil {
		return nil
	}
	return clusterOfNamespace(namespace)
}
