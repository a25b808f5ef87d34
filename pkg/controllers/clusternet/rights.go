package clusternet

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	"github.com/muster-fleet/muster/pkg/controllers/agentrole"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
	"github.com/muster-fleet/muster/pkg/registration"
)

var (
	group = []string{v1beta1.SchemeGroupVersion.Group}
	apps  = []string{"apps.clusternet.io"}
)

// MayCreateRequests lets a ServiceAccount, and users with bootstrap tokens of Kubernetes, create ClusterRegistrationRequests. An admission
// policy limits an agent to its own.
func MayCreateRequests(namespace, account string, users ...string) runtime.Object {
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}}
	for _, user := range users {
		subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user})
	}
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: desiredset.Managed("", registration.ClusternetCreatorBinding(account)),
		Subjects:   subjects,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: registration.ClusterRoleClusternet},
	}
}

// Rights returns the rights of the agent with this clientID, whose ServiceAccount is in the cluster namespace: it reports to its ManagedCluster,
// watches three kinds without objects, stores one Secret, which the admission policies empty, and creates its request again when it is
// restarted.
func Rights(clientID, namespace, account string) []runtime.Object {
	named, own := desiredset.Managed(namespace, registration.AgentRoleName(account)), []string{memberNameOf(clientID)}
	return []runtime.Object{
		&rbacv1.Role{ObjectMeta: named, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"list"}, APIGroups: group, Resources: []string{"managedclusters"}},
			{Verbs: []string{"get", "patch"}, APIGroups: group, Resources: []string{"managedclusters"}, ResourceNames: own},
			{Verbs: []string{"update"}, APIGroups: group, Resources: []string{"managedclusters/status"}, ResourceNames: own},
			{Verbs: []string{"create"}, APIGroups: []string{corev1.GroupName}, Resources: []string{"secrets"}},
			{Verbs: []string{"get", "update"}, APIGroups: []string{corev1.GroupName}, Resources: []string{"secrets"}, ResourceNames: []string{v1beta1.AgentSecret}},
			{Verbs: []string{"list", "watch"}, APIGroups: apps, Resources: []string{"descriptions", "helmcharts", "helmreleases"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: named,
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: named.Name},
		},
		MayCreateRequests(namespace, account),
	}
}

// EnsureRole creates or corrects the ClusterRole that MayCreateRequests binds.
func EnsureRole(ctx context.Context, client kubernetes.Interface) error {
	return agentrole.EnsureRole(ctx, client, &rbacv1.ClusterRole{
		ObjectMeta: desiredset.Managed("", registration.ClusterRoleClusternet),
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"create"}, APIGroups: group, Resources: []string{"clusterregistrationrequests"}}},
	})
}
