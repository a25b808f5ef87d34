package privilege

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// attempt is a request with the token of one identity.
type attempt struct {
	what string
	call func(context.Context) error
}

func requireAllowed(t *testing.T, attempts ...attempt) {
	t.Helper()
	for _, a := range attempts {
		testenv.Eventually(t, func() (bool, string) { // an API server learns of rights by a watch
			err := a.call(t.Context())
			return err == nil, fmt.Sprintf("%s: %v", a.what, err)
		})
	}
}

func assertForbidden(t *testing.T, attempts ...attempt) {
	t.Helper()
	for _, a := range attempts {
		err := a.call(t.Context())
		assert.True(t, apierrors.IsForbidden(err), "%s: want 403, got %v", a.what, err)
	}
}

// caller is an identity with a token, and the requests that it tries.
type caller struct {
	*testenv.Cluster
	workspace string
}

func (s *scene) caller(t *testing.T, token string) caller {
	t.Helper()
	return caller{s.Hub.ClientFor(t, token), s.Namespace}
}

func (c caller) deployments(what, namespace string) attempt {
	return attempt{what, func(ctx context.Context) error {
		_, err := c.Fleet.BundleDeployments(namespace).List(ctx, metav1.ListOptions{})
		return err
	}}
}

func (c caller) content(what, name string) attempt {
	return attempt{what, func(ctx context.Context) error {
		_, err := c.Fleet.Contents().Get(ctx, name, metav1.GetOptions{})
		return err
	}}
}

func (c caller) secret(what, namespace, name string) attempt {
	return attempt{what, func(ctx context.Context) error {
		_, err := c.Kubernetes.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	}}
}

func (c caller) status(what, cluster, patch string) attempt {
	return attempt{what, func(ctx context.Context) error {
		_, err := c.Fleet.Clusters(c.workspace).Patch(ctx, cluster, types.MergePatchType, []byte(`{"status":`+patch+`}`), metav1.PatchOptions{}, "status")
		return err
	}}
}

func (c caller) approve(what, request string) attempt {
	return attempt{what, func(ctx context.Context) error {
		_, err := c.Fleet.ClusterRegistrations(c.workspace).Patch(ctx, request, types.MergePatchType,
			[]byte(`{"status":{"approval":{"decision":"Approved"}}}`), metav1.PatchOptions{}, "status")
		return err
	}}
}

func (c caller) token(what, namespace, account string, seconds int64) attempt {
	return attempt{what, func(ctx context.Context) error {
		_, err := c.Kubernetes.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
		return err
	}}
}

func (c caller) request(what, namespace string) attempt {
	return attempt{what, func(ctx context.Context) error {
		_, err := c.Fleet.ClusterRegistrations(namespace).Create(ctx,
			&fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{GenerateName: "request-"}}, metav1.CreateOptions{})
		return err
	}}
}

func (c caller) lists(what string, list func(context.Context, metav1.ListOptions) error) attempt {
	return attempt{what, func(ctx context.Context) error { return list(ctx, metav1.ListOptions{}) }}
}

func TestRequestsOfAgents(t *testing.T) {
	s := newScene(t)
	c := s.caller(t, s.own.Bearer())
	home, away, cluster := s.own.ClusterNamespace(), s.other.ClusterNamespace(), s.own.Request.Status.ClusterName
	s.Hub.WriteSecret(t, home, "a-token", nil)
	const week, hour = 7 * 24 * 3600, 3600
	requireAllowed(t,
		c.deployments("its BundleDeployments", home),
		c.content("its Content", s.ownContent[0]),
		c.content("the Content of another cluster, whose name only that cluster reads", s.otherContent[0]),
		c.status("its heartbeat", cluster, `{"agent":{"namespace":"x"}}`),
		c.token("a token of its own", home, s.own.Account(), hour),
	)
	assertForbidden(t,
		c.deployments("BundleDeployments of another cluster", away),
		c.deployments("BundleDeployments of all", ""),
		c.lists("all Contents", func(ctx context.Context, o metav1.ListOptions) error {
			_, err := c.Fleet.Contents().List(ctx, o)
			return err
		}),
		c.secret("a Secret of its own namespace", home, "a-token"),
		c.secret("its credential on the hub", testenv.RegistrationNamespace, s.own.Secret.Name),
		c.secret("the credential of another", testenv.RegistrationNamespace, s.other.Secret.Name),
		c.secret("the values of the token", s.Namespace, "shared-tok"),
		c.secret("the kubeconfig of the hub", "fleet-local", registration.LocalSecret),
		c.status("the heartbeat of another", s.other.Request.Status.ClusterName, `{"agent":{"namespace":"x"}}`),
		c.status("the namespace in its status", cluster, `{"namespace":"kube-system"}`),
		c.token("a token of another agent", away, s.other.Account(), hour),
		c.token("a token of the hub", testenv.SystemNamespace, "fleet-controller", hour),
		c.token("a token of its own for more than a week", home, s.own.Account(), week+1),
		c.request("another registration", s.Namespace),
		c.approve("the approval of its own request", s.own.Request.Name),
	)
}

func TestLocalClusterHasNoCredentialOfTheHub(t *testing.T) {
	s := newScene(t)
	s.Hub.ClusterCondition(t, "fleet-local", registration.LocalCluster, fleet.ConditionImported, "True Imported")
	secret := testenv.RequireThere(t, s.Hub.Kubernetes.CoreV1().Secrets("fleet-local").Get, registration.LocalSecret)
	parsed, err := clientcmd.Load(secret.Data[registration.KubeconfigValue])
	require.NoError(t, err)
	for name, user := range parsed.AuthInfos {
		assert.Empty(t, user.Token+user.Password+string(user.ClientKeyData)+user.TokenFile, name)
	}
	tokens := testenv.List(t, s.Hub.Kubernetes.CoreV1().Secrets("").List, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken)})
	for _, token := range tokens.Items {
		assert.NotEqual(t, testenv.SystemNamespace, token.Namespace, "%s is a token of the hub that does not end", token.Name)
	}
}

func TestLocalAgentWithTheRightsOfTheChart(t *testing.T) {
	hub, _ := testenv.Clusters(t)
	hub.Hub(t, hub.InstallChart(t, chartValues(hub, false)))
	hub.ClusterCondition(t, "fleet-local", registration.LocalCluster, fleet.ConditionImported, "True Imported")
	testenv.RequireThere(t, hub.Kubernetes.AppsV1().Deployments(agentNamespace).Get, registration.AgentName)

	hub.InstallChart(t, chartValues(hub, true))
	hub.ClusterCondition(t, "fleet-local", registration.LocalCluster, fleet.ConditionImported, "True "+fleet.ReasonLocalAgentDisabled)
	testenv.RequireGone(t, hub.Kubernetes.AppsV1().Deployments(agentNamespace).Get, "Deployment", registration.AgentName)
	testenv.RequireGone(t, hub.Kubernetes.RbacV1().ClusterRoles().Get, "ClusterRole", agentmanifest.ClusterRoleName(agentNamespace))
}

// The hub removes the deployments of the agent of its own cluster with a token of that agent, which the policies must allow.
func TestRemovalOfTheLocalClusterWithTheRightsOfTheChart(t *testing.T) {
	hub, _ := testenv.Clusters(t)
	hub.Hub(t, hub.InstallChart(t, chartValues(hub, false)))
	hub.AwaitAdmission(t)
	hub.ClusterCondition(t, "fleet-local", registration.LocalCluster, fleet.ConditionImported, "True Imported")
	testenv.RequireThere(t, hub.Kubernetes.RbacV1().ClusterRoles().Get, agentmanifest.ClusterRoleName(agentNamespace))

	clusters := hub.Fleet.Clusters("fleet-local")
	require.NoError(t, clusters.Delete(t.Context(), registration.LocalCluster, metav1.DeleteOptions{}))
	testenv.RequireGone(t, clusters.Get, "Cluster", registration.LocalCluster)
	testenv.RequireGone(t, hub.Kubernetes.AppsV1().Deployments(agentNamespace).Get, "Deployment", registration.AgentName)
	testenv.RequireGone(t, hub.Kubernetes.RbacV1().ClusterRoles().Get, "ClusterRole", agentmanifest.ClusterRoleName(agentNamespace))
}
