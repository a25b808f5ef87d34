package identities

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/agent"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// An API server before 1.36 records no creators. It checks the token that a request names.
func TestOrigin_namedToken(t *testing.T) {
	sample.Long(t)
	s := testenv.EmptyStage(t)
	s.Running = s.Hub.Hub(t, s.Hub.WithoutMutatingPolicies(t))
	mine := s.Token(t, "mine")
	victims := s.Hub.Token(t, s.Namespace, "victims", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"edge"}})
	victim := s.Register(t, victims, "edge", "1")
	assert.Contains(t, testenv.Condition(victim.Request.Status.Conditions, fleet.ConditionOriginProved), "True OriginProved")

	s.Register(t, mine, "other", "1") // the token has its rights
	attack := &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "request-", Labels: map[string]string{fleet.RegistrationTokenLabel: "victims"}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "2" + s.Namespace},
	}
	requests := s.Hub.ClientFor(t, mine.Token).Fleet.ClusterRegistrations(s.Namespace)
	_, err := requests.Create(t.Context(), attack, metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "the holder of another token names it: %v", err)
	works(t, s.Hub, victim)
	assert.Equal(t, int64(1), tokenOf(t, s.Hub, victims).Status.Uses)
}

// The hub assumes the import token for a request that names no token. The thief cannot read the answer, and must not take anything from
// the agent or the token.
func TestOrigin_noToken(t *testing.T) {
	sample.Long(t)
	s := testenv.EmptyStage(t)
	s.Running = s.Hub.Hub(t, s.Hub.WithoutMutatingPolicies(t))
	mine := s.Token(t, "mine")
	cluster := s.ImportInto(t, "imported", s.Member.Namespace(t))
	values := s.Hub.Values(t, s.Namespace, registration.ImportTokenName("imported"))
	victim := s.Register(t, values, cluster.Spec.ClientID, "1") // it does not renew
	uses := tokenOf(t, s.Hub, values).Status.Uses

	unnamed := mine
	unnamed.TokenName = ""
	attack := ask(t, s.Hub, unnamed, cluster.Spec.ClientID, "2")
	says(t, s.Hub, attack, "True Granted")
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, attack.Name, fleet.ConditionOriginProved, "False OriginUnknown")
	works(t, s.Hub, victim)
	testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, victim.Request.Name)
	assert.Equal(t, uses, tokenOf(t, s.Hub, values).Status.Uses)
	name := registration.AnswerSecretName(cluster.Spec.ClientID, "2"+s.Namespace)
	_, err := s.Hub.ClientFor(t, mine.Token).Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace).Get(t.Context(), name, metav1.GetOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)

	// A request that names the token takes the place of the older ones.
	again := s.Register(t, values, cluster.Spec.ClientID, "3")
	assert.Contains(t, testenv.Condition(again.Request.Status.Conditions, fleet.ConditionGranted), "True Granted")
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", victim.Request.Name)
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", attack.Name)
}

// A hub is upgraded from a version that gave tokens no verb register: the policy is in force before the hub has added the verb. Agents wait
// until then.
func TestOrigin_tokensOfAnEarlierVersion(t *testing.T) {
	sample.Long(t)
	s := testenv.EmptyStage(t)
	without := s.Hub.WithoutMutatingPolicies(t)
	earlier := s.Hub.Hub(t, without)
	values := s.Token(t, "earlier")
	token := s.ReadyToken(t, "earlier")
	s.Register(t, values, "before", "1")
	earlier.Stop(t)
	roles := s.Hub.Kubernetes.RbacV1().Roles(s.Namespace)
	role := testenv.RequireThere(t, roles.Get, registration.TokenRoleName(registration.TokenServiceAccount("earlier", string(token.UID))))
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Verbs, "register") })
	require.Len(t, role.Rules, 1)
	testenv.Update(t, roles.Update, role)
	requests := s.Hub.ClientFor(t, values.Token).Fleet.ClusterRegistrations(s.Namespace)
	testenv.Eventually(t, func() (bool, string) { // the API server applies Roles from its cache
		_, err := requests.Create(t.Context(), &fleet.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{GenerateName: registration.RequestPrefix, Labels: map[string]string{fleet.RegistrationTokenLabel: "earlier"}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err), fmt.Sprint(err)
	})

	namespace := s.Member.Namespace(t)
	testenv.BootstrapAgent(t, s.Member, namespace, values, map[string]string{"config": `{"clientID":"after"}`})
	log, logged := logrustest.NewNullLogger()
	s.Member.Agent(t, namespace, func(c *agent.Config) { c.Log = log })
	testenv.Eventually(t, func() (bool, string) {
		return slices.ContainsFunc(logged.AllEntries(), func(e *logrus.Entry) bool { return strings.Contains(e.Message, "may not register") }), "the agent was not refused"
	})
	s.Running = s.Hub.Hub(t, without)
	testenv.RequireCredential(t, s.Member, namespace, registration.ClusterName("after"))
}
