package agentspec

import (
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Unmanaged returns why a Cluster's agent has no Bundle; an empty reason means that it has one.
func Unmanaged(hub config.Hub, cluster *fleet.Cluster) (reason, message string) {
	_, labelled := cluster.Labels[fleet.NonManagedAgentLabel]
	switch {
	case cluster.Labels[fleet.ClusterManagementLabel] != "":
		return fleet.ReasonManagedElsewhere, "the label " + fleet.ClusterManagementLabel + " assigns this Cluster to another controller"
	case LocalDisabled(hub, cluster):
		return fleet.ReasonLocalAgentDisabled, "the configuration says bootstrap.localAgentDisabled"
	case hub.ManageAgent != nil && !*hub.ManageAgent:
		return fleet.ReasonAgentNotManaged, "the configuration says manageAgent: false"
	case labelled:
		return fleet.ReasonAgentNotManaged, "the Cluster has the label " + fleet.NonManagedAgentLabel
	}
	return "", ""
}

// LocalDisabled reports whether the Cluster is the hub's own cluster and the configuration disables the agent there.
func LocalDisabled(hub config.Hub, cluster *fleet.Cluster) bool {
	return hub.Bootstrap.LocalAgentDisabled && cluster.Namespace == hub.Bootstrap.Namespace && cluster.Name == "local"
}

// ServedByBundle reports whether new settings reach the agent by its Bundle alone: the agent deploys its Bundle, and is not disconnected.
// Any other agent may be unable to start, and only another import can repair it.
func ServedByBundle(hub config.Hub, cluster *fleet.Cluster) bool {
	reason, _ := Unmanaged(hub, cluster)
	return reason == "" && registration.IsManagedGeneration(cluster.Status.Agent.Generation) && !Disconnected(cluster)
}

// Disconnected reports whether the agent has stopped sending heartbeats.
func Disconnected(cluster *fleet.Cluster) bool {
	return fleetstatus.IsFalse(cluster.Status.Conditions, fleet.ConditionConnected)
}

// InstalledGeneration is the GENERATION with which an import installs the agent. An agent that has deployed its Bundle keeps the
// GENERATION of the Bundle: with another one it would restart twice, now and when it deploys its Bundle again. Otherwise
// it is the registration key.
func InstalledGeneration(hub config.Hub, cluster *fleet.Cluster, registrationKey string) string {
	if reason, _ := Unmanaged(hub, cluster); reason == "" && hasAdopted(cluster.Status) {
		return registration.ManagedGeneration(cluster.Spec.RedeployAgentGeneration)
	}
	return registrationKey
}

// hasAdopted reports whether the agent has deployed its Bundle. Until the first heartbeat after an import, the GENERATION that was
// installed decides.
func hasAdopted(status fleet.ClusterStatus) bool {
	if status.Agent.LastSeen.IsZero() && status.Import != nil {
		return registration.IsManagedGeneration(status.Import.Generation)
	}
	return registration.IsManagedGeneration(status.Agent.Generation)
}
