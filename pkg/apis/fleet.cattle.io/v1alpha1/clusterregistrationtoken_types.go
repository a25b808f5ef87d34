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
// +kubebuilder:printcolumn:name="Secret-Name",type=string,JSONPath=`.status.secretName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.status!="True")].reason`
// +kubebuilder:printcolumn:name="Uses",type=integer,JSONPath=`.status.uses`
// +kubebuilder:printcolumn:name="Limit",type=integer,JSONPath=`.spec.usageLimit`,priority=1
// +kubebuilder:printcolumn:name="Last-Cluster",type=string,JSONPath=`.status.lastCluster`,priority=1
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.status.expires`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`

// ClusterRegistrationToken is the permission to register clusters in its namespace. A person creates it to install
// agents by hand; the hub creates one for each cluster it imports.
type ClusterRegistrationToken struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is set by the creator of the token.
	// +optional
	Spec ClusterRegistrationTokenSpec `json:"spec,omitempty"`
	// Status is set by the hub.
	// +optional
	Status ClusterRegistrationTokenStatus `json:"status,omitempty"`

	// Undecodable is set by decoding to the fields of the spec whose values cannot be decoded, such as "spec.ttl", separated by ", ";
	// it is empty if all can be decoded. The CustomResourceDefinition of Fleet admits any text as a ttl. Such a token grants nothing: a
	// limit that its creator has set is not known. The hub does not delete it, because its creator may correct it.
	Undecodable string `json:"-"`

	// Excess is not part of the API: in the caches of the hub it says that parts were dropped because the workspace has no room for them.
	Excess MemoryExcess `json:"-"`
}

// Approval is the approval mode of the requests with a token.
// +kubebuilder:validation:Enum=Auto;Manual
type Approval string

const (
	// ApprovalAuto grants requests that no other check refuses.
	ApprovalAuto Approval = "Auto"
	// ApprovalManual makes requests wait until a person or the hub's policy approves them.
	ApprovalManual Approval = "Manual"
)

// LongLived decides about agents that do not renew their credential.
// +kubebuilder:validation:Enum=Allow;Refuse
type LongLived string

const (
	// LongLivedAllow gives them a credential for ten years, or one that does not expire.
	LongLivedAllow LongLived = "Allow"
	// LongLivedRefuse refuses their requests.
	LongLivedRefuse LongLived = "Refuse"
)

// ClusterRegistrationTokenSpec limits the lifetime and the use of a token. Each limit is optional; without limits a token
// registers any number of clusters with any identity.
type ClusterRegistrationTokenSpec struct {
	// TTL is set by the creator of the token to its lifetime from its creation; the hub deletes it afterwards. It is a Go duration
	// such as "240h" or "30m". Absent or "0" means that it does not expire.
	// +optional
	// +nullable
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == '0' || (self.matches('^([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))*$') && duration(self) <= duration('2562047h'))",message="ttl must be '0' or a Go duration such as '240h' or '30m'; units d and w are not known"
	TTL *metav1.Duration `json:"ttl,omitempty"`

	// UsageLimit is set by the creator of the token to the maximum number of granted requests, including
	// re-registrations. Absent means any number.
	// +optional
	// +nullable
	// +kubebuilder:validation:Minimum=1
	UsageLimit *int32 `json:"usageLimit,omitempty"`

	// ClientIDs is set by the creator of the token to the only identities it registers. A token with exactly one is made for the
	// Cluster with that identity: it may register an agent for that Cluster even if another agent holds the identity. Empty means
	// any, unless ClientIDPattern is set.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=4096
	ClientIDs []string `json:"clientIDs,omitempty"`

	// ClientIDPattern is set by the creator of the token to a pattern of identities it registers in addition to ClientIDs:
	// a shell pattern of "*", "?" and "[...]", such as "edge-*". Empty means no others, or any if ClientIDs is empty too.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxLength=512
	ClientIDPattern string `json:"clientIDPattern,omitempty"`

	// Labels is set by the creator of the token to labels of every Cluster created by a request with it. They override
	// the agent's labels.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]string `json:"labels,omitempty"`

	// AllowedLabelKeys is set by the creator of the token to the keys of the labels that agents may choose for the Clusters they
	// register with it. Other labels of an agent are dropped. A list, even an empty one, is used as it is; if absent, the hub's
	// configuration applies (registration.agentLabels). It does not apply to Labels.
	// +optional
	// +nullable
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=317
	AllowedLabelKeys *[]string `json:"allowedLabelKeys,omitempty"`

	// LongLivedCredentials is set by the creator of the token to whether agents that do not renew their credential get one for ten
	// years, or one that does not expire; if absent, the hub's configuration applies (registration.longLivedCredentials).
	// +optional
	// +nullable
	LongLivedCredentials LongLived `json:"longLivedCredentials,omitempty"`

	// Approval is set by the creator of the token to Manual if its requests must wait for an approval; if absent, the
	// hub's configuration applies (registration.approval).
	// +optional
	// +nullable
	Approval Approval `json:"approval,omitempty"`
}

// ClusterRegistrationTokenStatus is the state of a token, reported by the hub.
type ClusterRegistrationTokenStatus struct {
	// Expires is set by the hub to the expiry time of the token. Absent means never.
	// +optional
	Expires *metav1.Time `json:"expires,omitempty"`

	// SecretName is set by the hub, once the token can be used, to the Secret in the token's namespace whose key "values"
	// is a values file for the chart fleet-agent. The status of the token of an import is set with the first use.
	// +optional
	// +nullable
	SecretName string `json:"secretName,omitempty"`

	// Uses is set by the hub to the number of requests it has granted, or is granting, with the token. It counts each
	// request once.
	// +optional
	Uses int64 `json:"uses,omitempty"`

	// PendingUses is set by the hub to the UIDs of the requests that Uses includes and whose own status does not record the use
	// yet. With it, a crash of the hub leads neither to a double count nor to a lost one.
	// +optional
	// +nullable
	PendingUses []string `json:"pendingUses,omitempty"`

	// LastUsed is set by the hub to the time of the last counted use.
	// +optional
	LastUsed *metav1.Time `json:"lastUsed,omitempty"`

	// LastCluster is set by the hub to the name of the Cluster, in the token's namespace, of the last counted use.
	// +optional
	// +nullable
	LastCluster string `json:"lastCluster,omitempty"`

	// Conditions are set by the hub whenever they change: Ready, with the reason while the token cannot be used; PoliciesInForce,
	// WithinLimits, RequestsAccepted and LabelsLimited, see the constants of each.
	// +optional
	Conditions []genericcondition.GenericCondition `json:"conditions,omitempty"`
}
