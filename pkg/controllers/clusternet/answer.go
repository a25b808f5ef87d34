package clusternet

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

// caFor returns the configured CA of the hub, or why there is no answer without it.
func (h *handler) caFor() (ca []byte, refusal string) {
	ca = h.Config.Get().APIServerCA
	switch {
	case len(ca) == 0:
		return nil, fleet.ReasonAPIServerCAInvalid + ": " + errNoCA.Error()
	case !registration.IsCABundle(ca):
		return nil, fleet.ReasonAPIServerCAInvalid + ": " + agentspec.ErrBadCA.Error()
	}
	return ca, ""
}

// tokenFor returns the credential that was issued with the grant, or another one of the same ServiceAccount once its Secret is deleted.
// pending means that Kubernetes is issuing it.
func (h *handler) tokenFor(ctx context.Context, r *fleet.ClusterRegistration, cluster *fleet.Cluster) (token credential.Token, pending bool, err error) {
	secret, err := h.secrets.Get(h.RegistrationNamespace(), registration.AnswerSecretName(r.Spec.ClientID, r.Spec.ClientRandom))
	if err == nil && secret.Type == registration.SecretTypeAnswer && secret.Annotations[fleet.ClusterRegistrationAnnotation] == r.Name &&
		secret.Annotations[fleet.ClusterRegistrationNamespaceAnnotation] == r.Namespace && len(secret.Data[registration.CredentialToken]) > 0 {
		return credential.Token(secret.Data[registration.CredentialToken]), false, nil
	}
	issued, err := h.Issuer.IssueAtLeast(ctx, credential.Account{
		Namespace: registration.ClusterNamespace(cluster.Namespace, cluster.Name), Name: registration.RequestServiceAccount(r.Name, string(r.UID)),
	}, credential.LongLived)
	if errors.Is(err, credential.ErrPending) {
		return "", true, nil
	}
	return issued.Token, false, err
}

// ensureReader lets only the given users read a request, because the answer contains a credential: the creator of the request, and the agent, which
// reads the request again after a restart, with its own credential. Both objects belong to the request and are deleted with it. A binding that an
// earlier request has left may be for other users.
func (h *handler) ensureReader(ctx context.Context, request *v1beta1.ClusterRegistrationRequest, readers ...string) error {
	var subjects []rbacv1.Subject
	for _, user := range readers {
		subject := rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user} // of a bootstrap token of Kubernetes
		if namespace, name := account(user); name != "" {
			subject = rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
		}
		subjects = append(subjects, subject)
	}
	meta := desiredset.Managed("", registration.ClusternetReaderName(request.Name))
	meta.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: "ClusterRegistrationRequest", Name: request.Name, UID: request.UID,
	}}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"get"}, APIGroups: group, Resources: []string{"clusterregistrationrequests"}, ResourceNames: []string{request.Name},
	}}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   subjects,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
	}
	if err := ensureRole(ctx, h.Kubernetes.RbacV1().ClusterRoles(), role); err != nil {
		return fmt.Errorf("creating ClusterRole %s: %w", role.Name, err)
	}
	if err := ensureBinding(ctx, h.Kubernetes.RbacV1().ClusterRoleBindings(), binding); err != nil {
		return fmt.Errorf("creating ClusterRoleBinding %s: %w", binding.Name, err)
	}
	return nil
}

// ensureRole creates a ClusterRole, or changes the one that an earlier request has left. The hub has no right to delete ClusterRoles: RBAC cannot limit
// it to those of requests.
func ensureRole(ctx context.Context, client rbacclient.ClusterRoleInterface, wanted *rbacv1.ClusterRole) error {
	_, err := client.Create(ctx, wanted, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	existing, err := client.Get(ctx, wanted.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // Kubernetes has deleted it with the earlier request
		_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
		return err
	}
	if err != nil || reflect.DeepEqual(existing.OwnerReferences, wanted.OwnerReferences) && reflect.DeepEqual(existing.Rules, wanted.Rules) {
		return err
	}
	existing.OwnerReferences, existing.Rules = wanted.OwnerReferences, wanted.Rules
	_, err = client.Update(ctx, existing, metav1.UpdateOptions{})
	return err
}

// ensureBinding creates a ClusterRoleBinding, or replaces the one that an earlier request has left.
func ensureBinding(ctx context.Context, client rbacclient.ClusterRoleBindingInterface, wanted *rbacv1.ClusterRoleBinding) error {
	_, err := client.Create(ctx, wanted, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	existing, err := client.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case err == nil && reflect.DeepEqual(existing.OwnerReferences, wanted.OwnerReferences) && reflect.DeepEqual(existing.Subjects, wanted.Subjects):
		return nil
	case err == nil:
		err = client.Delete(ctx, wanted.Name, writes.IfUID(existing))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	_, err = client.Create(ctx, wanted, metav1.CreateOptions{})
	return err
}

// deleteReader takes the right to read a request away. Kubernetes deletes the ClusterRole with the request.
func (h *handler) deleteReader(ctx context.Context, request string) error {
	binding, err := h.readerBindings.Get(registration.ClusternetReaderName(request))
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	err = h.Kubernetes.RbacV1().ClusterRoleBindings().Delete(ctx, binding.Name, writes.IfUID(binding))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting ClusterRoleBinding %s: %w", binding.Name, err)
	}
	return nil
}
