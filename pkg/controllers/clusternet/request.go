package clusternet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// readAfter is the time after which the hub assumes that an agent that sends heartbeats has read its answer. A waiting agent polls its
	// request every 5 to 7 seconds.
	readAfter = 15 * time.Second
	// unreadLifetime is the time after which the hub deletes the answer of an agent that sends no heartbeat. It equals the lifetime of the
	// answer Secrets of agents that are not Clusternet's.
	unreadLifetime = 40 * time.Minute
	// pendingDelay is the time until the hub looks again for a token that Kubernetes is issuing.
	pendingDelay = time.Second
)

// onRequest answers a request, and deletes it when the agent has read the answer, or can no longer use it.
func (h *handler) onRequest(name string, request *v1beta1.ClusterRegistrationRequest) (*v1beta1.ClusterRegistrationRequest, error) {
	ctx, cancel := h.Passes.Context()
	defer cancel()
	if request == nil || request.DeletionTimestamp != nil {
		h.answered.Delete(name)
		return request, h.deleteReader(ctx, name)
	}
	if h.written.IsStale(request) {
		return request, nil // the event of that write is on its way
	}
	d := h.reconcile(ctx, request)
	if d.err != nil || d.keep {
		return request, d.err
	}
	if d.remove {
		return request, h.remove(ctx, request)
	}
	after := request.DeepCopy()
	after.Status = d.status
	latest, changed, err := writes.Status(ctx, h.ClusternetClient.ClusterRegistrationRequests(), request, after)
	if err != nil {
		return request, err
	}
	if changed {
		h.written.Wrote(latest)
		if d.status.Result == v1beta1.ResultApproved {
			h.answered.Store(name, approvalTime{request.UID, h.Clock.Now()})
		}
	}
	if d.after > 0 {
		h.queue.EnqueueAfter(name, d.after)
	}
	return latest, h.limitUnregistered(ctx, latest)
}

// nextStep is the decision about a request: onRequest leaves it unchanged, deletes it, or writes its status.
type nextStep struct {
	status v1beta1.ClusterRegistrationRequestStatus
	keep   bool          // onRequest writes nothing, and waits for the next event
	remove bool          // onRequest deletes the request
	after  time.Duration // onRequest enqueues the request again after this time; 0: never
	err    error
}

func failed(err error) nextStep { return nextStep{err: err} }

func waits(message string) nextStep {
	return nextStep{status: v1beta1.ClusterRegistrationRequestStatus{ErrorMessage: message}}
}

func denied(message string) nextStep {
	return nextStep{status: v1beta1.ClusterRegistrationRequestStatus{Result: v1beta1.ResultDenied, ErrorMessage: message}}
}

// reconcile creates what a request needs, and returns its answer. It ends at the first step that waits for something, and begins with the
// first step again at the next event.
func (h *handler) reconcile(ctx context.Context, request *v1beta1.ClusterRegistrationRequest) nextStep {
	if request.Name != v1beta1.RequestPrefix+request.Spec.ClusterID {
		// No agent sends such a request, and no limit applies to it: nothing stands for it in a workspace.
		if others, logs := h.misnamed.count(h.Clock.Now()); logs {
			logrus.Warnf("Deleting ClusterRegistrationRequest %s of %s, because its name is not %s with its clusterId (%d others since the last such message)",
				request.Name, registration.Brief(request.Annotations[fleet.CreatorAnnotation]), v1beta1.RequestPrefix, others)
		}
		return nextStep{remove: true}
	}

	// Find the ClusterRegistration of the request: the granted one of the agent if the agent has created the request with its own credential,
	// otherwise the one that the hub has created for the request.
	creator := request.Annotations[fleet.CreatorAnnotation]
	r, err := h.registrationOfHolder(creator, request.Spec.ClusterID)
	if err == nil && r == nil {
		r, err = h.registrationFor(request, creator)
	}
	switch {
	case err != nil:
		return failed(err)
	case r == nil && request.Status.Result == v1beta1.ResultApproved: // its Cluster was deleted, or it was revoked
		return nextStep{remove: true}
	case r == nil:
		return h.register(ctx, request, creator)
	}

	// Copy the hub's decision about the ClusterRegistration.
	if granted := fleetstatus.Condition(r.Status.Conditions, fleet.ConditionGranted); !r.Status.Granted || granted.Status == corev1.ConditionFalse {
		switch {
		case granted.Status == corev1.ConditionFalse && granted.Reason != fleet.ReasonError:
			return denied(granted.Reason + ": " + granted.Message)
		case granted.Status == "":
			return nextStep{keep: true}
		}
		return waits(granted.Reason + ": " + granted.Message)
	}
	cluster, err := h.clusters.Get(r.Namespace, r.Status.ClusterName)
	switch {
	case apierrors.IsNotFound(err):
		return nextStep{keep: true} // Kubernetes is about to delete the ClusterRegistration
	case err != nil:
		return failed(err)
	case cluster.Spec.Quarantined:
		return denied(fmt.Sprintf("%s: Cluster %s/%s is quarantined", fleet.ReasonQuarantined, cluster.Namespace, cluster.Name))
	}

	// Keep an answer until the next heartbeat shows that the agent has read it.
	if request.Status.Result == v1beta1.ResultApproved {
		return h.untilRead(request, cluster)
	}

	// Answer. The agent uses the answer as soon as it can read it, so everything that it needs exists before.
	ca, refusal := h.caFor()
	if refusal != "" {
		return waits(refusal)
	}
	if err := h.ensureManagedCluster(ctx, cluster); err != nil {
		return failed(err)
	}
	token, pending, err := h.tokenFor(ctx, r, cluster)
	switch {
	case err != nil:
		return failed(err)
	case pending:
		return nextStep{status: request.Status, after: pendingDelay}
	}
	agent := registration.AccountUser(registration.ClusterNamespace(cluster.Namespace, cluster.Name), registration.RequestServiceAccount(r.Name, string(r.UID)))
	readers := slices.Compact([]string{creator, agent})
	if err := h.ensureReader(ctx, request, readers...); err != nil {
		return failed(err)
	}
	return nextStep{
		status: v1beta1.ClusterRegistrationRequestStatus{
			Result:             v1beta1.ResultApproved,
			DedicatedNamespace: registration.ClusterNamespace(cluster.Namespace, cluster.Name),
			DedicatedToken:     []byte(token.Reveal()),
			CACertificate:      ca,
			ManagedClusterName: memberNameOf(cluster.Spec.ClientID),
		},
		after: unreadLifetime,
	}
}

// untilRead keeps an approved request until a heartbeat has arrived after the answer, and for readAfter at least: an agent whose request is
// deleted before it has read the answer waits forever, and that heartbeat may be from an earlier process of the agent. After a restart of
// the hub both times count from the first look at the request.
func (h *handler) untilRead(request *v1beta1.ClusterRegistrationRequest, cluster *fleet.Cluster) nextStep {
	now := h.Clock.Now()
	stored, _ := h.answered.LoadOrStore(request.Name, approvalTime{request.UID, now})
	given, _ := stored.(approvalTime)
	if given.request != request.UID { // of an earlier request with this name
		given = approvalTime{request.UID, now}
		h.answered.Store(request.Name, given)
	}
	answered := given.time
	end := answered.Add(unreadLifetime)
	if !cluster.Status.Agent.LastSeen.Time.Before(answered.Truncate(time.Second)) {
		end = answered.Add(readAfter)
	}
	if left := end.Sub(now); left > 0 {
		return nextStep{status: request.Status, after: left}
	}
	return nextStep{remove: true}
}

// unregisteredByCreator finds, by their creator, the requests without an answer for which there may be no ClusterRegistration, so that no limit of
// registrations applies to them.
const unregisteredByCreator = "muster.fleet.cattle.io/unregistered-by-creator"

// allCreators stands for every creator in that index; it is the name of no user.
const allCreators = "*"

// mostUnregistered limits these requests of all creators: a user who may create and delete tokens has any number of ServiceAccounts.
const mostUnregistered = 10 * registration.MostRefused

// notCreated begins the message of a request for which the API server refuses a ClusterRegistration.
const notCreated = fleet.ReasonError + ": creating ClusterRegistration "

func creatorOfUnregistered(request *v1beta1.ClusterRegistrationRequest) ([]string, error) {
	reason, _, _ := strings.Cut(request.Status.ErrorMessage, ":")
	switch reason {
	case fleet.ReasonPolicyMissing, fleet.ReasonOriginUnknown, fleet.ReasonTokenNotFound:
	default:
		if !strings.HasPrefix(request.Status.ErrorMessage, notCreated) {
			return nil, nil
		}
	}
	return []string{request.Annotations[fleet.CreatorAnnotation], allCreators}, nil
}

// limitUnregistered deletes the oldest of these requests if their creator has more than registration.MostRefused, or all creators have more than
// mostUnregistered. Where the API server records no creators, all requests share the smaller limit.
func (h *handler) limitUnregistered(ctx context.Context, request *v1beta1.ClusterRegistrationRequest) error {
	creators, _ := creatorOfUnregistered(request)
	for _, creator := range creators {
		limit := registration.MostRefused
		if creator == allCreators {
			limit = mostUnregistered
		}
		all, err := h.requests.GetByIndex(unregisteredByCreator, creator)
		if err != nil {
			return err
		}
		if len(all) <= limit {
			continue
		}
		slices.SortFunc(all, func(a, b *v1beta1.ClusterRegistrationRequest) int {
			return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
		})
		for _, old := range all[limit:] {
			if err := h.remove(ctx, old); err != nil {
				return err
			}
		}
	}
	return nil
}

// account splits the user name of a ServiceAccount. Both are empty for another user.
func account(user string) (namespace, name string) {
	of, isAccount := strings.CutPrefix(user, "system:serviceaccount:")
	if !isAccount {
		return "", ""
	}
	namespace, name, _ = strings.Cut(of, ":")
	return namespace, name
}

// workspaceOf returns the namespace of the token with which a user registers. It is empty if the user is neither mapped to a token by the
// configuration nor a ServiceAccount.
func (h *handler) workspaceOf(user string) string {
	if use, found := h.Config.Get().Clusternet.ForUser(user); found {
		return use.Namespace
	}
	namespace, _ := account(user)
	return namespace
}

// misnamedRequests counts the requests that the hub deletes because of their name. The holder of a token can create them without a limit, so the hub logs
// one in a minute.
type misnamedRequests struct {
	mu       sync.Mutex
	loggedAt time.Time
	others   int // since then
}

// count counts a request. It returns whether to log it, and how many others there were since the last one that was logged.
func (m *misnamedRequests) count(now time.Time) (others int, logs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loggedAt.IsZero() && now.Sub(m.loggedAt) < time.Minute {
		m.others++
		return 0, false
	}
	others = m.others
	m.loggedAt, m.others = now, 0
	return others, true
}

// registersWith returns the ClusterRegistrationToken with which a user registers: the token to which the configuration maps the user of a
// bootstrap token, or else the token whose ServiceAccount the user is. It is nil if there is none.
func (h *handler) registersWith(user string) (*fleet.ClusterRegistrationToken, error) {
	if use, found := h.Config.Get().Clusternet.ForUser(user); found {
		token, err := h.tokens.Get(use.Namespace, use.Token)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return token, err
	}
	workspace, name := account(user)
	tokens, err := h.tokens.List(workspace, labels.Everything())
	for _, token := range tokens {
		if registration.TokenServiceAccount(token.Name, string(token.UID)) == name {
			return token, nil
		}
	}
	return nil, err
}

// registrationOfHolder returns the granted ClusterRegistration of the agent that is this user, or nil. An agent that has registered creates
// its request again after a restart, with its own credential, which proves its identity. It gets the answer of the granted registration.
func (h *handler) registrationOfHolder(user, clientID string) (*fleet.ClusterRegistration, error) {
	namespace, name := account(user)
	holder, err := h.accounts.Get(namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	of, in := holder.Annotations[fleet.ClusterRegistrationAnnotation], holder.Annotations[fleet.ClusterRegistrationNamespaceAnnotation]
	r, err := h.registrations.Get(in, of)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	isHolder := registration.IsForClusternet(r, h.HubUser) && r.Status.Granted && r.DeletionTimestamp == nil && r.Spec.ClientID == clientID &&
		registration.RequestServiceAccount(r.Name, string(r.UID)) == name && registration.ClusterNamespace(r.Namespace, r.Status.ClusterName) == namespace
	if !isHolder {
		return nil, nil
	}
	return r, nil
}

// registrationFor returns the ClusterRegistration that the hub has created for the request, nil if there is none.
func (h *handler) registrationFor(request *v1beta1.ClusterRegistrationRequest, creator string) (*fleet.ClusterRegistration, error) {
	r, err := h.registrations.Get(h.workspaceOf(creator), registration.ClusternetRequestName(string(request.UID)))
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case !registration.IsForClusternet(r, h.HubUser) || r.Spec.ClientID != request.Spec.ClusterID || registration.CreatorOf(r, h.HubUser) != creator:
		return nil, fmt.Errorf("ClusterRegistration %s/%s exists and was not created for this request; delete it", r.Namespace, r.Name)
	}
	return r, nil
}

// register creates the ClusterRegistration for a request, in the workspace of the token whose ServiceAccount created the request.
func (h *handler) register(ctx context.Context, request *v1beta1.ClusterRegistrationRequest, creator string) nextStep {
	policies := h.Admission.State()
	switch {
	case !policies.InForce():
		return waits(fmt.Sprintf("%s: nothing proves who created this request: %s", fleet.ReasonPolicyMissing, policies.Missing))
	case policies.NotRecorded != "":
		return waits(fmt.Sprintf("%s: nothing proves who created this request: %s", fleet.ReasonOriginUnknown, policies.NotRecorded))
	case creator == "" || request.CreationTimestamp.Time.Before(policies.Since):
		return denied(fleet.ReasonOriginUnknown + ": the request was created before the admission policies of the hub were in force; " +
			"delete it and restart the agent")
	}
	token, err := h.registersWith(creator)
	switch {
	case err != nil:
		return failed(err)
	case token == nil || token.DeletionTimestamp != nil:
		// The token may be created again, which enqueues no request.
		out := denied(fmt.Sprintf("%s: the request was created by %s, which is not the ServiceAccount of a ClusterRegistrationToken or of an agent of "+
			"this cluster, and which the hub's configuration does not map to a token", fleet.ReasonTokenNotFound,
			cmp.Or(registration.Brief(creator), "an unknown user")))
		out.after = h.RecheckDelay()
		return out
	}
	r := &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: token.Namespace, Name: registration.ClusternetRequestName(string(request.UID)),
			Labels:      map[string]string{fleet.RegistrationTokenLabel: registration.LabelValue(token.Name)},
			Annotations: map[string]string{fleet.RequesterAnnotation: creator},
		},
		Spec: fleet.ClusterRegistrationSpec{
			ClientID: request.Spec.ClusterID, ClientRandom: string(request.UID), ClusterLabels: withoutReserved(request.Spec.ClusterLabels),
		},
	}
	_, err = h.FleetClient.ClusterRegistrations(r.Namespace).Create(ctx, r, metav1.CreateOptions{})
	if apierrors.IsForbidden(err) { // by a quota; the message says so, and counts the request for limitUnregistered
		out := waits(fmt.Sprintf("%s%s/%s: %v", notCreated, r.Namespace, r.Name, err))
		out.after = h.RecheckDelay()
		return out
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return failed(fmt.Errorf("creating ClusterRegistration %s/%s: %w", r.Namespace, r.Name, err))
	}
	return nextStep{keep: true} // the event of the ClusterRegistration is on its way
}

// withoutReserved leaves out the labels that Clusternet's own hub reserves. Package registration leaves out those that Muster reserves.
func withoutReserved(sent map[string]string) map[string]string {
	accepted := maps.Clone(sent)
	maps.DeleteFunc(accepted, func(key, _ string) bool {
		for _, prefix := range v1beta1.ReservedPrefixes {
			if strings.HasPrefix(key, prefix) {
				return true
			}
		}
		return false
	})
	return accepted
}

// remove deletes a request, after the right to read it.
func (h *handler) remove(ctx context.Context, request *v1beta1.ClusterRegistrationRequest) error {
	if err := h.deleteReader(ctx, request.Name); err != nil {
		return err
	}
	err := h.ClusternetClient.ClusterRegistrationRequests().Delete(ctx, request.Name,
		writes.IfUID(request))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting ClusterRegistrationRequest %s: %w", request.Name, err)
	}
	h.answered.Delete(request.Name)
	return nil
}

var errNoCA = errors.New("apiServerCA of the hub's configuration is empty, and without a CA a Clusternet agent would accept any " +
	"certificate; set it even if a public authority signed the certificate of the hub")
