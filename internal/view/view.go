// Package view says in a word or two what the hub's objects say in many conditions, for the command line and the demo.
package view

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// The ways in which a cluster gets to the hub.
const (
	WayManager = "manager" // the hub was given a kubeconfig and installs the agent
	WayAgent   = "agent"   // a person installed the agent with a token
	WayLocal   = "local"   // the hub's own cluster
)

// States of a Cluster and of a ClusterRegistrationToken.
const (
	StateRegistered      = "Registered"
	StateOffline         = "Offline" // registered, and not heard of for too long
	StateWaitingForAgent = "WaitingForAgent"
	StateImporting       = "Importing"
	StateImportFailed    = "ImportFailed"
	StateRefused         = "Refused"
	StateFailed          = "Failed"
	StateManaged         = "ManagedElsewhere"
	StateDeleting        = "Deleting"
	StateNew             = "New" // the hub has not looked at it yet
	StateReady           = "Ready"
	StateWaiting         = "Waiting"
	StateQuarantined     = "Quarantined" // a person has cut the agent off
	StateUsedUp          = "UsedUp"      // a token that may register no more clusters
)

// Cluster is a Cluster as a person sees it.
type Cluster struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	WayIn     string       `json:"wayIn"`
	State     string       `json:"state"`
	Reason    string       `json:"reason,omitempty"`
	Message   string       `json:"message,omitempty"`
	LastSeen  *metav1.Time `json:"lastSeen,omitempty"`
	// Bundles is how many of its Bundles are ready, such as "2/2".
	Bundles string `json:"bundles,omitempty"`
	// Agent and Kubernetes are the versions that the agent reports.
	Agent      string `json:"agent,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
}

// notLookedAt is the message of StateNew.
const notLookedAt = "the hub has not looked at it yet: is a fleet-controller running?"

// OfCluster condenses a Cluster.
func OfCluster(c *fleet.Cluster) Cluster {
	v := Cluster{
		Namespace: c.Namespace, Name: c.Name, WayIn: wayIn(c),
		Bundles: c.Status.Display.ReadyBundles, Agent: c.Status.Agent.Version, Kubernetes: c.Status.Agent.KubernetesVersion,
	}
	v.State, v.Reason, v.Message = clusterState(c)
	if !c.Status.Agent.LastSeen.IsZero() {
		v.LastSeen = c.Status.Agent.LastSeen.DeepCopy()
	}
	return v
}

// setIDAnnotation and bootstrapSet are how the hub marks the Cluster it made for itself.
const (
	setIDAnnotation = "objectset.rio.cattle.io/id"
	bootstrapSet    = "fleet-bootstrap"
	localName       = "local"
	localNamespace  = "fleet-local"
)

func wayIn(c *fleet.Cluster) string {
	switch {
	case c.Annotations[setIDAnnotation] == bootstrapSet, c.Name == localName && c.Namespace == localNamespace:
		return WayLocal
	case c.Spec.KubeConfigSecret != "":
		return WayManager
	default:
		return WayAgent
	}
}

// clusterState is the first of these that applies. The reason is that of the condition which decides; of a registered
// cluster, that of a condition which is not as it should be.
func clusterState(c *fleet.Cluster) (state, reason, message string) {
	conditions := c.Status.Conditions
	processed, imported := find(conditions, fleet.ConditionProcessed), find(conditions, fleet.ConditionImported)
	registered, connected := find(conditions, fleet.ConditionRegistered), find(conditions, fleet.ConditionConnected)
	switch {
	case c.DeletionTimestamp != nil:
		return StateDeleting, "", ""
	case c.Labels[fleet.ClusterManagementLabel] != "":
		return StateManaged, "", "label " + fleet.ClusterManagementLabel + " hands it to another controller"
	case c.Spec.Quarantined && registered != nil && registered.Reason == fleet.ReasonQuarantined:
		return StateQuarantined, registered.Reason, registered.Message
	case c.Spec.Quarantined:
		return StateQuarantined, "", "the hub has not applied the quarantine yet"
	case is(registered, corev1.ConditionTrue) && is(connected, corev1.ConditionFalse):
		return StateOffline, connected.Reason, connected.Message
	case is(registered, corev1.ConditionTrue):
		reason, message = trouble(processed, imported)
		return StateRegistered, reason, message
	case is(processed, corev1.ConditionFalse):
		return StateFailed, processed.Reason, processed.Message
	case is(imported, corev1.ConditionFalse):
		return StateImportFailed, imported.Reason, imported.Message
	case is(imported, corev1.ConditionUnknown):
		return StateImporting, imported.Reason, imported.Message
	case is(registered, corev1.ConditionFalse):
		return StateRefused, registered.Reason, registered.Message
	case registered != nil:
		return StateWaitingForAgent, registered.Reason, registered.Message
	}
	return StateNew, "", notLookedAt
}

func trouble(conditions ...*genericcondition.GenericCondition) (reason, message string) {
	for _, c := range conditions {
		if c != nil && !is(c, corev1.ConditionTrue) {
			return c.Reason, c.Message
		}
	}
	return "", ""
}

func find(conditions []genericcondition.GenericCondition, kind string) *genericcondition.GenericCondition {
	i := slices.IndexFunc(conditions, func(c genericcondition.GenericCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &conditions[i]
}

func is(c *genericcondition.GenericCondition, status corev1.ConditionStatus) bool {
	return c != nil && c.Status == status
}

// Token is a ClusterRegistrationToken as a person sees it.
type Token struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	TTL       string       `json:"ttl,omitempty"`
	Expires   *metav1.Time `json:"expires,omitempty"`
	Secret    string       `json:"secret,omitempty"`
	// Uses is how many requests were granted with it, and UsageLimit how many may be; nil means any number.
	Uses        int64        `json:"uses"`
	UsageLimit  *int32       `json:"usageLimit,omitempty"`
	LastUsed    *metav1.Time `json:"lastUsed,omitempty"`
	LastCluster string       `json:"lastCluster,omitempty"`
	// ClientIDs and ClientIDPattern are the only identities it registers; without any, it registers all.
	ClientIDs       []string          `json:"clientIDs,omitempty"`
	ClientIDPattern string            `json:"clientIDPattern,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Approval        string            `json:"approval,omitempty"`
	State           string            `json:"state"`
	Reason          string            `json:"reason,omitempty"`
	Message         string            `json:"message,omitempty"`
}

// UsesText is "3", or "3/10" where there is a limit.
func (t Token) UsesText() string {
	if t.UsageLimit == nil {
		return strconv.FormatInt(t.Uses, 10)
	}
	return fmt.Sprintf("%d/%d", t.Uses, *t.UsageLimit)
}

// OfToken condenses a ClusterRegistrationToken.
func OfToken(t *fleet.ClusterRegistrationToken) Token {
	v := Token{
		Namespace: t.Namespace, Name: t.Name, Expires: t.Status.Expires, Secret: t.Status.SecretName,
		Uses: t.Status.Uses, UsageLimit: t.Spec.UsageLimit, LastUsed: t.Status.LastUsed, LastCluster: t.Status.LastCluster,
		ClientIDs: t.Spec.ClientIDs, ClientIDPattern: t.Spec.ClientIDPattern, Labels: t.Spec.Labels, Approval: string(t.Spec.Approval),
	}
	if t.Spec.TTL != nil && t.Spec.TTL.Duration > 0 {
		v.TTL = t.Spec.TTL.Duration.String()
	}
	v.State, v.Reason, v.Message = tokenState(t)
	return v
}

func tokenState(t *fleet.ClusterRegistrationToken) (state, reason, message string) {
	ready := find(t.Status.Conditions, fleet.ConditionReady)
	switch {
	case t.DeletionTimestamp != nil:
		return StateDeleting, "", ""
	case t.Spec.UsageLimit != nil && t.Status.Uses >= int64(*t.Spec.UsageLimit):
		return StateUsedUp, fleet.ReasonTokenUsedUp, ""
	case ready == nil && t.Status.SecretName != "":
		return StateReady, "", "" // a hub that writes no conditions
	case ready == nil:
		return StateNew, "", notLookedAt
	case is(ready, corev1.ConditionTrue):
		return StateReady, "", ""
	case is(ready, corev1.ConditionFalse):
		return StateFailed, ready.Reason, ready.Message
	}
	return StateWaiting, ready.Reason, ready.Message
}
