package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func ttl(d time.Duration) fleet.ClusterRegistrationTokenSpec {
	return fleet.ClusterRegistrationTokenSpec{TTL: &metav1.Duration{Duration: d}}
}

// readyToken waits until the status says that the token can be used.
func (s *stage) readyToken(t *testing.T, name string) *fleet.ClusterRegistrationToken {
	t.Helper()
	var found *fleet.ClusterRegistrationToken
	testenv.Eventually(t, func() (bool, string) {
		token, err := s.hub.Fleet.ClusterRegistrationTokens(s.namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		found = token
		return token.Status.SecretName != "", testenv.Condition(token.Status.Conditions, fleet.ConditionReady)
	})
	return found
}

func TestATokenGetsASecretWithTheValuesToInstallAgentsWith(t *testing.T) {
	s := newStage(t)
	values := s.hub.Token(t, s.namespace, "tok", ttl(time.Hour))
	token := s.readyToken(t, "tok")

	assert.Equal(t, "tok", token.Status.SecretName)
	require.NotNil(t, token.Status.Expires)
	assert.True(t, token.CreationTimestamp.Add(time.Hour).Equal(token.Status.Expires.Time), "expires is creation plus ttl")
	assert.Contains(t, testenv.Condition(token.Status.Conditions, fleet.ConditionReady), "True TokenReady")

	secret := requireThere(t, s.hub.Kubernetes.CoreV1().Secrets(s.namespace).Get, "tok")
	assert.Equal(t, "fleet.cattle.io/cluster-registration-values", string(secret.Type))
	assert.Equal(t, "true", secret.Labels["fleet.cattle.io/managed"])
	assert.Equal(t, []string{"values"}, keysOf(secret.Data))
	require.Len(t, secret.OwnerReferences, 1)
	assert.Equal(t, token.UID, secret.OwnerReferences[0].UID)

	var document map[string]any
	require.NoError(t, yaml.Unmarshal(secret.Data["values"], &document))
	assert.Equal(t, []string{"apiServerCA", "apiServerURL", "clusterNamespace", "systemRegistrationNamespace", "token", "tokenName"}, keysOf(document))
	assert.Equal(t, s.hub.URL(), document["apiServerURL"])
	assert.Equal(t, string(s.hub.CA()), document["apiServerCA"])
	assert.Equal(t, s.namespace, document["clusterNamespace"])
	assert.Equal(t, registrationNamespace, document["systemRegistrationNamespace"])
	assert.Equal(t, "tok", document["tokenName"])
	assert.Equal(t, values.Token, document["token"])
}

func TestATokenMayCreateRequestsAndNothingElse(t *testing.T) {
	s := newStage(t)
	other := s.hub.Namespace(t)
	values := s.token(t, "tok")
	token := s.readyToken(t, "tok")
	account := registration.TokenServiceAccount("tok", string(token.UID))

	assert.Equal(t, []string{"create clusterregistrations"}, rightsIn(t, s.hub, values.Token, s.namespace))
	for _, elsewhere := range []string{other, registrationNamespace, "cattle-fleet-system", "default", "kube-system"} {
		assert.Empty(t, rightsIn(t, s.hub, values.Token, elsewhere), "in namespace %s", elsewhere)
	}
	requireMay(t, s.hub, values.Token, right{"create", "clusterregistrations.fleet.cattle.io", s.namespace, ""})
	requireMayNot(t, s.hub, values.Token,
		right{"create", "clusterregistrations.fleet.cattle.io", other, ""},
		right{"get", "clusterregistrations.fleet.cattle.io", s.namespace, ""},
		right{"list", "clusterregistrations.fleet.cattle.io", s.namespace, ""},
		right{"update", "clusterregistrations.fleet.cattle.io/status", s.namespace, ""},
		right{"create", "clusters.fleet.cattle.io", s.namespace, ""},
		right{"get", "clusterregistrationtokens.fleet.cattle.io", s.namespace, "tok"},
		right{"get", "secrets", s.namespace, "tok"},
		right{"list", "secrets", registrationNamespace, ""},
		right{"create", "serviceaccounts/token", s.namespace, account},
		right{"impersonate", "serviceaccounts", s.namespace, account},
	)
	rbac := s.hub.Kubernetes.RbacV1()
	requireThere(t, rbac.Roles(s.namespace).Get, registration.RoleName(account))
	requireThere(t, rbac.RoleBindings(s.namespace).Get, registration.RoleBindingName(account))
}

func TestAnExpiredTokenIsGoneWithAllThatCameWithIt(t *testing.T) {
	s := newStage(t)
	values := s.hub.Token(t, s.namespace, "short", ttl(5*time.Second))
	token := s.readyToken(t, "short")
	requireMay(t, s.hub, values.Token, right{"create", "clusterregistrations.fleet.cattle.io", s.namespace, ""})
	account := registration.TokenServiceAccount("short", string(token.UID))
	core, rbac := s.hub.Kubernetes.CoreV1(), s.hub.Kubernetes.RbacV1()
	requireThere(t, core.ServiceAccounts(s.namespace).Get, account)

	requireGone(t, s.hub.Fleet.ClusterRegistrationTokens(s.namespace).Get, "ClusterRegistrationToken", "short")
	assert.False(t, time.Now().Before(token.Status.Expires.Time), "it was not deleted before its time")
	requireGone(t, core.ServiceAccounts(s.namespace).Get, "ServiceAccount", account)
	requireGone(t, core.Secrets(s.namespace).Get, "Secret", "short")
	requireGone(t, rbac.Roles(s.namespace).Get, "Role", registration.RoleName(account))
	requireGone(t, rbac.RoleBindings(s.namespace).Get, "RoleBinding", registration.RoleBindingName(account))
	requireUnauthorized(t, s.hub, values.Token)
}

func TestACredentialOutlivesTheTokenItWasAskedForWith(t *testing.T) {
	s := newStage(t)
	values := s.hub.Token(t, s.namespace, "short", ttl(8*time.Second))
	r := s.register(t, values, "outlives", "random")

	requireUnauthorized(t, s.hub, values.Token)
	requireMay(t, s.hub, r.bearer(), right{"list", "bundledeployments.fleet.cattle.io", r.clusterNamespace(), ""})
	requireThere(t, s.hub.Fleet.ClusterRegistrations(s.namespace).Get, r.request.Name)
}

func TestATTLInDaysIsRefusedAtAdmission(t *testing.T) {
	s := newStage(t)
	client, err := dynamic.NewForConfig(s.hub.RESTConfig())
	require.NoError(t, err)
	tokens := client.Resource(fleet.SchemeGroupVersion.WithResource("clusterregistrationtokens")).Namespace(s.namespace)
	for _, bad := range []string{"1d", "1w", "-5m", "soon"} {
		_, err := tokens.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "ClusterRegistrationToken",
			"metadata": map[string]any{"name": "bad"},
			"spec":     map[string]any{"ttl": bad},
		}}, metav1.CreateOptions{})
		require.Error(t, err, bad)
		assert.True(t, apierrors.IsInvalid(err), "%s: %v", bad, err)
		assert.ErrorContains(t, err, "ttl must be '0' or a Go duration such as '240h' or '30m'; units d and w are not known")
	}
}
