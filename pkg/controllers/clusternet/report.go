package clusternet

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// maxInterval is the longest interval of heartbeats that the hub accepts from an agent: the hub marks an agent as disconnected only after
// several intervals.
const maxInterval = time.Hour

// resources are the resources of nodes that an agent sums up.
var resources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, "nvidia.com/gpu"}

// reportOf translates what an agent reports, without the time at which it arrived.
func reportOf(status v1beta1.ManagedClusterStatus) fleet.AgentStatus {
	nodes := status.NodeStatistics
	report := fleet.AgentStatus{
		Version:           registration.Brief(status.AgentVersion),
		KubernetesVersion: registration.Brief(status.KubernetesVersion),
		Nodes: &fleet.AgentNodes{
			Count: int(nodes.ReadyNodes) + int(nodes.NotReadyNodes) + int(nodes.UnknownNodes) + int(nodes.LostNodes),
			Ready: int(nodes.ReadyNodes),
		},
		Capacity:    known(status.Capacity),
		Allocatable: known(status.Allocatable),
		APIServer:   &fleet.AgentAPIServer{Ready: status.Readyz},
	}
	if seconds := status.HeartbeatFrequencySeconds; seconds != nil && *seconds > 0 {
		interval := maxInterval
		if *seconds < int64(maxInterval/time.Second) {
			interval = time.Duration(*seconds) * time.Second
		}
		report.CheckinInterval = &metav1.Duration{Duration: interval}
	}
	return report
}

// known omits quantities that the status of a Cluster does not admit: the hub would otherwise repeat a write that the API server refuses.
func known(sent corev1.ResourceList) corev1.ResourceList {
	var list corev1.ResourceList
	for _, name := range resources {
		if quantity, found := sent[name]; found && len(quantity.String()) <= fleetstatus.MaxQuantity {
			if list == nil {
				list = corev1.ResourceList{}
			}
			list[name] = quantity
		}
	}
	return list
}

// sentHeartbeat identifies one heartbeat. The agent's clock sets both times, so the hub only tests whether they are equal to earlier ones.
type sentHeartbeat struct{ observed, ready time.Time }

// heartbeatOf returns the heartbeat in a status. ok is false if there is none, or if condition Ready is Unknown, which the hub sets while the agent
// is disconnected.
func heartbeatOf(status v1beta1.ManagedClusterStatus) (beat sentHeartbeat, ok bool) {
	ready := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady)
	switch {
	case status.LastObservedTime.IsZero() && ready == nil, ready != nil && ready.Status == metav1.ConditionUnknown:
		return sentHeartbeat{}, false
	case ready != nil:
		beat.ready = ready.LastTransitionTime.UTC()
	}
	beat.observed = status.LastObservedTime.UTC()
	return beat, true
}
