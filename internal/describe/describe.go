// Package describe collects the objects of a cluster on its hub, and their history. It writes nothing and reads no Secret.
package describe

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/xlab/treeprint"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/muster-fleet/muster/internal/admin"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Description describes one cluster.
type Description struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Cluster is absent if there are only requests about it.
	Cluster    *view.Cluster                       `json:"cluster,omitempty"`
	Conditions []genericcondition.GenericCondition `json:"conditions,omitempty"`
	// CredentialExpires is the time that the agent reports; absent if its credential does not expire or it does not report it.
	CredentialExpires *metav1.Time `json:"credentialExpires,omitempty"`
	// CredentialDaysLeft is the number of whole days until then. It is negative if the credential has expired.
	CredentialDaysLeft *int `json:"credentialDaysLeft,omitempty"`
	// AgentNamespace is the namespace on the member that the agent or the spec names.
	AgentNamespace string `json:"agentNamespace,omitempty"`
	// Objects are the objects of the cluster, as a tree.
	Objects  []*Related `json:"objects"`
	Timeline []Happened `json:"timeline"`
	// Incomplete contains the errors of the requests that failed.
	Incomplete []string `json:"incomplete,omitempty"`
}

// Related is an object that belongs to the cluster.
type Related struct {
	Kind      string     `json:"kind"`
	Namespace string     `json:"namespace,omitempty"`
	Name      string     `json:"name"`
	State     string     `json:"state,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Message   string     `json:"message,omitempty"`
	Objects   []*Related `json:"objects,omitempty"`
}

// Happened is a line of the timeline: the creation of an object, a change of one of its conditions, or an event.
type Happened struct {
	Time metav1.Time `json:"time"`
	// AfterSeconds is the time since the previous line.
	AfterSeconds float64 `json:"afterSeconds"`
	Object       string  `json:"object"`
	What         string  `json:"what"`
	Message      string  `json:"message,omitempty"`
}

// NotFoundError says that there is neither a Cluster nor a request with a name.
type NotFoundError string

func (e NotFoundError) Error() string { return string(e) }

// Of describes the cluster with a name. An agent whose request waits or was refused may have no Cluster: then name is the name of the request, or
// of the Cluster that the hub would create. Of fails if there is neither.
func Of(ctx context.Context, hub *admin.Hub, namespace, name string, now time.Time) (*Description, error) {
	d := &Description{Namespace: namespace, Name: name, Objects: []*Related{}, Timeline: []Happened{}}
	cluster, err := hub.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		cluster = nil
	case err != nil:
		return nil, fmt.Errorf("Cluster %s/%s: %w", namespace, name, hub.Explain(err, namespace))
	default:
		preserve.Restore(cluster)
	}
	requests, err := requestsAbout(ctx, hub, namespace, name, cluster)
	if err != nil {
		return nil, fmt.Errorf("list ClusterRegistrations: %w", hub.Explain(err, namespace))
	}
	if cluster == nil && len(requests) == 0 {
		return nil, NotFoundError(fmt.Sprintf("there is no Cluster %s/%s, and no request about one: `muster%[3]s clusters -A` and `muster%[3]s requests -A` list all",
			namespace, name, hub.Flags))
	}

	if cluster != nil {
		summary := view.OfCluster(cluster)
		d.Cluster, d.Conditions = &summary, cluster.Status.Conditions
		d.AgentNamespace = cmp.Or(cluster.Status.Agent.Namespace, cluster.Spec.AgentNamespace)
		if expires := cluster.Status.Agent.CredentialExpires; expires != nil {
			d.CredentialExpires, d.CredentialDaysLeft = expires, new(int(expires.Sub(now).Hours()/24))
		}
		d.happenings(ctx, hub, "Cluster", cluster, cluster.Status.Conditions)
		if cluster.Spec.KubeConfigSecret != "" {
			d.Objects = append(d.Objects, &Related{
				Kind: "Secret", Namespace: cmp.Or(cluster.Spec.KubeConfigSecretNamespace, namespace), Name: cluster.Spec.KubeConfigSecret,
				Message: "the kubeconfig with which the hub installs the agent",
			})
		}
	}
	d.registrations(ctx, hub, requests)
	if cluster != nil {
		d.clusterNamespace(ctx, hub, cluster)
		d.agent(ctx, hub, cluster)
	}

	slices.SortStableFunc(d.Timeline, func(a, b Happened) int { return a.Time.Compare(b.Time.Time) })
	for i := range d.Timeline[min(1, len(d.Timeline)):] {
		d.Timeline[i+1].AfterSeconds = d.Timeline[i+1].Time.Sub(d.Timeline[i].Time.Time).Seconds()
	}
	return d, nil
}

// requestsAbout returns the requests about the cluster, the oldest first.
func requestsAbout(ctx context.Context, hub *admin.Hub, namespace, name string, cluster *fleet.Cluster) (found []*fleet.ClusterRegistration, err error) {
	found, err = admin.Collect(ctx, hub.Fleet.ClusterRegistrations(namespace).List, func(r *fleet.ClusterRegistration) (*fleet.ClusterRegistration, bool) {
		return r, view.IsAbout(r, name, cluster)
	})
	slices.SortFunc(found, func(a, b *fleet.ClusterRegistration) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return found, err
}

// registrations adds the requests, each below the token that it names.
func (d *Description) registrations(ctx context.Context, hub *admin.Hub, requests []*fleet.ClusterRegistration) {
	tokens := map[string]*Related{}
	for _, r := range requests {
		v := view.OfRequest(r)
		related := &Related{Kind: "ClusterRegistration", Namespace: r.Namespace, Name: r.Name, State: v.State, Reason: v.Reason, Message: v.Message}
		if len(v.Labels) > 0 && v.State != view.StateGranted {
			related.Message = strings.TrimPrefix(v.Message+"; the agent requests the labels "+v.LabelsText(), "; ")
		}
		d.happenings(ctx, hub, "ClusterRegistration", r, r.Status.Conditions)
		if v.Token == "" {
			d.Objects = append(d.Objects, related)
			continue
		}
		if tokens[v.Token] == nil {
			tokens[v.Token] = d.token(ctx, hub, r.Namespace, v.Token)
			d.Objects = append(d.Objects, tokens[v.Token])
		}
		tokens[v.Token].Objects = append(tokens[v.Token].Objects, related)
	}
}

func (d *Description) token(ctx context.Context, hub *admin.Hub, namespace, name string) *Related {
	related := &Related{Kind: "ClusterRegistrationToken", Namespace: namespace, Name: name}
	token, err := hub.Fleet.ClusterRegistrationTokens(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		related.State, related.Message = "Deleted", "it expired or was deleted"
		return related
	case err != nil:
		d.unreadable(err)
		return related
	}
	v := view.OfToken(token)
	related.State, related.Reason, related.Message = v.State, v.Reason, v.Message
	if related.Message == "" && v.Expires != nil {
		related.Message = "expires " + v.Expires.UTC().Format(time.RFC3339)
	}
	return related
}

// clusterNamespace adds the cluster namespace with the identities of the agent and the BundleDeployments, and the Bundles that lack one.
func (d *Description) clusterNamespace(ctx context.Context, hub *admin.Hub, cluster *fleet.Cluster) {
	related := &Related{Kind: "Namespace", Name: registration.ClusterNamespace(cluster.Namespace, cluster.Name)}
	namespace, err := hub.Kubernetes.CoreV1().Namespaces().Get(ctx, related.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return
	case err != nil:
		d.unreadable(err)
	default:
		related.State = string(namespace.Status.Phase)
	}
	d.Objects = append(d.Objects, related)

	accounts, err := hub.Kubernetes.CoreV1().ServiceAccounts(related.Name).List(ctx, metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue})
	if err != nil {
		d.unreadable(err)
	} else {
		for _, a := range accounts.Items {
			request := a.Annotations[fleet.ClusterRegistrationAnnotation]
			identity := &Related{Kind: "ServiceAccount", Namespace: a.Namespace, Name: a.Name, Message: "the identity for ClusterRegistration " + request}
			if request != "" && request == cluster.Status.Agent.Registration {
				identity.State = "InUse"
			}
			related.Objects = append(related.Objects, identity)
		}
	}
	deployments, err := hub.Fleet.BundleDeployments(related.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		d.unreadable(err)
		return
	}
	states := map[string]string{} // of the BundleDeployments from this workspace, by the name of the Bundle
	for _, b := range deployments.Items {
		bundle := &Related{Kind: "BundleDeployment", Namespace: b.Namespace, Name: b.Name, State: string(fleetstatus.BundleState(b.Spec, b.Status))}
		if ready := fleetstatus.Condition(b.Status.Conditions, fleet.ConditionReady); bundle.State != string(fleet.Ready) {
			bundle.Reason, bundle.Message = ready.Reason, ready.Message
		}
		if b.DeletionTimestamp != nil {
			bundle.State, bundle.Reason, bundle.Message = view.StateDeleting, "", "since "+b.DeletionTimestamp.UTC().Format(time.RFC3339)
			if len(b.Finalizers) > 0 {
				bundle.Message += ", waiting for its finalizers: " + strings.Join(b.Finalizers, ", ")
			}
		} else if b.Spec.Paused {
			bundle.Message = strings.TrimSpace("paused. " + bundle.Message)
		}
		related.Objects = append(related.Objects, bundle)
		if b.Labels[fleet.BundleNamespaceLabel] == cluster.Namespace { // otherwise a Bundle of this name lacks its own
			states[b.Name] = bundle.State
		}
	}
	d.refusedBundles(ctx, hub, cluster, states)
}

// namedBundle finds the names of Bundles in condition Ready of a Cluster. A BundleDeployment has the name of its Bundle.
var namedBundle = regexp.MustCompile(`\bBundle(?:Deployment)? (?:[-a-z0-9.]+/)?([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)`)

// maxRefused limits the Bundles that are read, which may be large. Condition Ready names fewer, except in what it quotes.
const maxRefused = 20

// The states of a Bundle that the hub does not deploy to the cluster because of an error.
const (
	notDeployed = "NotDeployed"
	notUpdated  = "NotUpdated" // an earlier version is deployed
)

// refusedBundles adds the Bundles that the hub does not deploy to the cluster because of an error: it has no BundleDeployment for them, or leaves an earlier
// version as it is. No other object of the cluster shows them. Condition Ready names them; the Bundles that it names because they are not ready have
// a BundleDeployment that is not ready. states has the states of the BundleDeployments.
func (d *Description) refusedBundles(ctx context.Context, hub *admin.Hub, cluster *fleet.Cluster, states map[string]string) {
	ready := fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionReady)
	if ready.Status != corev1.ConditionFalse || ready.Reason == fleet.ReasonNotReady || ready.Reason == fleet.ReasonDeployFailed {
		return
	}
	var refused []*Related
	known := map[string]bool{}
	for _, match := range namedBundle.FindAllStringSubmatch(ready.Message, -1) {
		name := match[1]
		state, exists := states[name]
		if known[name] || len(known) == maxRefused || exists && state != string(fleet.Ready) {
			continue
		}
		known[name] = true
		b, err := hub.Fleet.Bundles(cluster.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			if !apierrors.IsNotFound(err) {
				d.unreadable(err)
			}
			continue
		}
		if exists && fleetstatus.Condition(b.Status.Conditions, fleet.ConditionReady).Status == corev1.ConditionTrue {
			continue // the message names it for another reason
		}
		refused = append(refused, refusedBundle(b, cluster, exists))
	}
	if len(refused) == 1 {
		refused[0].Reason = ready.Reason // that of the Bundle may be about other Clusters
	}
	d.Objects = append(d.Objects, refused...)
}

// refusedBundle shows a Bundle with the error that its status has for the Cluster. If it lists too many other Clusters, it is the message of the Bundle.
func refusedBundle(b *fleet.Bundle, cluster *fleet.Cluster, isDeployed bool) *Related {
	ready := fleetstatus.Condition(b.Status.Conditions, fleet.ConditionReady)
	related := &Related{Kind: "Bundle", Namespace: b.Namespace, Name: b.Name, State: notDeployed, Reason: ready.Reason, Message: ready.Message}
	if isDeployed {
		related.State = notUpdated
	}
	for _, r := range b.Status.Summary.NonReadyResources {
		if r.Name == cluster.Namespace+"/"+cluster.Name && r.Message != "" {
			related.Message = r.Message
		}
	}
	return related
}

// agent adds the report of the agent, with the time of its last heartbeat.
func (d *Description) agent(ctx context.Context, hub *admin.Hub, cluster *fleet.Cluster) {
	a := cluster.Status.Agent
	if err := hub.AddHeartbeats(ctx, d.Cluster); err != nil {
		d.unreadable(err)
	}
	if a.LastSeen.IsZero() {
		return
	}
	text := []string{"last heartbeat " + d.Cluster.LastSeen.UTC().Format(time.RFC3339)}
	if a.Version != "" {
		text = append(text, "version "+a.Version)
	}
	if a.KubernetesVersion != "" {
		text = append(text, "Kubernetes "+a.KubernetesVersion)
	}
	if a.Nodes != nil {
		text = append(text, fmt.Sprintf("%d of %d nodes ready", a.Nodes.Ready, a.Nodes.Count))
	}
	if a.Hub != nil && a.Hub.Pending != "" {
		text = append(text, "it cannot switch to the new address or CA of the hub: "+a.Hub.Pending)
	}
	if a.DeploymentsStalled != "" {
		text = append(text, "it deploys nothing: "+a.DeploymentsStalled)
	}
	state := "Connected"
	if connected := fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionConnected); connected.Status != corev1.ConditionTrue {
		state = cmp.Or(connected.Reason, "Unknown")
	}
	d.Objects = append(d.Objects, &Related{Kind: "Agent", Namespace: a.Namespace, Name: registration.AgentName, State: state, Message: strings.Join(text, ", ")})
}

// happenings adds the creation of an object, the last change of each of its conditions, and its events.
func (d *Description) happenings(ctx context.Context, hub *admin.Hub, kind string, object metav1.Object, conditions []genericcondition.GenericCondition) {
	title := kind + " " + object.GetName()
	d.Timeline = append(d.Timeline, Happened{Time: object.GetCreationTimestamp(), Object: title, What: "created"})
	changes := map[string]bool{} // reason and time of each change
	for _, c := range conditions {
		// lastTransitionTime is absent in conditions of Fleet's own controllers.
		at, err := time.Parse(time.RFC3339, cmp.Or(c.LastTransitionTime, c.LastUpdateTime))
		if err != nil {
			continue
		}
		changes[c.Reason+at.UTC().String()] = true
		d.Timeline = append(d.Timeline, Happened{
			Time: metav1.NewTime(at), Object: title,
			What: strings.TrimSpace(c.Type + " " + string(c.Status) + " " + c.Reason), Message: c.Message,
		})
	}

	events, err := hub.Kubernetes.CoreV1().Events(object.GetNamespace()).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(object.GetUID())).String(),
	})
	if err != nil {
		d.unreadable(err)
		return
	}
	for _, e := range events.Items {
		at := e.LastTimestamp
		if at.IsZero() {
			at = metav1.NewTime(e.EventTime.Time)
		}
		if changes[e.Reason+at.UTC().String()] {
			continue // the event reports the change of a condition, which has its own line
		}
		line := Happened{Time: at, Object: title, What: e.Type + " event " + e.Reason, Message: e.Message}
		if e.Count > 1 {
			line.What += fmt.Sprintf(", %d times since %s", e.Count, e.FirstTimestamp.UTC().Format(time.RFC3339))
		}
		d.Timeline = append(d.Timeline, line)
	}
}

// unreadable adds an error to Incomplete, once.
func (d *Description) unreadable(err error) {
	if !slices.Contains(d.Incomplete, err.Error()) {
		d.Incomplete = append(d.Incomplete, err.Error())
	}
}

// Print writes the Description as text.
func (d *Description) Print(w io.Writer, now time.Time) error {
	fmt.Fprint(w, d.Tree())
	if d.CredentialExpires != nil {
		left := fmt.Sprintf("%d days left", *d.CredentialDaysLeft)
		if !d.CredentialExpires.After(now) {
			left = "expired"
		}
		fmt.Fprintf(w, "\nCredential of the agent: expires %s (%s)\n", view.Until(d.CredentialExpires, now), left)
	}
	if len(d.Conditions) > 0 {
		fmt.Fprintln(w)
		var rows [][]string
		for _, c := range d.Conditions {
			rows = append(rows, []string{c.Type, string(c.Status), c.Reason, c.Message})
		}
		if err := view.PrintTable(w, []string{"CONDITION", "STATUS", "REASON", "MESSAGE"}, rows); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	var rows [][]string
	for i, h := range d.Timeline {
		after := ""
		if i > 0 {
			after = "+" + duration.HumanDuration(time.Duration(h.AfterSeconds*float64(time.Second)))
		}
		rows = append(rows, []string{view.Ago(&metav1.Time{Time: h.Time.Time}, now), after, h.Object, h.What, h.Message})
	}
	if err := view.PrintTable(w, []string{"SEEN", "AFTER", "OBJECT", "WHAT", "MESSAGE"}, rows); err != nil {
		return err
	}
	if len(d.Incomplete) > 0 {
		fmt.Fprintf(w, "\nNot everything could be read:\n")
		for _, what := range d.Incomplete {
			fmt.Fprintln(w, "  "+view.Printable(what))
		}
	}
	return nil
}

// Tree returns the cluster and its objects as a tree.
func (d *Description) Tree() string {
	root := "no Cluster " + d.Namespace + "/" + d.Name + " yet"
	if d.Cluster != nil {
		root = title(&Related{
			Kind: "Cluster", Namespace: d.Namespace, Name: d.Name, State: d.Cluster.State, Reason: d.Cluster.Reason, Message: d.Cluster.Message,
		}) + " [" + d.Cluster.WayIn + "]"
	}
	tree := treeprint.NewWithRoot(root)
	grow(tree, d.Objects)
	return tree.String()
}

func grow(tree treeprint.Tree, objects []*Related) {
	for _, r := range objects {
		if len(r.Objects) == 0 {
			tree.AddNode(title(r))
			continue
		}
		grow(tree.AddBranch(title(r)), r.Objects)
	}
}

// title returns "Kind namespace/name: State, Reason (message)".
func title(r *Related) string {
	text := r.Kind + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/")
	if r.State != "" {
		text += ": " + r.State
	}
	if r.Reason != "" && r.Reason != r.State {
		text += ", " + r.Reason
	}
	if r.Message != "" {
		text += " (" + r.Message + ")"
	}
	return view.Printable(text)
}
