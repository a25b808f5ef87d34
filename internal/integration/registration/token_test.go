package registration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestValuesSecret(t *testing.T) {
	s := testenv.ParallelStage(t)
	values := s.Hub.Token(t, s.Namespace, "tok", testenv.TTL(time.Hour))
	token := s.ReadyToken(t, "tok")

	assert.Equal(t, "tok", token.Status.SecretName)
	require.NotNil(t, token.Status.Expires)
	assert.True(t, token.CreationTimestamp.Add(time.Hour).Equal(token.Status.Expires.Time), "expires is creation plus ttl")
	assert.Contains(t, testenv.Condition(token.Status.Conditions, fleet.ConditionReady), "True TokenReady")

	secret := testenv.RequireThere(t, s.Hub.Kubernetes.CoreV1().Secrets(s.Namespace).Get, "tok")
	assert.Equal(t, "fleet.cattle.io/cluster-registration-values", string(secret.Type))
	assert.Equal(t, "true", secret.Labels["fleet.cattle.io/managed"])
	assert.Equal(t, []string{"values"}, keysOf(secret.Data))
	require.Len(t, secret.OwnerReferences, 1)
	assert.Equal(t, token.UID, secret.OwnerReferences[0].UID)

	var document map[string]any
	require.NoError(t, yaml.Unmarshal(secret.Data["values"], &document))
	assert.Equal(t, []string{"apiServerCA", "apiServerURL", "clusterNamespace", "systemRegistrationNamespace", "token", "tokenName"}, keysOf(document))
	assert.Equal(t, s.Hub.URL(), document["apiServerURL"])
	assert.Equal(t, string(s.Hub.CA()), document["apiServerCA"])
	assert.Equal(t, s.Namespace, document["clusterNamespace"])
	assert.Equal(t, testenv.RegistrationNamespace, document["systemRegistrationNamespace"])
	assert.Equal(t, "tok", document["tokenName"])
	assert.Equal(t, values.Token, document["token"])
}

func TestExpiredToken(t *testing.T) {
	sample.Long(t)
	s := testenv.NewStage(t)
	values := s.Hub.Token(t, s.Namespace, "short", testenv.TTL(time.Hour))
	token := s.ReadyToken(t, "short")
	testenv.RequireMay(t, s.Hub, values.Token, testenv.To("create", "clusterregistrations.fleet.cattle.io", s.Namespace, ""))
	account := registration.TokenServiceAccount("short", string(token.UID))
	core, rbac := s.Hub.Kubernetes.CoreV1(), s.Hub.Kubernetes.RbacV1()
	testenv.RequireThere(t, core.ServiceAccounts(s.Namespace).Get, account)
	s.Stop(t)

	const left = 5 * time.Second // until it expires by the clock of the next hub
	ahead := time.Until(token.Status.Expires.Time) - left
	s.Running = s.Hub.Hub(t, testenv.Ahead(ahead), unknownTime)
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Get, "ClusterRegistrationToken", "short")
	assert.False(t, time.Now().Add(ahead).Before(token.Status.Expires.Time), "it was not deleted before its time")
	testenv.RequireGone(t, core.ServiceAccounts(s.Namespace).Get, "ServiceAccount", account)
	testenv.RequireGone(t, core.Secrets(s.Namespace).Get, "Secret", "short")
	testenv.RequireGone(t, rbac.Roles(s.Namespace).Get, "Role", registration.TokenRoleName(account))
	testenv.RequireGone(t, rbac.RoleBindings(s.Namespace).Get, "RoleBinding", registration.TokenRoleBindingName(account))
	testenv.RequireUnauthorized(t, s.Hub, values.Token)
}

func TestCredentialOutlivesItsToken(t *testing.T) {
	s := testenv.NewStage(t)
	values := s.Hub.Token(t, s.Namespace, "short", testenv.TTL(10*time.Minute))
	r := s.Register(t, values, "outlives", "random")
	s.Stop(t)

	s.Running = s.Hub.Hub(t, testenv.Ahead(11*time.Minute), unknownTime)
	testenv.RequireUnauthorized(t, s.Hub, values.Token)
	assert.True(t, testenv.Accepts(t, s.Hub, r.Bearer()))
	testenv.RequireMay(t, s.Hub, r.Bearer(), testenv.To("list", "bundledeployments.fleet.cattle.io", r.ClusterNamespace(), ""))
	testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, r.Request.Name)
}
