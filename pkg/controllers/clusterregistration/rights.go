package clusterregistration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/kv"
	wranglername "github.com/rancher/wrangler/v3/pkg/name"
	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/clusternet"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/finalizing"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

// setID names the object set of a request, together with the request's key.
const setID = "cluster-registration"

func ownedSet(request *fleet.ClusterRegistration) string {
	return registration.OwnedSetID(setID, request.Namespace, request.Name)
}

// ensureRights creates, corrects and prunes the rights of a request. Without a token, no ServiceAccount gets the right to read the
// credential.
func (h *handler) ensureRights(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, token *fleet.ClusterRegistrationToken,
) result.Result {
	if !request.Status.Granted {
		h.givenRights.Expect(string(request.UID)) // even if this fails halfway, so that revoke looks for the rights
	}
	err := h.sets.Ensure(ctx, ownedSet(request), request, h.rights(request, cluster, token)...)
	if err == nil && !h.DisableBundles {
		err = h.deleteFleetBindings(ctx, request, cluster) // after the agent has the rights that replace them
	}
	return rightsResult(err, h.RecheckDelay())
}

func rightsResult(err error, recheck time.Duration) result.Result {
	var foreign *desiredset.ForeignError
	switch {
	case errors.As(err, &foreign):
		return result.Stalled(fleet.ReasonNameConflict, foreign.Error()).In(recheck)
	case err != nil:
		return failed(err)
	}
	return done
}

// addReader gives the ServiceAccount of the token the right to read the credential, which exists.
func (h *handler) addReader(ctx context.Context, request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken) result.Result {
	return rightsResult(h.sets.Add(ctx, ownedSet(request), request, h.readerRights(request, token)...), h.RecheckDelay())
}

// withdrawRights withdraws the rights of a request that got them before its Cluster was put into quarantine, and is not granted yet:
// ensureRights deletes the objects that rights leaves out in quarantine.
func (h *handler) withdrawRights(
	ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, token *fleet.ClusterRegistrationToken,
) result.Result {
	if _, err := h.accounts.Get(clusterNamespace(cluster), accountName(request)); err != nil {
		if h.givenRights.IsExpected(string(request.UID)) {
			return result.Skip().In(cacheDelay) // the cache does not show them yet
		}
		return done
	}
	return h.ensureRights(ctx, request, cluster, token)
}

// rights returns all objects of a request's set. In quarantine, and for a Clusternet agent while the hub does not serve such agents, it is
// only the ServiceAccount. All agents share the right to read Contents, see agentrole.Ensure.
func (h *handler) rights(request *fleet.ClusterRegistration, cluster *fleet.Cluster, token *fleet.ClusterRegistrationToken) []runtime.Object {
	namespace, account := clusterNamespace(cluster), accountName(request)
	agent := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}}
	serviceAccount := &corev1.ServiceAccount{ObjectMeta: desiredset.Managed(namespace, account)}
	serviceAccount.Annotations = map[string]string{
		fleet.ClusterAnnotation:                      cluster.Name,
		fleet.ClusterRegistrationAnnotation:          request.Name,
		fleet.ClusterRegistrationNamespaceAnnotation: request.Namespace,
	}
	objects := []runtime.Object{serviceAccount}
	if cluster.Spec.Quarantined {
		return objects
	}
	if claimsClusternet := request.Annotations[fleet.RequesterAnnotation] != ""; claimsClusternet {
		if registration.IsForClusternet(request, h.HubUser) {
			objects = append(objects, clusternet.Rights(request.Spec.ClientID, namespace, account)...)
		}
		return objects
	}

	// The heartbeat of the agent: to its own Lease, or to the status of its own Cluster.
	if h.usesLease(request) {
		lease := desiredset.Managed(namespace, account)
		lease.Annotations = map[string]string{fleet.ClusterAnnotation: cluster.Name, fleet.WorkspaceAnnotation: cluster.Namespace}
		objects = append(objects, &coordinationv1.Lease{ObjectMeta: lease})
	} else {
		heartbeat := desiredset.Managed(request.Namespace, request.Name)
		objects = append(objects,
			&rbacv1.Role{ObjectMeta: heartbeat, Rules: []rbacv1.PolicyRule{{
				Verbs: []string{"patch"}, APIGroups: []string{fleet.SchemeGroupVersion.Group},
				Resources: []string{"clusters/status"}, ResourceNames: []string{cluster.Name},
			}}},
			&rbacv1.RoleBinding{ObjectMeta: heartbeat, Subjects: agent, RoleRef: role("Role", request.Name)})
	}

	// An agent that renews its credential requests tokens of its own ServiceAccount, and of no other.
	var own []rbacv1.PolicyRule
	if registration.Renews(request) {
		own = []rbacv1.PolicyRule{{
			Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{account},
		}}
	}
	if h.usesLease(request) {
		own = append(own, rbacv1.PolicyRule{
			Verbs: []string{"get", "patch"}, APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{account},
		})
	}

	// The BundleDeployments of the agent: reading them, and reporting on them. The right to read the Secrets beside them, by name,
	// belongs to the Cluster, see agentrole.AllowObjects. With DisableBundles only Fleet's own controllers know which Secrets a
	// BundleDeployment names.
	switch {
	case h.DisableBundles:
		objects = append(objects, &rbacv1.RoleBinding{
			ObjectMeta: desiredset.Managed(namespace, request.Name), Subjects: agent, RoleRef: role("ClusterRole", registration.ClusterRoleBundleDeployment),
		})
	case len(own) > 0:
		own = append(agentrole.Rules(), own...)
	default: // these agents have the same rights, so a ClusterRole saves a Role for each
		objects = append(objects, &rbacv1.RoleBinding{
			ObjectMeta: desiredset.Managed(namespace, registration.AgentBindingName(account)), Subjects: agent, RoleRef: role("ClusterRole", registration.ClusterRoleAgent),
		})
	}
	if len(own) > 0 {
		named := desiredset.Managed(namespace, registration.AgentRoleName(account))
		objects = append(objects,
			&rbacv1.Role{ObjectMeta: named, Rules: own},
			&rbacv1.RoleBinding{ObjectMeta: named, Subjects: agent, RoleRef: role("Role", named.Name)})
	}
	return append(objects, h.readerRights(request, token)...)
}

// readerRights returns the right of the token's ServiceAccount to read this one credential. It exists only as long as the Secret: each request
// to the API server for an object of that namespace goes through all bindings there, and a request of another workspace with the same clientID and
// clientRandom may get a Secret of the same name, which the holder of this token must not read. A Clusternet agent reads its credential elsewhere.
func (h *handler) readerRights(request *fleet.ClusterRegistration, token *fleet.ClusterRegistrationToken) []runtime.Object {
	if token == nil || request.Annotations[fleet.RequesterAnnotation] != "" {
		return nil
	}
	if request.Status.Granted && !h.createdAnswers.IsExpected(string(request.UID)) {
		if existing, err := h.cachedAnswer(request); err == nil && (existing == nil || !isFor(existing, request)) {
			return nil
		}
	}
	named := desiredset.Managed(h.RegistrationNamespace(), registration.CredentialReaderName(accountName(request)))
	reader := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: request.Namespace, Name: asToken(token).ServiceAccount}}
	return []runtime.Object{
		&rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secretName(request)},
		}}},
		&rbacv1.RoleBinding{ObjectMeta: named, Subjects: reader, RoleRef: role("Role", named.Name)},
	}
}

// deleteFleetBindings deletes the bindings by which Fleet's own controllers let the agent read every Content, and every Secret in the
// namespace of its BundleDeployments. They belong to another object set, so the set of the hub does not prune them.
func (h *handler) deleteFleetBindings(ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster) error {
	namespace := clusterNamespace(cluster)
	binding, err := h.bindings.Get(namespace, request.Name)
	if err == nil && isFleetBinding(request, binding, binding.RoleRef) {
		err = h.Kubernetes.RbacV1().RoleBindings(namespace).Delete(ctx, binding.Name, writes.IfUID(binding))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting RoleBinding %s/%s, which Fleet created: %w", namespace, request.Name, err)
	}

	name := wranglername.SafeConcatName(request.Name, "content")
	clusterBinding, err := h.clusterBindings.Get(name)
	if err == nil && isFleetBinding(request, clusterBinding, clusterBinding.RoleRef) {
		err = h.Kubernetes.RbacV1().ClusterRoleBindings().Delete(ctx, name, writes.IfUID(clusterBinding))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting ClusterRoleBinding %s, which Fleet created: %w", name, err)
	}
	return nil
}

// isFleetBinding reports whether Fleet created a binding for this request, to one of the ClusterRoles that all its agents share.
func isFleetBinding(request *fleet.ClusterRegistration, binding metav1.Object, ref rbacv1.RoleRef) bool {
	a := binding.GetAnnotations()
	return ref.Kind == "ClusterRole" && (ref.Name == registration.ClusterRoleBundleDeployment || ref.Name == registration.ClusterRoleContent) &&
		a[apply.LabelGVK] == requestKind.String() && a[apply.LabelNamespace] == request.Namespace && a[apply.LabelName] == request.Name
}

// uninstallPoll is the interval at which the hub checks whether an agent, whose request is deleted, has uninstalled itself.
const uninstallPoll = 10 * time.Second

// removeObjectsUnlessUninstalling deletes the objects of a deleted request, unless its agent still needs them: to uninstall itself, or because the kind
// of requests was deleted. The deletion of the cluster namespace enqueues the request of an agent that uninstalls itself sooner than the timer.
func (h *handler) removeObjectsUnlessUninstalling(ctx context.Context, key string) error {
	namespace, name := kv.RSplit(key, "/")
	if !h.RequestsDeletedWithCluster.Take(types.NamespacedName{Namespace: namespace, Name: name}) {
		needed, err := h.identities.NeedsIdentity(ctx, namespace, name)
		if err != nil {
			return err
		}
		switch needed {
		case finalizing.IdentityUninstalling:
			h.queue.EnqueueAfter(namespace, name, uninstallPoll)
			return nil
		case finalizing.IdentityKept: // package orphans checks periodically
			return h.keepIdentity(ctx, namespace, name)
		case finalizing.IdentityUnused:
		}
	}
	return h.removeObjects(ctx, key)
}

// keepIdentity leaves the objects of a request that is gone with its kind. If its Cluster is in quarantine, it deletes all of them except the
// ServiceAccounts. The end of the quarantine does not restore them, because only the request says which rights the agent had.
func (h *handler) keepIdentity(ctx context.Context, namespace, name string) error {
	accounts, err := index.AccountsByRequest.Find(h.identities.Accounts, index.Key(namespace, name))
	if err != nil {
		return err
	}
	owner := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	isQuarantined, kept := false, map[string][]runtime.Object{} // by the label of the object set
	for _, account := range accounts {
		cluster, err := h.clusterNamed(namespace, account.Annotations[fleet.ClusterAnnotation])
		if err != nil {
			return err
		}
		isQuarantined = isQuarantined || cluster != nil && cluster.Spec.Quarantined
		kept[account.Labels[apply.LabelHash]] = append(kept[account.Labels[apply.LabelHash]], account)
	}
	if !isQuarantined {
		logrus.Warnf("ClusterRegistration %s/%s is gone because its CustomResourceDefinition was deleted: the agent keeps its rights", namespace, name)
		return nil
	}
	for _, id := range setIDs(namespace, name) {
		marks, _, err := apply.GetLabelsAndAnnotations(id, owner)
		if err != nil {
			return err
		}
		if err := h.sets.Ensure(ctx, id, owner, kept[marks[apply.LabelHash]]...); err != nil {
			return fmt.Errorf("deleting the rights of ClusterRegistration %s/%s, whose Cluster is quarantined: %w", namespace, name, err)
		}
	}
	return nil
}

// setIDs returns the names of the object sets of a request: that of this hub, and that of Fleet's hub, which lacks the key.
func setIDs(namespace, name string) []string {
	return []string{registration.OwnedSetID(setID, namespace, name), setID}
}

// removeObjects deletes the rights and the answer Secrets of a request. Most of them are in other namespaces and have no owner reference; the sets find
// them by label.
func (h *handler) removeObjects(ctx context.Context, key string) error {
	namespace, name := kv.RSplit(key, "/")
	for _, id := range setIDs(namespace, name) {
		if err := h.sets.Remove(ctx, id, key, requestKind); err != nil {
			return fmt.Errorf("deleting the rights of ClusterRegistration %s: %w", key, err)
		}
	}
	secrets, err := h.answersOf(key)
	if err != nil {
		return err
	}
	for _, secret := range secrets {
		if err := h.deleteAnswerOnly(ctx, secret); err != nil {
			return err
		}
	}
	return nil
}

func accountName(request *fleet.ClusterRegistration) string {
	return registration.RequestServiceAccount(request.Name, string(request.UID))
}

func role(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

// usesLease reports whether the agent sends its heartbeats to a Lease. It does not on a hub beside Fleet's own controllers: they also write
// the status of the Cluster, and would remove the fields that this hub copies from the Lease.
func (h *handler) usesLease(request *fleet.ClusterRegistration) bool {
	return registration.UsesLease(request) && !h.DisableBundles
}
