package v1alpha1

import (
	"github.com/rancher/wrangler/v3/pkg/genericcondition"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster-Name",type=string,JSONPath=`.status.clusterName`
// +kubebuilder:printcolumn:name="Granted",type=boolean,JSONPath=`.status.granted`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Granted")].reason`
// +kubebuilder:printcolumn:name="Approved",type=string,JSONPath=`.status.conditions[?(@.type=="Approved")].status`,priority=1
// +kubebuilder:printcolumn:name="Labels",type=string,JSONPath=`.spec.clusterLabels`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// ClusterRegistration is the request of an agent to become, or to remain, the agent of a Cluster. The agent creates it with the
// token from its bootstrap Secret. The hub grants or refuses it.
type ClusterRegistration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is set by the agent when it creates the request. It is immutable, because the hub decides on the request as it was
	// created. It is required, so that nobody can remove it and add it again with other values. A null, missing or empty field
	// has the same meaning, because clients differ in what they write.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.clientID) && has(oldSelf.clientID) && self.clientID == oldSelf.clientID || (!has(self.clientID) || dyn(self.clientID) == null || size(self.clientID) == 0) && (!has(oldSelf.clientID) || dyn(oldSelf.clientID) == null || size(oldSelf.clientID) == 0)",message="a ClusterRegistration cannot be changed; create a new one",fieldPath=".clientID"
	// +kubebuilder:validation:XValidation:rule="has(self.clientRandom) && has(oldSelf.clientRandom) && self.clientRandom == oldSelf.clientRandom || (!has(self.clientRandom) || dyn(self.clientRandom) == null || size(self.clientRandom) == 0) && (!has(oldSelf.clientRandom) || dyn(oldSelf.clientRandom) == null || size(oldSelf.clientRandom) == 0)",message="a ClusterRegistration cannot be changed; create a new one",fieldPath=".clientRandom"
	// +kubebuilder:validation:XValidation:rule="has(self.clusterLabels) && has(oldSelf.clusterLabels) && self.clusterLabels == oldSelf.clusterLabels || (!has(self.clusterLabels) || dyn(self.clusterLabels) == null || size(self.clusterLabels) == 0) && (!has(oldSelf.clusterLabels) || dyn(oldSelf.clusterLabels) == null || size(oldSelf.clusterLabels) == 0)",message="a ClusterRegistration cannot be changed; create a new one",fieldPath=".clusterLabels"
	Spec ClusterRegistrationSpec `json:"spec"`
	// Status is set by the hub when it decides.
	// +optional
	Status ClusterRegistrationStatus `json:"status,omitempty"`
}

// ClusterRegistrationSpec contains the claims of an agent about itself. The hub does not trust them.
type ClusterRegistrationSpec struct {
	// ClientID is set by the agent to the identity of its cluster: the configured clientID, or else the UID of the namespace
	// kube-system of the cluster.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxLength=4096
	ClientID string `json:"clientID,omitempty"`

	// ClientRandom is set by the agent to a random string. The name of the Secret with the answer of the hub is computed from
	// ClientID and ClientRandom.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxLength=4096
	ClientRandom string `json:"clientRandom,omitempty"`

	// ClusterLabels is set by the agent to its configured labels. The hub sets them on a Cluster that it creates, except labels
	// with reserved prefixes.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxProperties=1000
	ClusterLabels map[string]string `json:"clusterLabels,omitempty"`

	// TooLarge is not part of the API: in the caches of the hub it stands for labels or annotations that take too much memory.
	TooLarge bool `json:"-"`

	// Excess is not part of the API: in the caches of the hub it says that parts were dropped because the workspace has no room for them.
	Excess MemoryExcess `json:"-"`
}

// ClusterRegistrationStatus is the hub's answer to a request.
type ClusterRegistrationStatus struct {
	// ClusterName is set by the hub to the name of the Cluster to which the request belongs. It is in the namespace of the
	// request.
	// +optional
	// +nullable
	ClusterName string `json:"clusterName,omitempty"`

	// Granted is set to true by the hub once the answer Secret and the rights of the agent exist.
	// +optional
	Granted bool `json:"granted,omitempty"`

	// Approval is set by a user who may approve requests, through the status subresource, which agents may not write: with
	// "muster approve" or "muster deny", or with kubectl patch --subresource=status. The hub never writes it.
	// +optional
	// +nullable
	Approval *RegistrationApproval `json:"approval,omitempty"`

	// TokenUID is set by the hub to the UID of the ClusterRegistrationToken that has counted this request as a use.
	// +optional
	// +nullable
	TokenUID string `json:"tokenUID,omitempty"`

	// Conditions are set by the hub whenever its decision changes: Granted, with the reason when a request waits or was
	// refused; Approved, where an approval is needed; OriginProved.
	// +optional
	Conditions []genericcondition.GenericCondition `json:"conditions,omitempty"`
}

// Decision is the decision of a person about a request.
// +kubebuilder:validation:Enum=Approved;Denied
type Decision string

const (
	// DecisionApproved lets the hub grant the request. It replaces the proof that the agent may use the identity.
	DecisionApproved Decision = "Approved"
	// DecisionDenied refuses the request.
	DecisionDenied Decision = "Denied"
)

// RegistrationApproval is a person's decision about a request.
type RegistrationApproval struct {
	// Decision is set by the person.
	Decision Decision `json:"decision"`

	// Message is set by the person to the reason. The agent logs the reason of a denial.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
