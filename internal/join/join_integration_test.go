package join

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/check"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// One API server is the hub and the member.
func TestPlan_storedCredential(t *testing.T) {
	plane := withkinds.Shared(t).RESTConfig()
	core, err := kubernetes.NewForConfig(plane)
	require.NoError(t, err)
	created, err := core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "agent-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	namespace := created.Name
	_, err = core.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "east"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "east"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "east"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	issued, err := core.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "east", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}
	_, err = core.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: registration.AgentName},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: pod.Labels}, Template: pod},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	const nowhere = "https://127.0.0.1:1"
	now, valid := time.Now(), issued.Status.Token
	expired := agenttest.JWT("uid", now.Add(-48*time.Hour), now.Add(-24*time.Hour), 1)
	revoked := agenttest.JWT("uid", now, now.Add(24*time.Hour), 1)
	for name, row := range map[string]struct {
		stored, token     string // the address and the token of the agent
		values, workspace string // of the values
		want              Action
		says              string
	}{
		"same address, accepted":                    {plane.Host, valid, plane.Host, "clusters", Nothing, "the member is registered as Cluster clusters/east with the hub at "},
		"same address, rejected":                    {plane.Host, revoked, plane.Host, "clusters", Replace, "the hub rejects its credential of Cluster clusters/east"},
		"same address, no answer":                   {nowhere, valid, nowhere, "clusters", "", "it is not known whether that hub accepts it"},
		"other address, still accepted at the old":  {plane.Host, valid, nowhere, "clusters", "", "the member is registered as Cluster clusters/east"},
		"other address, rejected at the old":        {plane.Host, revoked, nowhere, "clusters", Replace, "the hub rejects its credential of Cluster clusters/east"},
		"other address, no answer, expired":         {nowhere, expired, plane.Host, "clusters", Replace, "the hub rejects its credential of Cluster clusters/east"},
		"other address, no answer, accepted at it":  {nowhere, valid, plane.Host, "clusters", Replace, "the hub of its Cluster clusters/east is now at " + plane.Host + " instead of " + nowhere},
		"other address, no answer, rejected at it":  {nowhere, revoked, plane.Host, "clusters", "", "it is not known whether that hub accepts it"},
		"other workspace, accepted":                 {plane.Host, valid, plane.Host, "other", "", "the values are for namespace other of the hub at "},
		"other workspace and address, expired":      {nowhere, expired, plane.Host, "other", "", "the values are for namespace other of the hub at "},
		"same address with a slash more, no answer": {nowhere, valid, nowhere + "/", "clusters", "", "it is not known whether that hub accepts it"},
	} {
		t.Run(name, func(t *testing.T) {
			access := hubclient.Access{Endpoint: hubclient.Endpoint{Server: row.stored, CA: plane.CAData}, Token: row.token, Namespace: namespace}
			kubeconfig, err := access.Kubeconfig()
			require.NoError(t, err)
			secrets := core.CoreV1().Secrets(namespace)
			_, err = secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: registration.CredentialSecret}, Data: map[string][]byte{
				registration.CredentialKubeconfig: kubeconfig, registration.CredentialDeploymentNamespace: []byte(namespace),
				registration.CredentialWorkspace: []byte("clusters"), registration.CredentialClusterName: []byte("east"),
			}}, metav1.CreateOptions{})
			require.NoError(t, err)
			defer func() {
				require.NoError(t, secrets.Delete(t.Context(), registration.CredentialSecret, metav1.DeleteOptions{}))
			}()
			values, err := yaml.Marshal(map[string]string{
				registration.BootstrapAPIServerURL: row.values, registration.BootstrapAPIServerCA: string(plane.CAData),
				registration.BootstrapWorkspace: row.workspace, registration.BootstrapToken: "t", registration.BootstrapTokenName: "again",
				registration.BootstrapSystemRegistrationNamespace: "registrations",
			})
			require.NoError(t, err)
			joiner, err := New(check.Inputs{Member: plane, AgentNamespace: namespace, Version: "v1", Now: time.Now}, values)
			require.NoError(t, err)
			action, why, err := joiner.Plan(t.Context())
			require.Equal(t, row.want, action, "%s %v", why, err)
			require.Contains(t, fmt.Sprint(why, err), row.says)
		})
	}
}
