package agentspec

import (
	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Unmanaged says why the agent of a Cluster has no Bundle; the empty reason means that it has one.
func Unmanaged(hub config.Hub, cluster *fleet.Cluster) (reason, message string) {
	_, labelled := cluster.Labels[fleet.NonManagedAgentLabel]
	switch {
	case cluster.Labels[fleet.ClusterManagementLabel] != "":
		return fleet.ReasonManagedElsewhere, "the label " + fleet.ClusterManagementLabel + " hands this Cluster to another controller"
	case LocalDisabled(hub, cluster):
		return fleet.ReasonLocalAgentDisabled, "the configuration says bootstrap.localAgentDisabled"
	case hub.ManageAgent != nil && !*hub.ManageAgent:
		return fleet.ReasonAgentNotManaged, "the configuration says manageAgent: false"
	case labelled:
		return fleet.ReasonAgentNotManaged, "the Cluster has the label " + fleet.NonManagedAgentLabel
	}
	return "", ""
}

// LocalDisabled says whether a Cluster is the hub's own and the configuration says that it has no agent.
func LocalDisabled(hub config.Hub, cluster *fleet.Cluster) bool {
	return hub.Bootstrap.LocalAgentDisabled && cluster.Namespace == hub.Bootstrap.Namespace && cluster.Name == "local"
}

// ServedByBundle says whether new settings reach the agent by its Bundle alone: it has taken its Bundle over and is heard of.
// Any other agent may not be able to start, and then nobody but an import can help it.
func ServedByBundle(hub config.Hub, cluster *fleet.Cluster) bool {
	reason, _ := Unmanaged(hub, cluster)
	return reason == "" && registration.IsManagedGeneration(cluster.Status.Agent.Generation) && !Disconnected(cluster)
}

// Disconnected says whether the agent was heard of and then no more.
func Disconnected(cluster *fleet.Cluster) bool {
	return result.Get(cluster.Status.Conditions, fleet.ConditionConnected).Status == corev1.ConditionFalse
}

// InstalledGeneration is the GENERATION an import installs the agent with. One that has taken over its Bundle keeps that of
// the Bundle: with another one it would restart twice, now and when it puts its Bundle's back.
func InstalledGeneration(hub config.Hub, cluster *fleet.Cluster, key string) string {
	if reason, _ := Unmanaged(hub, cluster); reason == "" && hasAdopted(cluster.Status) {
		return registration.ManagedGeneration(cluster.Spec.RedeployAgentGeneration)
	}
	return key
}

// hasAdopted goes by what was installed last where the agent was not heard of since.
func hasAdopted(status fleet.ClusterStatus) bool {
	if status.Agent.LastSeen.IsZero() && status.Import != nil {
		return registration.IsManagedGeneration(status.Import.Generation)
	}
	return registration.IsManagedGeneration(status.Agent.Generation)
}
