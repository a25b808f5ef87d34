package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/pager"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

// Import describes a cluster to import.
type Import struct {
	// Namespace and Name of the Cluster.
	Namespace, Name string
	// Kubeconfig of the cluster, without references to files, of a user who may install the agent.
	Kubeconfig []byte
	// Labels and Annotations of the Cluster.
	Labels, Annotations map[string]string
	// DryRun has the API server check the objects without creating them.
	DryRun bool
}

// SecretName returns the name of the Secret with the kubeconfig.
func (i Import) SecretName() string { return i.Name + "-kubeconfig" }

// Import creates a Cluster and the Secret with its kubeconfig, from which the hub imports the cluster. It does not change an existing
// Cluster or Secret, because that could disconnect another cluster.
func (h *Hub) Import(ctx context.Context, i Import) error {
	existing, err := h.Fleet.Clusters(i.Namespace).Get(ctx, i.Name, metav1.GetOptions{})
	switch {
	case err == nil && existing.Spec.KubeConfigSecret != "":
		return fmt.Errorf("Cluster %[1]s/%[2]s already exists: to have the hub install its agent again, run `muster%[3]s -n %[1]s rotate %[2]s`; "+
			"to import another cluster, choose another name", i.Namespace, i.Name, h.Flags)
	case err == nil:
		return fmt.Errorf("Cluster %s/%s already exists, for an agent that registers with a token: choose another name", i.Namespace, i.Name)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for Cluster %s/%s: %w", i.Namespace, i.Name, h.Explain(err, i.Namespace))
	}

	options := metav1.CreateOptions{}
	if i.DryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	secret, err := h.Kubernetes.CoreV1().Secrets(i.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: i.SecretName()},
		Data:       map[string][]byte{registration.KubeconfigValue: i.Kubeconfig},
	}, options)
	switch {
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("Secret %s/%s already exists, possibly from an earlier import: delete it first, or choose another name", i.Namespace, i.SecretName())
	case err != nil:
		return fmt.Errorf("create Secret %s/%s: %w", i.Namespace, i.SecretName(), h.Explain(err, i.Namespace))
	}

	_, err = h.Fleet.Clusters(i.Namespace).Create(ctx, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: i.Name, Labels: i.Labels, Annotations: i.Annotations},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: i.SecretName()},
	}, options)
	switch {
	case err != nil && i.DryRun:
		return fmt.Errorf("create Cluster %s/%s: %w", i.Namespace, i.Name, h.Explain(err, i.Namespace))
	case err != nil:
		return h.undoImport(ctx, i, secret.UID, fmt.Errorf("create Cluster %s/%s: %w", i.Namespace, i.Name, h.Explain(err, i.Namespace)))
	}
	return nil
}

// undoImport deletes the Secret that the import has created after the creation of the Cluster has failed: nothing would use the Secret, and a second import would
// fail because of it. If only the response was lost, the Cluster exists and needs the Secret. So undoImport first reads the Cluster,
// even if ctx has ended, and the error names the objects that remain. The time limit is short because a user who pressed Ctrl-C waits for it.
func (h *Hub) undoImport(ctx context.Context, i Import, secret types.UID, failed error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	cluster, err := h.Fleet.Clusters(i.Namespace).Get(ctx, i.Name, metav1.GetOptions{})
	switch {
	case err == nil && cluster.Spec.KubeConfigSecret == i.SecretName():
		return fmt.Errorf("%w; but Cluster %s/%s exists with Secret %s, and the hub imports it: delete the Cluster and the Secret if you do not want that",
			failed, i.Namespace, i.Name, i.SecretName())
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("%w; whether the Cluster exists is not known (%w), so Secret %s/%s was not deleted: delete it if there is no such Cluster",
			failed, err, i.Namespace, i.SecretName())
	}
	err = h.Kubernetes.CoreV1().Secrets(i.Namespace).Delete(ctx, i.SecretName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret}})
	return errors.Join(failed, err)
}

// needsPerson are the reasons of an import that fails until a person changes its Cluster, its Secret or the configuration of the hub.
var needsPerson = []string{
	fleet.ReasonKubeconfigInvalid, fleet.ReasonKubeconfigNotAllowed, fleet.ReasonKubeconfigInUse, fleet.ReasonAddressNotAllowed,
	fleet.ReasonAPIServerURLMissing, fleet.ReasonAPIServerURLInvalid, fleet.ReasonAPIServerCAInvalid, fleet.ReasonSettingsInvalid,
}

// AwaitRegistered waits until the agent of a Cluster is registered, and calls progress each time the state of the Cluster changes.
// The hub repeats failed imports, so only the deletion of the Cluster, or a failure that lasts until a person corrects it, ends the wait before
// ctx ends.
func (h *Hub) AwaitRegistered(ctx context.Context, namespace, name string, progress func(view.Cluster)) (*fleet.Cluster, error) {
	stateOf := reportChanges(progress)
	return awaited[*fleet.Cluster]{
		what: fmt.Sprintf("Cluster %s/%s", namespace, name), get: h.Fleet.Clusters(namespace).Get, name: name, mayAppear: true,
		status: "the Cluster does not exist yet",
		check: func(cluster *fleet.Cluster) (bool, string, error) {
			now := stateOf(cluster)
			status := fmt.Sprintf("%s: %s: %s", now.State, now.Reason, now.Message)
			if now.State == view.StateImportFailed && slices.Contains(needsPerson, now.Reason) {
				return false, "", errors.New(status)
			}
			return now.State == view.StateRegistered, status, nil
		},
	}.wait(ctx)
}

// reportChanges returns a function that restores and summarizes a Cluster, and calls progress if its state has changed since the last call.
func reportChanges(progress func(view.Cluster)) func(*fleet.Cluster) view.Cluster {
	var before view.Cluster
	return func(cluster *fleet.Cluster) view.Cluster {
		preserve.Restore(cluster)
		now := view.OfCluster(cluster)
		if now.State != before.State || now.Reason != before.Reason || now.Message != before.Message {
			before = now
			progress(now)
		}
		return now
	}
}

// Quarantine removes the rights of a Cluster's agent on the hub, or gives them back. The reason, if there is one, is recorded with the name of
// the user; a former reason is removed.
func (h *Hub) Quarantine(ctx context.Context, namespace, name string, quarantined bool, reason string) error {
	var recorded any
	if reason != "" {
		recorded = reason
		me, err := h.Kubernetes.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err == nil && me.Status.UserInfo.Username != "" { // the reason counts more than the name
			recorded = me.Status.UserInfo.Username + ": " + reason
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{fleet.QuarantineReasonAnnotation: recorded}},
		"spec":     map[string]any{"quarantined": quarantined},
	})
	if err == nil {
		_, err = h.Fleet.Clusters(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return h.explainCluster(err, namespace, name)
}

// AwaitQuarantine waits until the hub has seen the change of Quarantine. AwaitNoRights waits for its effect.
func (h *Hub) AwaitQuarantine(ctx context.Context, namespace, name string, quarantined bool) error {
	_, err := awaited[*fleet.Cluster]{
		what: fmt.Sprintf("Cluster %s/%s", namespace, name), get: h.Fleet.Clusters(namespace).Get, name: name,
		status: "the hub has not answered: is a fleet-controller running?",
		check: func(cluster *fleet.Cluster) (bool, string, error) {
			registered := fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionRegistered)
			return (registered.Reason == fleet.ReasonQuarantined) == quarantined, "", nil
		},
	}.wait(ctx)
	return err
}

// AwaitNoRights waits until no RoleBinding gives rights to the agent of a Cluster: another controller than the one that reports a quarantine deletes them.
// It fails at once with Forbidden if the user may not list the RoleBindings of the workspace, and RoleBindings and ServiceAccounts in the cluster namespace.
func (h *Hub) AwaitNoRights(ctx context.Context, namespace, name string) error {
	_, err := awaited[[]string]{
		what: fmt.Sprintf("the rights of the agent of Cluster %s/%s", namespace, name),
		get: func(ctx context.Context, name string, _ metav1.GetOptions) ([]string, error) {
			return h.agentBindings(ctx, namespace, name)
		},
		name: name,
		check: func(left []string) (bool, string, error) {
			return len(left) == 0, "the hub has not deleted " + strings.Join(left, ", ") + ": see its log", nil
		},
	}.wait(ctx)
	return err
}

// agentBindings lists the RoleBindings that give rights to the agents of a Cluster. Those of a ServiceAccount that Revoke has deleted give none.
func (h *Hub) agentBindings(ctx context.Context, namespace, name string) (found []string, err error) {
	agents := registration.ClusterNamespace(namespace, name)
	accounts := sets.New[string]()
	err = Each(ctx, h.Kubernetes.CoreV1().ServiceAccounts(agents).List, metav1.ListOptions{}, func(account *corev1.ServiceAccount) error {
		accounts.Insert(account.Name)
		return nil
	})
	if err != nil || len(accounts) == 0 {
		return nil, err
	}
	isAgent := func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == agents && accounts.Has(s.Name) || s.Kind == rbacv1.GroupKind && s.Name == "system:serviceaccounts:"+agents
	}
	for _, in := range []string{agents, namespace} {
		err := Each(ctx, h.Kubernetes.RbacV1().RoleBindings(in).List, metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue},
			func(binding *rbacv1.RoleBinding) error {
				if slices.ContainsFunc(binding.Subjects, isAgent) {
					found = append(found, fmt.Sprintf("RoleBinding %s/%s", binding.Namespace, binding.Name))
				}
				return nil
			})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// ClientID returns the clientID of a Cluster.
func (h *Hub) ClientID(ctx context.Context, namespace, name string) (string, error) {
	cluster, err := h.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return "", h.explainCluster(err, namespace, name)
	case cluster.Spec.ClientID == "":
		return "", fmt.Errorf("Cluster %s/%s has no clientID yet: set spec.clientID, or wait for the hub, which sets it for a cluster that it imports", namespace, name)
	}
	return cluster.Spec.ClientID, nil
}

// Revocation is what Revoke has revoked and found.
type Revocation struct {
	// Requests are the names of the requests for which the deleted ServiceAccounts were created.
	Requests []string
	// Tokens are the names of the ClusterRegistrationTokens that are only for this Cluster: their holders can register it again.
	Tokens []string
}

// Revoke deletes the ServiceAccounts of a Cluster's agents: the API server then rejects their tokens, even if no hub runs, and a hub does
// not create them again. It also deletes the token of the import, which was stored on the member; the hub creates another if it imports the
// Cluster again. With deleteTokens it deletes other tokens that are only for this Cluster. An error does not prevent the steps that follow.
func (h *Hub) Revoke(ctx context.Context, namespace, name string, deleteTokens bool) (revoked Revocation, err error) {
	cluster, err := h.Fleet.Clusters(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Revocation{}, h.explainCluster(err, namespace, name)
	}
	// The tokens come first: the hub imports the Cluster again as soon as the ServiceAccounts are gone.
	revoked.Tokens, err = h.revokeTokens(ctx, cluster, deleteTokens)
	errs := []error{err}
	accounts := h.Kubernetes.CoreV1().ServiceAccounts(registration.ClusterNamespace(namespace, name))
	list, err := accounts.List(ctx, metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue})
	if err != nil {
		return revoked, errors.Join(append(errs, fmt.Errorf("list the ServiceAccounts of Cluster %s/%s: %w", namespace, name, err))...)
	}
	for _, account := range list.Items {
		err := accounts.Delete(ctx, account.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &account.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete ServiceAccount %s/%s: %w", account.Namespace, account.Name, err))
			continue
		}
		revoked.Requests = append(revoked.Requests, account.Annotations[fleet.ClusterRegistrationAnnotation])
	}
	slices.Sort(revoked.Requests)
	return revoked, errors.Join(errs...)
}

// revokeTokens deletes the token of the import, and with all the other tokens that are only for the Cluster. It returns the names of those that remain.
func (h *Hub) revokeTokens(ctx context.Context, cluster *fleet.Cluster, all bool) (remaining []string, err error) {
	tokens := h.Fleet.ClusterRegistrationTokens(cluster.Namespace)
	var errs []error
	err = Each(ctx, tokens.List, metav1.ListOptions{}, func(token *fleet.ClusterRegistrationToken) error {
		isImport := registration.IsImportTokenOf(token, cluster)
		isOther := cluster.Spec.ClientID != "" && registration.IsOnlyFor(token.Spec, cluster.Spec.ClientID)
		state := view.OfToken(token).State
		switch {
		case state == view.StateDeleting, !isImport && !isOther, !isImport && state == view.StateUsedUp:
		case isImport || all:
			err := tokens.Delete(ctx, token.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &token.UID}})
			if ignoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("delete ClusterRegistrationToken %s/%s, with which Cluster %s can be registered again: %w",
					token.Namespace, token.Name, cluster.Name, err))
			}
		default:
			remaining = append(remaining, token.Name)
		}
		return nil
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("list the ClusterRegistrationTokens with which Cluster %s/%s can be registered again: %w",
			cluster.Namespace, cluster.Name, err))
	}
	slices.Sort(remaining)
	return remaining, errors.Join(errs...)
}

func (h *Hub) explainCluster(err error, namespace, name string) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no Cluster %s/%s: `muster%s clusters -A` lists all Clusters", namespace, name, h.Flags)
	case err != nil:
		return fmt.Errorf("Cluster %s/%s: %w", namespace, name, err)
	}
	return nil
}

// EachCluster calls do with all Clusters of a namespace, or of all namespaces if it is empty. It lists them in pages.
func (h *Hub) EachCluster(ctx context.Context, namespace string, options metav1.ListOptions, do func(*fleet.Cluster) error) error {
	if err := Each(ctx, h.Fleet.Clusters(namespace).List, options, do); err != nil {
		return fmt.Errorf("list Clusters: %w", h.Explain(err, namespace))
	}
	return nil
}

// AddHeartbeats sets LastSeen of the clusters from the Leases in their cluster namespaces, with one request: for those of a single cluster, or for
// all Leases of agents on the hub. Without the Leases, LastSeen stays as it is.
func (h *Hub) AddHeartbeats(ctx context.Context, clusters ...*view.Cluster) error {
	namespace := metav1.NamespaceAll
	switch len(clusters) {
	case 0:
		return nil
	case 1:
		namespace = registration.ClusterNamespace(clusters[0].Namespace, clusters[0].Name)
	}
	leases := map[string][]coordinationv1.Lease{} // by namespace
	options := metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue}
	err := Each(ctx, h.Kubernetes.CoordinationV1().Leases(namespace).List, options, func(lease *coordinationv1.Lease) error {
		leases[lease.Namespace] = append(leases[lease.Namespace], *lease)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list Leases: %w", err)
	}
	for _, c := range clusters {
		c.AddHeartbeats(leases[registration.ClusterNamespace(c.Namespace, c.Name)])
	}
	return nil
}

// leaseGrace is the time after the end of its Lease from which a hub is considered stopped. It is long enough for the clocks of this machine and
// of the hub to differ by a few seconds.
const leaseGrace = 10 * time.Second

// HubSilence returns the time since a hub renewed its Lease in the default system namespace, if the Lease has expired. It returns 0 if a hub runs,
// or if this is not known: the user may not read the Lease, or the hub has another namespace.
func (h *Hub) HubSilence(ctx context.Context, now time.Time) time.Duration {
	lease, err := h.Kubernetes.CoordinationV1().Leases(registration.DefaultSystemNamespace).Get(ctx, registration.HubLease, metav1.GetOptions{})
	if err != nil || lease.Spec.RenewTime == nil {
		return 0
	}
	silence := now.Sub(lease.Spec.RenewTime.Time)
	if silence < time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0))*time.Second+leaseGrace {
		return 0
	}
	return silence
}

// Each calls do with all objects that list returns. It lists them in pages.
func Each[L runtime.Object, T any](
	ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions, do func(*T) error,
) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	return pages.EachListItem(ctx, options, func(object runtime.Object) error { return do(any(object).(*T)) })
}

// Collect returns the results of convert for all objects that list returns, except those for which convert returns false. It lists them in pages.
func Collect[L runtime.Object, T, V any](
	ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), convert func(*T) (V, bool),
) (all []V, err error) {
	err = Each(ctx, list, metav1.ListOptions{}, func(object *T) error {
		if v, ok := convert(object); ok {
			all = append(all, v)
		}
		return nil
	})
	return all, err
}

// WatchClusters calls do with each Cluster that EachCluster would list, and then with each that is created, changed or deleted, until ctx
// ends or do fails. It lists them again when the API server ends the watch and has forgotten the version from which to continue.
func (h *Hub) WatchClusters(ctx context.Context, namespace string, options metav1.ListOptions, do func(c *fleet.Cluster, deleted bool) error) error {
	clusters := h.Fleet.Clusters(namespace)
	attempt, err := clusters.Watch(ctx, options) // a missing right fails here: UntilWithSync retries every error
	if err != nil {
		return fmt.Errorf("watch Clusters: %w", h.Explain(err, namespace))
	}
	attempt.Stop()
	from := transport.ListWatch(clusters, func(o *metav1.ListOptions) {
		o.LabelSelector = options.LabelSelector
		if o.ResourceVersion == "0" { // of a list
			o.ResourceVersion = "" // the cache of the API server can be older than the list that was printed
		}
	})
	_, err = watchtools.UntilWithSync(ctx, from, &fleet.Cluster{}, nil, func(e watch.Event) (bool, error) {
		if cluster, ok := e.Object.(*fleet.Cluster); ok {
			return false, do(cluster, e.Type == watch.Deleted)
		}
		return false, nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // interrupted
	}
	return err
}
