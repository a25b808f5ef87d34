package sim

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/bench/figures"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Floor is a plain client that makes the 15 writes of a registration, one after the other, with all it needs to know in its
// head: the agent's one, and a hub's 14 without the agent's Bundle. No hub can be faster that makes the same writes.
type Floor struct {
	API *API
	// Run makes the names of one run its own.
	Run string
	// Secrets says that tokens come from Secrets, which Kubernetes fills, instead of TokenRequest.
	Secrets bool
}

// Register makes the writes of count registrations, so many at a time, and returns how long each took.
func (f Floor) Register(ctx context.Context, count, atATime int) (figures.Times, error) {
	took := make(figures.Times, count)
	err := InParallel(count, atATime, func(n int) error {
		began := time.Now()
		err := f.registration(ctx, fmt.Sprintf("%s-%d", f.Run, n))
		took[n] = time.Since(began)
		return err
	})
	return took, err
}

func (f Floor) registration(ctx context.Context, id string) error {
	namespace := registration.ClusterNamespace(f.API.Workspace, id)
	request, err := f.API.Fleet.ClusterRegistrations(f.API.Workspace).Create(ctx, &fleet.ClusterRegistration{
		ObjectMeta: named("", id), Spec: fleet.ClusterRegistrationSpec{ClientID: id, ClientRandom: id},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	cluster, err := f.cluster(ctx, id, namespace)
	if err != nil {
		return err
	}
	token, err := f.identity(ctx, namespace, id)
	if err != nil {
		return err
	}
	if err := f.rights(ctx, namespace, id); err != nil {
		return err
	}
	return f.answer(ctx, request, cluster, token)
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue}}
}

func (f Floor) cluster(ctx context.Context, id, namespace string) (*fleet.Cluster, error) {
	cluster, err := f.API.Fleet.Clusters(f.API.Workspace).Create(ctx, &fleet.Cluster{
		ObjectMeta: named("", id), Spec: fleet.ClusterSpec{ClientID: id},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	_, err = f.API.Core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: named("", namespace)}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	cluster.Status.Namespace = namespace
	return f.API.Fleet.Clusters(f.API.Workspace).UpdateStatus(ctx, cluster, metav1.UpdateOptions{})
}

func (f Floor) identity(ctx context.Context, namespace, id string) (string, error) {
	accounts := f.API.Core.CoreV1().ServiceAccounts(namespace)
	account, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: named(namespace, id)}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if f.Secrets {
		return f.tokenSecret(ctx, account)
	}
	reply, err := accounts.CreateToken(ctx, id, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return reply.Status.Token, nil
}

func (f Floor) tokenSecret(ctx context.Context, account *corev1.ServiceAccount) (token string, err error) {
	secrets := f.API.Core.CoreV1().Secrets(account.Namespace)
	secret := &corev1.Secret{ObjectMeta: named(account.Namespace, account.Name+"-token"), Type: corev1.SecretTypeServiceAccountToken}
	secret.Annotations = map[string]string{corev1.ServiceAccountNameKey: account.Name}
	if _, err := secrets.Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	return token, Await(ctx, "the token Secret of "+account.Name, func(ctx context.Context) (bool, error) {
		filled, err := secrets.Get(ctx, secret.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		token = string(filled.Data[corev1.ServiceAccountTokenKey])
		return token != "", nil
	})
}

func (f Floor) rights(ctx context.Context, namespace, id string) error {
	subject := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: id}}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	for _, ns := range []string{f.API.Workspace, f.API.SystemNamespace} {
		role := &rbacv1.Role{ObjectMeta: named(ns, id), Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{id},
		}}}
		if _, err := f.API.Core.RbacV1().Roles(ns).Create(ctx, role, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := bind(ctx, f.API.Core, &rbacv1.RoleBinding{ObjectMeta: named(ns, id), Subjects: subject, RoleRef: ref("Role", id)}); err != nil {
			return err
		}
	}
	agents := &rbacv1.RoleBinding{ObjectMeta: named(namespace, id), Subjects: subject, RoleRef: ref("ClusterRole", "view")}
	if err := bind(ctx, f.API.Core, agents); err != nil {
		return err
	}
	everywhere := &rbacv1.ClusterRoleBinding{ObjectMeta: named("", "bench-"+id), Subjects: subject, RoleRef: ref("ClusterRole", "view")}
	_, err := f.API.Core.RbacV1().ClusterRoleBindings().Create(ctx, everywhere, metav1.CreateOptions{})
	return err
}

func bind(ctx context.Context, core kubernetes.Interface, binding *rbacv1.RoleBinding) error {
	_, err := core.RbacV1().RoleBindings(binding.Namespace).Create(ctx, binding, metav1.CreateOptions{})
	return err
}

func (f Floor) answer(ctx context.Context, request *fleet.ClusterRegistration, cluster *fleet.Cluster, token string) error {
	_, err := f.API.Core.CoreV1().Secrets(f.API.SystemNamespace).Create(ctx, &corev1.Secret{
		ObjectMeta: named(f.API.SystemNamespace, request.Name), Type: registration.SecretTypeCredential,
		Data: map[string][]byte{registration.CredentialToken: []byte(token)},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	owner := fmt.Appendf(nil, `{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":"Cluster","name":%q,"uid":%q}]}}`,
		fleet.SchemeGroupVersion.String(), cluster.Name, cluster.UID)
	requests := f.API.Fleet.ClusterRegistrations(f.API.Workspace)
	if _, err := requests.Patch(ctx, request.Name, types.MergePatchType, owner, metav1.PatchOptions{}); err != nil {
		return err
	}
	granted := fmt.Appendf(nil, `{"status":{"granted":true,"clusterName":%q}}`, cluster.Name)
	_, err = requests.Patch(ctx, request.Name, types.MergePatchType, granted, metav1.PatchOptions{}, "status")
	return err
}
