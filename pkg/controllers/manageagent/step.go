package manageagent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/standing"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Condition is Reconciled.
func (s *Step) Condition() string { return fleet.ConditionReconciled }

// Forget has nothing to drop: what is remembered is not of one Cluster.
func (s *Step) Forget(string) {}

// Leaves has the Bundle of a Cluster that is handed to another controller removed.
func (s *Step) Leaves() {}

// Reconcile makes the Bundle of the Cluster's agent as it should be.
func (s *Step) Reconcile(_ context.Context, cluster *fleet.Cluster) result.Result {
	existing, err := s.existing(cluster)
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	if reason, message := agentspec.Unmanaged(s.Config.Get(), cluster); reason != "" {
		return s.release(cluster, existing, result.Done(reason, message))
	}
	if cluster.Spec.Quarantined {
		return result.Skip() // nothing is sent to the agent; condition Registered says why
	}
	if out := s.mayFollow(cluster, existing); !out.IsDone() {
		return out
	}
	wanted, out := s.wanted(cluster)
	if wanted == nil {
		return out
	}
	if out := s.ensure(existing, wanted); !out.IsDone() {
		return out
	}
	s.record(cluster)
	return reconciled(cluster)
}

// reconciled is told together with the agent's first heartbeat: a write of its own, for each Cluster, would tell nobody
// anything.
func reconciled(cluster *fleet.Cluster) result.Result {
	if cluster.Status.Agent.LastSeen.IsZero() && !told(cluster) {
		return waiting()
	}
	return result.Done(fleet.ReasonReconciled, "")
}

func told(cluster *fleet.Cluster) bool {
	return result.Get(cluster.Status.Conditions, fleet.ConditionReconciled).Reason == fleet.ReasonReconciled
}

func waiting() result.Result {
	return result.Wait(fleet.ReasonWaitingForAgent, "the agent's Bundle follows when the agent has registered")
}

// existing is the Bundle of that name, nil where there is none.
func (s *Step) existing(cluster *fleet.Cluster) (*fleet.Bundle, error) {
	bundle, err := s.known.Get(cluster.Namespace, registration.AgentBundleName(cluster.Name))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return bundle, err
}

// release removes the Bundle of an agent that is to have none. The agent stays as it is.
func (s *Step) release(cluster *fleet.Cluster, existing *fleet.Bundle, out result.Result) result.Result {
	if existing != nil && agentspec.IsBundle(existing) && existing.DeletionTimestamp == nil {
		err := s.bundles.Delete(existing.Namespace, existing.Name, &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &existing.UID},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return result.Retry(fleet.ReasonError, fmt.Errorf("deleting Bundle %s/%s: %w", existing.Namespace, existing.Name, err))
		}
	}
	before := result.Get(cluster.Status.Conditions, fleet.ConditionReconciled)
	if out.Reason == fleet.ReasonManagedElsewhere && before.Status == "" {
		return result.Skip() // condition Processed says it already
	}
	return out
}

// mayFollow says whether there is an agent for the Bundle to follow, and whether it is where the Bundle would put it.
func (s *Step) mayFollow(cluster *fleet.Cluster, existing *fleet.Bundle) result.Result {
	if cluster.Spec.KubeConfigSecret == "" {
		return mayFollowOwn(cluster)
	}
	if existing == nil && cluster.Status.Agent.LastSeen.IsZero() {
		requests, err := standing.Of(s.requests, cluster)
		switch {
		case err != nil:
			return result.Retry(fleet.ReasonError, err)
		case !requests.Granted:
			return waiting()
		}
	}
	if wanted := agentspec.Namespace(s.Context, cluster); s.installedIn(cluster) != wanted {
		return result.Wait(fleet.ReasonWaitingForImport, "the agent's Bundle follows when the agent is installed in namespace "+wanted)
	}
	return result.Done("", "")
}

// mayFollowOwn is for an agent that registered by itself. Only its heartbeat tells in which namespace it was installed; in
// any other it would have nothing to work with.
func mayFollowOwn(cluster *fleet.Cluster) result.Result {
	namespace := cluster.Status.Agent.Namespace
	if namespace == "" {
		return waiting()
	}
	if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
		return result.Stalled(fleet.ReasonSettingsInvalid, fmt.Sprintf(
			"the agent says that it is in namespace %q, which cannot be: %s", namespace, strings.Join(problems, "; ")))
	}
	return result.Done("", "")
}

// installedIn is the namespace in which the agent has what it needs to work. An import says so; of agents that other
// releases installed, and of those that people did, it is what they report.
func (s *Step) installedIn(cluster *fleet.Cluster) string {
	status := cluster.Status
	switch {
	case cluster.Spec.KubeConfigSecret == "":
		return status.Agent.Namespace
	case status.Import != nil:
		return status.Import.AgentNamespace
	case status.AgentDeployedGeneration == nil:
		return ""
	case status.Agent.Namespace != "":
		return status.Agent.Namespace
	}
	return agentspec.Namespace(s.Context, cluster)
}

// wanted is the Bundle as it should be, or why that cannot be said.
func (s *Step) wanted(cluster *fleet.Cluster) (*fleet.Bundle, result.Result) {
	in := s.ingredients(cluster)
	text, err := s.rendered.render(in)
	switch {
	case errors.Is(err, agentspec.ErrBadCA):
		return nil, result.Stalled(fleet.ReasonAPIServerCAInvalid, err.Error())
	case err != nil:
		return nil, result.Stalled(fleet.ReasonSettingsInvalid, fmt.Sprintf("the agent's Bundle cannot be made with these settings: %s", err))
	}
	bundle := newBundle(cluster, in.Agent.Namespace, text)
	if !s.DisableBundles {
		bundle.Finalizers = []string{fleet.BundleFinalizer}
	}
	return bundle, result.Done("", "")
}

// ingredients are for the namespace the agent is in. Where the hub has no kubeconfig, nobody can make a PriorityClass, and
// with one that does not exist no pod could start.
func (s *Step) ingredients(cluster *fleet.Cluster) ingredients {
	in := ingredients{Agent: agentspec.Options(s.Context, cluster, registration.ManagedGeneration(cluster.Spec.RedeployAgentGeneration))}
	in.Agent.Namespace = s.installedIn(cluster)
	if cluster.Spec.KubeConfigSecret == "" {
		in.Agent.PriorityClassName = ""
		hub := forAgents(s.Config.Get())
		in.Hub = &hub
	}
	return in
}

// record notes the settings that the agent gets from its Bundle and from nobody else.
func (s *Step) record(cluster *fleet.Cluster) {
	if cluster.Spec.KubeConfigSecret != "" && !agentspec.ServedByBundle(s.Config.Get(), cluster) {
		return
	}
	installed := agentspec.InstalledSettings(cluster.Status)
	wanted := agentspec.WantedSettings(cluster.Spec).WithSchedulingOf(installed)
	if wanted != installed {
		wanted.Record(&cluster.Status)
	}
}

func keyOf(bundle *fleet.Bundle) types.NamespacedName {
	return types.NamespacedName{Namespace: bundle.Namespace, Name: bundle.Name}
}
