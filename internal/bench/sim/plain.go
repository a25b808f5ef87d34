package sim

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// PlainClient makes 15 writes for each registration in sequence, and reads nothing. They are the one write of the agent, the 12 writes of the
// hub without those for the agent's Bundle, and two that earlier hubs made: the first status of the Cluster, which now follows the first heartbeat,
// and a ClusterRoleBinding. The client still makes them, so that its figures can be compared with kept runs. A hub that makes these writes
// cannot be faster.
type PlainClient struct {
	API *API
	// Run is part of all names, because a control plane can have objects of several runs.
	Run string
}

// Register makes the writes of count registrations.
func (p PlainClient) Register(ctx context.Context, count, limit int) error {
	return InParallel(count, limit, func(n int) error { return p.register(ctx, fmt.Sprintf("%s-%d", p.Run, n)) })
}

func (p PlainClient) register(ctx context.Context, id string) error {
	workspace, system, namespace := p.API.Workspace, p.API.SystemNamespace, registration.ClusterNamespace(p.API.Workspace, id)
	request, err := p.API.Fleet.ClusterRegistrations(workspace).Create(ctx, &fleet.ClusterRegistration{
		ObjectMeta: named(id), Spec: fleet.ClusterRegistrationSpec{ClientID: id, ClientRandom: id},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	cluster, err := p.API.Fleet.Clusters(workspace).Create(ctx, &fleet.Cluster{ObjectMeta: named(id), Spec: fleet.ClusterSpec{ClientID: id}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if _, err := p.API.Core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: named(namespace)}, metav1.CreateOptions{}); err != nil {
		return err
	}
	cluster.Status.Namespace = namespace
	if cluster, err = p.API.Fleet.Clusters(workspace).UpdateStatus(ctx, cluster, metav1.UpdateOptions{}); err != nil {
		return err
	}

	accounts := p.API.Core.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: named(id)}, metav1.CreateOptions{}); err != nil {
		return err
	}
	reply, err := accounts.CreateToken(ctx, id, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := p.grant(ctx, namespace, id); err != nil {
		return err
	}
	_, err = p.API.Core.CoreV1().Secrets(system).Create(ctx, &corev1.Secret{
		ObjectMeta: named(request.Name), Type: registration.SecretTypeAnswer,
		Data: map[string][]byte{registration.CredentialToken: []byte(reply.Status.Token)},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	owner := fmt.Appendf(nil, `{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":"Cluster","name":%q,"uid":%q}]}}`,
		fleet.SchemeGroupVersion.String(), cluster.Name, cluster.UID)
	requests := p.API.Fleet.ClusterRegistrations(workspace)
	if _, err := requests.Patch(ctx, request.Name, types.MergePatchType, owner, metav1.PatchOptions{}); err != nil {
		return err
	}
	granted := fmt.Appendf(nil, `{"status":{"granted":true,"clusterName":%q}}`, cluster.Name)
	_, err = requests.Patch(ctx, request.Name, types.MergePatchType, granted, metav1.PatchOptions{}, "status")
	return err
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue}}
}

// grant creates two Roles, three RoleBindings and a ClusterRoleBinding.
func (p PlainClient) grant(ctx context.Context, namespace, id string) error {
	rbac := p.API.Core.RbacV1()
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: id}}
	bind := func(namespace, kind, name string) error {
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
		_, err := rbac.RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: named(id), Subjects: subjects, RoleRef: ref}, metav1.CreateOptions{})
		return err
	}
	for _, ns := range []string{p.API.Workspace, p.API.SystemNamespace} {
		role := &rbacv1.Role{ObjectMeta: named(id), Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{id},
		}}}
		if _, err := rbac.Roles(ns).Create(ctx, role, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := bind(ns, "Role", id); err != nil {
			return err
		}
	}
	if err := bind(namespace, "ClusterRole", "view"); err != nil {
		return err
	}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}
	_, err := rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: named("bench-" + id), Subjects: subjects, RoleRef: ref}, metav1.CreateOptions{})
	return err
}
