package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/apis/internal/readable"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=mcls,categories=clusternet
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="CLUSTER ID",type=string,JSONPath=`.spec.clusterId`
// +kubebuilder:printcolumn:name="CLUSTER TYPE",type=string,JSONPath=`.spec.clusterType`,priority=100
// +kubebuilder:printcolumn:name="SYNC MODE",type=string,JSONPath=`.spec.syncMode`
// +kubebuilder:printcolumn:name="KUBERNETES",type=string,JSONPath=`.status.k8sVersion`
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="AGENT VERSION",type=string,JSONPath=`.status.agentVersion`,priority=100

// ManagedCluster is the object to which a Clusternet agent reports. The hub creates it in the cluster namespace, and copies the report
// to the status of the Cluster.
type ManagedCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is set by the hub.
	// +required
	Spec ManagedClusterSpec `json:"spec"`
	// Status is set by the agent at every heartbeat. Fields that the hub does not use are kept.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status ManagedClusterStatus `json:"status,omitempty"`
}

// UnmarshalJSON reads a ManagedCluster and omits values of its agent that cannot be decoded.
func (m *ManagedCluster) UnmarshalJSON(data []byte) error {
	type plain ManagedCluster
	_, err := readable.Unmarshal(data, (*plain)(m), "status.capacity.*", "status.allocatable.*")
	return err
}

// ManagedClusterSpec is what Clusternet's own hub says about a cluster. Agents ignore it.
type ManagedClusterSpec struct {
	// ClusterID is set by the hub to the clientID of the Cluster.
	// +required
	ClusterID string `json:"clusterId"`

	// ClusterType is not set by this hub, which ignores the type that the agent asked for.
	// +optional
	ClusterType string `json:"clusterType,omitempty"`

	// SyncMode is set by the hub to Pull.
	// +required
	// +kubebuilder:validation:Enum=Push;Pull;Dual
	SyncMode string `json:"syncMode"`
}

// ConditionReady is the condition of a ManagedCluster that its agent sets at every heartbeat, and that the hub sets to Unknown when the
// agent is disconnected.
const ConditionReady = "Ready"

// ReasonClusterStatusUnknown is the reason of ConditionReady of a disconnected agent.
const ReasonClusterStatusUnknown = "ClusterStatusUnknown"

// ManagedClusterStatus is the heartbeat of a Clusternet agent, as far as the hub uses it.
// +kubebuilder:pruning:PreserveUnknownFields
type ManagedClusterStatus struct {
	// LastObservedTime is set by the agent to the time, by its own clock, at which it collected this status.
	// +optional
	// +nullable
	LastObservedTime metav1.Time `json:"lastObservedTime,omitempty"`

	// KubernetesVersion is set by the agent to the version of its cluster's API server.
	// +optional
	KubernetesVersion string `json:"k8sVersion,omitempty"`

	// AgentVersion is set by the agent to its own version.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`

	// Healthz is set by the agent to whether /healthz of its cluster's API server succeeds.
	// +optional
	Healthz bool `json:"healthz"`

	// Livez is set by the agent to whether /livez succeeds.
	// +optional
	Livez bool `json:"livez"`

	// Readyz is set by the agent to whether /readyz succeeds.
	// +optional
	Readyz bool `json:"readyz"`

	// Allocatable is set by the agent to the sum of the resources that pods may use on its cluster's nodes.
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`

	// Capacity is set by the agent to the sum of the resources of its cluster's nodes.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// NodeStatistics is set by the agent to the number of its cluster's nodes by state.
	// +optional
	NodeStatistics NodeStatistics `json:"nodeStatistics,omitempty"`

	// HeartbeatFrequencySeconds is set by the agent to the time between two heartbeats.
	// +optional
	HeartbeatFrequencySeconds *int64 `json:"heartbeatFrequencySeconds,omitempty"`

	// Conditions has the condition Ready.
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeStatistics counts the nodes of a cluster.
// +kubebuilder:pruning:PreserveUnknownFields
type NodeStatistics struct {
	// ReadyNodes is set by the agent to the number of nodes whose condition Ready is True.
	// +optional
	ReadyNodes int32 `json:"readyNodes,omitempty"`

	// NotReadyNodes is set by the agent to the number of nodes whose condition Ready is False.
	// +optional
	NotReadyNodes int32 `json:"notReadyNodes,omitempty"`

	// UnknownNodes is set by the agent to the number of nodes whose condition Ready is Unknown.
	// +optional
	UnknownNodes int32 `json:"unknownNodes,omitempty"`

	// LostNodes is set by the agent to the number of nodes without condition Ready.
	// +optional
	LostNodes int32 `json:"lostNodes,omitempty"`
}
