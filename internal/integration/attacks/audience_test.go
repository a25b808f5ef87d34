package attacks

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// The API server does not set the audience of the tokens that an agent requests. The thief of the agent's credential asks for one that another
// service accepts.
func TestTokenForAnotherService(t *testing.T) {
	sample.Long(t)
	s := testenv.EmptyStage(t)
	without := s.Hub.WithoutMutatingPolicies(t)
	s.Running = s.Hub.Hub(t, without)
	v := s.RegisterRenewing(t, s.Token(t, "shared"), "victim", "victim")
	accounts := s.Hub.ClientFor(t, v.Bearer()).Kubernetes.CoreV1().ServiceAccounts(v.ClusterNamespace())
	ask := func(audiences ...string) error {
		return only(accounts.CreateToken(t.Context(), v.Account(),
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{}))
	}
	testenv.Eventually(t, func() (bool, string) {
		err := ask("vault")
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), registration.ClusterRoleAudience), "it got a token for vault"
	})
	require.NoError(t, ask(), "the agent renews its credential")

	t.Log("the recorded audiences are outdated: the hub corrects them")
	s.Stop(t)
	roles := s.Hub.Kubernetes.RbacV1().ClusterRoles()
	recorded := testenv.RequireThere(t, roles.Get, registration.ClusterRoleAudience).Annotations[fleet.AudiencesAnnotation]
	testenv.Merge(t, roles.Patch, registration.ClusterRoleAudience, `{"metadata":{"annotations":{"`+fleet.AudiencesAnnotation+`":"https://before"}}}`)
	testenv.Eventually(t, func() (bool, string) { return apierrors.IsForbidden(ask()), "it is not refused" })
	s.Running = s.Hub.Hub(t, without)
	testenv.Eventually(t, func() (bool, string) { err := ask(); return err == nil, "the agent cannot renew" })
	assert.Equal(t, recorded, testenv.RequireThere(t, roles.Get, registration.ClusterRoleAudience).Annotations[fleet.AudiencesAnnotation])
	require.True(t, apierrors.IsForbidden(ask("vault")))
}
