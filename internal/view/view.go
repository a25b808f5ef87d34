// Package view summarizes Clusters, registration requests and tokens in a state and a reason, for the command line, the page and the demo.
package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// The ways in which a cluster is registered.
const (
	WayManager = "manager" // the hub installs the agent with a kubeconfig
	WayAgent   = "agent"   // a person installs the agent with a token
	WayLocal   = "local"   // the hub's own cluster
)

// The states of Clusters, ClusterRegistrations and ClusterRegistrationTokens.
const (
	StateRegistered      = "Registered"
	StateOffline         = "Offline" // registered, without a heartbeat for too long
	StateWaitingForAgent = "WaitingForAgent"
	StateImporting       = "Importing"
	StateImportFailed    = "ImportFailed"
	StateRefused         = "Refused"
	StateFailed          = "Failed"
	StateManaged         = "ManagedElsewhere"
	StateDeleting        = "Deleting"
	StateNew             = "New" // the hub has not processed it yet
	StateReady           = "Ready"
	StateWaiting         = "Waiting"
	StateQuarantined     = "Quarantined" // spec.quarantined is set: the agent has no rights
	StateUsedUp          = "UsedUp"      // the token has reached its usage limit
	StateGranted         = "Granted"     // the hub has granted the request
)

// ClusterStates are the states of a Cluster: first the good states, then the states that change without help, then the states that need a
// person.
var ClusterStates = []string{
	StateRegistered, StateManaged, StateDeleting, StateWaitingForAgent, StateImporting, StateNew,
	StateQuarantined, StateOffline, StateImportFailed, StateFailed, StateRefused,
}

// Cluster is the summary of a Cluster.
type Cluster struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	WayIn     string `json:"wayIn"`
	State     string `json:"state"`
	Reason    string `json:"reason,omitempty"`
	Message   string `json:"message,omitempty"`
	// LastSeen is the time of the last heartbeat by the agent's clock. OfCluster sets it to the copy in the status, which the hub writes only at
	// intervals while the agent renews a Lease; AddHeartbeats corrects it.
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
	// Bundles is READY/WANTED, such as "2/2". As in the status, a Bundle without a BundleDeployment does not count: then NotReady is set.
	Bundles string `json:"bundles,omitempty"`
	// Unapplied is the number of its Bundles whose current version the agent has not applied.
	Unapplied int `json:"unapplied,omitempty"`
	// NotReady is set if condition Ready is False: the hub could not deploy its Bundles, or some of them are not ready.
	NotReady bool `json:"notReady,omitempty"`
	// Settings is SettingsApplied or SettingsPending, or empty without an agent.
	Settings string `json:"settings,omitempty"`
	// Agent and Kubernetes are the versions that the agent reports.
	Agent      string `json:"agent,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
}

// notProcessed is the message of StateNew.
const notProcessed = "the hub has not processed it yet: is a fleet-controller running?"

// OfCluster summarizes a Cluster.
func OfCluster(c *fleet.Cluster) Cluster {
	c = c.DeepCopy()
	preserve.Restore(c)
	v := Cluster{
		Namespace: c.Namespace, Name: c.Name, WayIn: wayIn(c),
		Bundles: c.Status.Display.ReadyBundles, Agent: c.Status.Agent.Version, Kubernetes: c.Status.Agent.KubernetesVersion,
	}
	v.State, v.Reason, v.Message = clusterState(c)
	if !c.Status.Agent.LastSeen.IsZero() {
		v.LastSeen = c.Status.Agent.LastSeen.DeepCopy()
		v.Settings = settings(c)
	}
	v.Unapplied = c.Status.Summary.WaitApplied + c.Status.Summary.ErrApplied + c.Status.Summary.OutOfSync + c.Status.Summary.Pending
	v.NotReady = fleetstatus.IsFalse(c.Status.Conditions, fleet.ConditionReady)
	return v
}

// The values of Cluster.Settings.
const (
	SettingsApplied = "Applied"
	SettingsPending = "Pending"
)

// settings returns SettingsPending if the agent does not run yet with the settings from the spec of the Cluster and the hub's configuration.
func settings(c *fleet.Cluster) string {
	reconciled, status := fleetstatus.Condition(c.Status.Conditions, fleet.ConditionReconciled), c.Status
	switch {
	case status.AgentDeployedGeneration != nil && *status.AgentDeployedGeneration != c.Spec.RedeployAgentGeneration, // not installed again yet
		status.AgentConfigChanged,
		reconciled.Status == corev1.ConditionFalse, reconciled.Status == corev1.ConditionUnknown,
		status.Agent.Hub != nil && status.Agent.Hub.Pending != "",
		// The agent has not applied its Bundle.
		reconciled.Reason == fleet.ReasonReconciled && status.Agent.Generation != "" &&
			status.Agent.Generation != registration.ManagedGeneration(c.Spec.RedeployAgentGeneration):
		return SettingsPending
	}
	return SettingsApplied
}

// The Cluster of the hub's own cluster has this annotation with this value.
const (
	setIDAnnotation = "objectset.rio.cattle.io/id"
	bootstrapSet    = "fleet-bootstrap"
)

func wayIn(c *fleet.Cluster) string {
	switch {
	case c.Annotations[setIDAnnotation] == bootstrapSet, c.Name == "local" && c.Namespace == "fleet-local":
		return WayLocal
	case c.Spec.KubeConfigSecret != "":
		return WayManager
	default:
		return WayAgent
	}
}

// clusterState returns the first state that applies. Reason and message are from the condition that determines the state; for a registered
// cluster, from the first of Processed, Imported, ReleasesManaged and Ready that is not True; for a cluster that is offline, the reason is that of
// condition Imported if it is False.
func clusterState(c *fleet.Cluster) (state, reason, message string) {
	condition := func(kind string) genericcondition.GenericCondition {
		return fleetstatus.Condition(c.Status.Conditions, kind)
	}
	processed, imported := condition(fleet.ConditionProcessed), condition(fleet.ConditionImported)
	registered, connected := condition(fleet.ConditionRegistered), condition(fleet.ConditionConnected)
	switch {
	case c.DeletionTimestamp != nil:
		if processed.Status == "" || processed.Status == corev1.ConditionTrue {
			return StateDeleting, "", "the hub has not reported about the removal; without a running hub, the Cluster remains"
		}
		return StateDeleting, processed.Reason, processed.Message
	case c.Labels[fleet.ClusterManagementLabel] != "":
		return StateManaged, "", "label " + fleet.ClusterManagementLabel + " assigns it to another controller"
	case c.Spec.Quarantined && registered.Reason == fleet.ReasonQuarantined:
		return StateQuarantined, registered.Reason, registered.Message
	case c.Spec.Quarantined:
		return StateQuarantined, "", "the hub has not applied the quarantine yet"
	case registered.Status == corev1.ConditionTrue && connected.Status == corev1.ConditionFalse && imported.Status == corev1.ConditionFalse:
		// Why the hub cannot reach the member is usually why its agent is silent, and the state already says that it is.
		return StateOffline, imported.Reason, connected.Message + "; " + imported.Message
	case registered.Status == corev1.ConditionTrue && connected.Status == corev1.ConditionFalse:
		return StateOffline, connected.Reason, connected.Message
	case registered.Status == corev1.ConditionTrue:
		for _, c := range []genericcondition.GenericCondition{processed, imported, condition(fleet.ConditionReleasesManaged), condition(fleet.ConditionReady)} {
			if c.Status == corev1.ConditionFalse || c.Status == corev1.ConditionUnknown {
				return StateRegistered, c.Reason, c.Message
			}
		}
		return StateRegistered, "", ""
	case processed.Status == corev1.ConditionFalse:
		return StateFailed, processed.Reason, processed.Message
	case imported.Status == corev1.ConditionFalse:
		return StateImportFailed, imported.Reason, imported.Message
	case imported.Status == corev1.ConditionUnknown:
		return StateImporting, imported.Reason, imported.Message
	case registered.Status == corev1.ConditionFalse:
		return StateRefused, registered.Reason, registered.Message
	case registered.Status != "":
		return StateWaitingForAgent, registered.Reason, registered.Message
	case processed.Status == corev1.ConditionUnknown: // such as NamespaceDeleting
		return StateNew, processed.Reason, processed.Message
	}
	if wayIn(c) != WayAgent && slices.Contains(c.Finalizers, fleet.ClusterFinalizer) {
		return StateImporting, "", "the hub has begun the import; it writes the first status when the import ends, or after ten seconds"
	}
	return StateNew, "", notProcessed
}

// Token is the summary of a ClusterRegistrationToken.
type Token struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	TTL       string       `json:"ttl,omitempty"`
	Expires   *metav1.Time `json:"expires,omitempty"`
	Secret    string       `json:"secret,omitempty"`
	// Uses is the number of requests that the token has registered. UsageLimit is the maximum; nil means no maximum.
	Uses        int64        `json:"uses"`
	UsageLimit  *int32       `json:"usageLimit,omitempty"`
	LastUsed    *metav1.Time `json:"lastUsed,omitempty"`
	LastCluster string       `json:"lastCluster,omitempty"`
	// ClientIDs and ClientIDPattern are the identities that can be registered with the token; if both are empty, any can.
	ClientIDs       []string          `json:"clientIDs,omitempty"`
	ClientIDPattern string            `json:"clientIDPattern,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	// AllowedLabelKeys are the keys of labels that agents may choose; nil means that the configuration of the hub decides.
	AllowedLabelKeys *[]string `json:"allowedLabelKeys,omitempty"`
	// LongLivedCredentials and Approval are empty if the configuration of the hub decides.
	LongLivedCredentials string `json:"longLivedCredentials,omitempty"`
	Approval             string `json:"approval,omitempty"`
	State                string `json:"state"`
	Reason               string `json:"reason,omitempty"`
	Message              string `json:"message,omitempty"`
}

// UsesText returns "3", or "3/10" if there is a limit.
func (t Token) UsesText() string {
	if t.UsageLimit == nil {
		return strconv.FormatInt(t.Uses, 10)
	}
	return fmt.Sprintf("%d/%d", t.Uses, *t.UsageLimit)
}

// OfToken summarizes a ClusterRegistrationToken.
func OfToken(t *fleet.ClusterRegistrationToken) Token {
	v := Token{
		Namespace: t.Namespace, Name: t.Name, Expires: t.Status.Expires, Secret: t.Status.SecretName,
		Uses: t.Status.Uses, UsageLimit: t.Spec.UsageLimit, LastUsed: t.Status.LastUsed, LastCluster: t.Status.LastCluster,
		ClientIDs: t.Spec.ClientIDs, ClientIDPattern: t.Spec.ClientIDPattern, Labels: t.Spec.Labels,
		AllowedLabelKeys: t.Spec.AllowedLabelKeys, LongLivedCredentials: string(t.Spec.LongLivedCredentials), Approval: string(t.Spec.Approval),
	}
	if t.Spec.TTL != nil && t.Spec.TTL.Duration > 0 {
		v.TTL = t.Spec.TTL.Duration.String()
	}
	if end, limited := registration.Expires(t); limited && v.Expires == nil && registration.IsImportToken(t) {
		v.Expires = &metav1.Time{Time: end}
	}
	v.State, v.Reason, v.Message = tokenState(t)
	return v
}

func tokenState(t *fleet.ClusterRegistrationToken) (state, reason, message string) {
	ready := fleetstatus.Condition(t.Status.Conditions, fleet.ConditionReady)
	switch {
	case t.DeletionTimestamp != nil:
		return StateDeleting, "", ""
	case t.Undecodable != "" && ready.Status == "": // the CustomResourceDefinition of Fleet has no conditions
		return StateFailed, fleet.ReasonTokenInvalid, t.Undecodable + " cannot be decoded; correct it"
	case t.Spec.UsageLimit != nil && t.Status.Uses >= int64(*t.Spec.UsageLimit):
		return StateUsedUp, fleet.ReasonTokenUsedUp, ""
	case ready.Status == "" && t.Status.SecretName != "":
		return StateReady, "", "" // from a hub that writes no conditions, such as Fleet's
	case ready.Status == "" && registration.IsImportToken(t):
		return StateReady, "", "" // the hub writes the status when an agent registers with the token
	case ready.Status == "":
		return StateNew, "", notProcessed
	case ready.Status == corev1.ConditionTrue:
		for _, kind := range []string{fleet.ConditionRequestsAccepted, fleet.ConditionWithinLimits} {
			if c := fleetstatus.Condition(t.Status.Conditions, kind); c.Status == corev1.ConditionFalse {
				return StateReady, c.Reason, c.Message
			}
		}
		return StateReady, "", ""
	case ready.Status == corev1.ConditionFalse:
		return StateFailed, ready.Reason, ready.Message
	}
	return StateWaiting, ready.Reason, ready.Message
}

// Request is the summary of a ClusterRegistration.
type Request struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Cluster is the Cluster that the request belongs to, or the one that the hub would create for it.
	Cluster  string `json:"cluster"`
	ClientID string `json:"clientID"`
	// Token is the ClusterRegistrationToken that the request names. Creator is the user that created the request, as recorded by the API server;
	// if the hub created it for another object, the user that created that object.
	Token   string            `json:"token,omitempty"`
	Creator string            `json:"creator,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	State   string            `json:"state"`
	Reason  string            `json:"reason,omitempty"`
	Message string            `json:"message,omitempty"`
	Created *metav1.Time      `json:"created,omitempty"`
}

// LabelsText returns the labels that the agent requests for its Cluster, such as "env=prod,region=eu", shortened.
func (r Request) LabelsText() string { return fleetstatus.Cut(labels.Set(r.Labels).String(), 400) }

// OfRequest summarizes a ClusterRegistration.
func OfRequest(r *fleet.ClusterRegistration) Request {
	v := Request{
		Namespace: r.Namespace, Name: r.Name, Cluster: clusterOf(r), ClientID: r.Spec.ClientID,
		Token: r.Labels[fleet.RegistrationTokenLabel], Creator: creatorOf(r),
		Labels: r.Spec.ClusterLabels,
	}
	if !r.CreationTimestamp.IsZero() {
		v.Created = r.CreationTimestamp.DeepCopy()
	}
	v.State, v.Reason, v.Message = requestState(r)
	return v
}

// creatorOf returns the user that created r, from the annotation in which the API server has recorded it. If the hub created r for an object of
// another user, RequesterAnnotation names that user. Other users can write that annotation too, so it counts only if condition OriginProved,
// which only the hub writes, names the same user.
func creatorOf(r *fleet.ClusterRegistration) string {
	requester, proved := r.Annotations[fleet.RequesterAnnotation], fleetstatus.Condition(r.Status.Conditions, fleet.ConditionOriginProved)
	if requester != "" && proved.Status == corev1.ConditionTrue && proved.Message == registration.CreatedBy(requester) {
		return requester
	}
	return r.Annotations[fleet.CreatorAnnotation]
}

func clusterOf(r *fleet.ClusterRegistration) string {
	if r.Status.ClusterName != "" {
		return r.Status.ClusterName
	}
	for _, owner := range r.OwnerReferences {
		if owner.Kind == "Cluster" {
			return owner.Name
		}
	}
	return registration.ClusterName(r.Spec.ClientID)
}

// IsAbout reports whether r is a request for the Cluster with this name. cluster is that Cluster, which can have another name than the one that the hub
// derives from a clientID. If it is nil, there is no such Cluster, and the name can also be that of the request. Otherwise the name of the request does
// not count: its creator chooses it.
func IsAbout(r *fleet.ClusterRegistration, name string, cluster *fleet.Cluster) bool {
	if cluster == nil {
		return r.Name == name || clusterOf(r) == name
	}
	return clusterOf(r) == name || cluster.Spec.ClientID != "" && r.Spec.ClientID == cluster.Spec.ClientID
}

func requestState(r *fleet.ClusterRegistration) (state, reason, message string) {
	granted := fleetstatus.Condition(r.Status.Conditions, fleet.ConditionGranted)
	switch {
	case r.DeletionTimestamp != nil:
		return StateDeleting, "", ""
	case granted.Status == "" && r.Status.Granted, granted.Status == corev1.ConditionTrue:
		return StateGranted, "", ""
	case granted.Status == "":
		return StateNew, "", notProcessed
	case granted.Status == corev1.ConditionFalse && granted.Reason != fleet.ReasonError: // after an error, the hub decides again
		return StateRefused, granted.Reason, granted.Message
	}
	return StateWaiting, granted.Reason, granted.Message
}

// noValue is printed for an empty cell.
const noValue = "-"

// Table returns a table for the printers of kubectl. The columns in wideHeader come last, and are printed only in wide output.
func Table(header, wideHeader []string, rows [][]string) *metav1.Table {
	table := &metav1.Table{}
	for i, name := range slices.Concat(header, wideHeader) {
		column := metav1.TableColumnDefinition{Name: name, Type: "string"}
		if i >= len(header) {
			column.Priority = 1
		}
		table.ColumnDefinitions = append(table.ColumnDefinitions, column)
	}
	for _, row := range rows {
		cells := make([]any, len(row))
		for i, cell := range row {
			cells[i] = Printable(cell)
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: cells})
	}
	return table
}

// PrintTable prints a table whose columns have these names.
func PrintTable(w io.Writer, header []string, rows [][]string) error {
	return printers.NewTablePrinter(printers.PrintOptions{}).PrintObj(Table(header, nil, rows), w)
}

// Printable makes a text that an agent may have written safe to print in one line: it replaces line ends and the characters that a terminal
// would interpret.
func Printable(cell string) string {
	return cmp.Or(strings.TrimSpace(Visible(cell)), noValue)
}

// Visible replaces the characters of a text that a terminal would interpret, such as those that change the direction of writing, with spaces.
func Visible(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// Ago returns the time since t, such as "5s ago".
func Ago(t *metav1.Time, now time.Time) string {
	if t.IsZero() {
		return noValue
	}
	return duration.HumanDuration(max(0, now.Sub(t.Time))) + " ago"
}

// Until returns the time until t, such as "in 3m".
func Until(t *metav1.Time, now time.Time) string {
	switch {
	case t.IsZero():
		return "never"
	case !t.After(now):
		return "now"
	}
	return "in " + duration.HumanDuration(t.Sub(now))
}

// AddHeartbeats sets LastSeen from the Leases in the cluster namespace.
func (v *Cluster) AddHeartbeats(leases []coordinationv1.Lease) {
	if last := LastHeartbeat(v.LastSeen, leases); !last.IsZero() {
		v.LastSeen = &last
	}
}

// LastHeartbeat returns the time of the last heartbeat of a Cluster's agent, by the agent's clock; zero if there was none. inStatus is
// status.agent.lastSeen of the Cluster, and leases are those in its cluster namespace.
func LastHeartbeat(inStatus *metav1.Time, leases []coordinationv1.Lease) (last metav1.Time) {
	if inStatus != nil {
		last = *inStatus
	}
	for _, lease := range leases {
		if renewed := lease.Spec.RenewTime; renewed != nil && renewed.After(last.Time) {
			last = metav1.NewTime(renewed.Time)
		}
	}
	return last
}
