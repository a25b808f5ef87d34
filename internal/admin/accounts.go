package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rancher/wrangler/v3/pkg/name"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// AccountRole is the ClusterRole on a member that the ServiceAccount of an import is bound to. The hub needs all rights: it installs an agent
// that has them, uninstalls Helm releases with objects of any kind if the agent does not answer, and restores the agent's namespace.
const AccountRole = "cluster-admin"

// accountNamespace exists on every cluster. If the namespace of the agent is deleted, the hub still has a credential to install the agent again.
const accountNamespace = metav1.NamespaceSystem

const (
	accountLabel      = "app.kubernetes.io/managed-by"
	accountLabelValue = "muster"
)

// MemberAccount is a ServiceAccount on a member, with which a hub connects to the member. The ClusterRoleBinding of the same name owns the
// ServiceAccount, so the member deletes both if the binding is deleted.
type MemberAccount struct{ Namespace, Name string }

func (a MemberAccount) String() string { return a.Namespace + "/" + a.Name }

// AccountOf returns the ServiceAccount for a Cluster of this hub. Its name contains a digest of the UID of the workspace: if two hubs import the
// same member under the same name, each has its own ServiceAccount, and does not remove that of the other hub.
func (h *Hub) AccountOf(ctx context.Context, workspace, cluster string) (MemberAccount, error) {
	namespace, err := h.Kubernetes.CoreV1().Namespaces().Get(ctx, workspace, metav1.GetOptions{})
	if err != nil {
		return MemberAccount{}, fmt.Errorf("the ServiceAccount on the member is named after the UID of Namespace %s of the hub: %w", workspace, h.Explain(err, workspace))
	}
	digest := name.Hex(string(namespace.UID)+"/"+cluster, 10)
	return MemberAccount{accountNamespace, name.SafeConcatName("muster-import", workspace, cluster, digest)}, nil
}

// Ensure creates the ServiceAccount, its ClusterRoleBinding and a Secret with its token, or those of them that are missing, and returns the token. With
// dryRun, the API server only checks whether it would create them. The token is valid as long as the ServiceAccount exists: nothing could renew
// it, because the hub does not write kubeconfigs.
func (a MemberAccount) Ensure(ctx context.Context, member kubernetes.Interface, dryRun bool) (token string, err error) {
	options := metav1.CreateOptions{}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	meta := metav1.ObjectMeta{Name: a.Name, Labels: map[string]string{accountLabel: accountLabelValue}}
	bindings := member.RbacV1().ClusterRoleBindings()
	wanted := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: AccountRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: a.Namespace, Name: a.Name}},
	}
	binding, err := bindings.Create(ctx, wanted, options)
	if apierrors.IsAlreadyExists(err) {
		binding, err = bindings.Get(ctx, a.Name, metav1.GetOptions{})
		if err == nil && (binding.Labels[accountLabel] != accountLabelValue || binding.RoleRef != wanted.RoleRef ||
			!slices.Equal(binding.Subjects, wanted.Subjects) || binding.DeletionTimestamp != nil) {
			return "", fmt.Errorf("ClusterRoleBinding %s exists on the member, and does not belong to this import: delete it there first", a.Name)
		}
	}
	if err != nil {
		return "", fmt.Errorf("ClusterRoleBinding %s on the member: %w", a.Name, err)
	}

	meta.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(binding, rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"))}
	accounts := member.CoreV1().ServiceAccounts(a.Namespace)
	account, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, options)
	if apierrors.IsAlreadyExists(err) {
		account, err = accounts.Get(ctx, a.Name, metav1.GetOptions{})
		if err == nil && !metav1.IsControlledBy(account, binding) {
			return "", fmt.Errorf("ServiceAccount %s on the member belongs to a ClusterRoleBinding that was deleted: "+
				"run the command again when the member has removed the ServiceAccount, or delete it", a)
		}
	}
	if err != nil {
		return "", fmt.Errorf("ServiceAccount %s on the member: %w", a, err)
	}
	if dryRun {
		return "", nil
	}

	secrets := member.CoreV1().Secrets(a.Namespace)
	for {
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name: a.Name, Labels: meta.Labels,
				Annotations: map[string]string{corev1.ServiceAccountNameKey: a.Name, corev1.ServiceAccountUIDKey: string(account.UID)},
			},
			Type: corev1.SecretTypeServiceAccountToken,
		}, metav1.CreateOptions{})
		existed := apierrors.IsAlreadyExists(err)
		if err != nil && !existed {
			return "", fmt.Errorf("Secret %s on the member: %w", a, err)
		}
		_, err = awaited[*corev1.Secret]{
			what: fmt.Sprintf("Secret %s on the member", a), get: secrets.Get, name: a.Name,
			status: "the member has not written a token to it: does its kube-controller-manager run?",
			check: func(secret *corev1.Secret) (bool, string, error) {
				if secret.Annotations[corev1.ServiceAccountUIDKey] == string(account.UID) {
					token = string(secret.Data[corev1.ServiceAccountTokenKey])
				}
				return token != "", "", nil
			},
		}.wait(ctx)
		if !existed || !errors.Is(err, errDeleted) {
			return token, err
		}
		// A Secret with this name was left of an earlier ServiceAccount, and the member has deleted it.
	}
}

// Remove deletes the ClusterRoleBinding; the member then deletes the ServiceAccount and its Secret. It fails if there is no such binding, because
// the kubeconfig may be for another cluster, or if an import did not create the binding.
func (a MemberAccount) Remove(ctx context.Context, member kubernetes.Interface) error {
	bindings := member.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Get(ctx, a.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("ClusterRoleBinding %s does not exist on the member: it was deleted before, or the kubeconfig is for another cluster", a.Name)
	case err == nil && binding.Labels[accountLabel] != accountLabelValue:
		return fmt.Errorf("ClusterRoleBinding %s on the member was not created by an import: it lacks the label %s=%s", a.Name, accountLabel, accountLabelValue)
	case err == nil:
		err = bindings.Delete(ctx, a.Name, *metav1.NewPreconditionDeleteOptions(string(binding.UID)))
	}
	if err != nil {
		return fmt.Errorf("ClusterRoleBinding %s on the member: %w", a.Name, err)
	}
	return nil
}
