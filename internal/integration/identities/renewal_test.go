package identities

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// TestRenewals runs agents of one hub at the same time, each in a workspace of its own, because they mostly wait.
func TestRenewals(t *testing.T) {
	shared := newStage(t)
	for name, test := range map[string]func(*testing.T, *stage){
		"a renewal": testRenewal,
		"an expired credential of an imported agent":       testExpiredCredentialOfAnImportedAgent,
		"an expired credential of a self-registered agent": testExpiredCredentialOfASelfRegisteredAgent,
		"another registration without a gap":               testRegisterAgainWithoutAGap,
		"a denial and a late approval":                     testDenialAndLateApproval,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := *shared.Stage
			own.Namespace = shared.Hub.Namespace(t)
			test(t, &stage{&own})
		})
	}
}

func testRenewal(t *testing.T, s *stage) {
	namespace := s.Member.Namespace(t)
	cluster, _ := s.installed(t, namespace, "edge", hasty(0.005)) // about three seconds
	before := s.requests(t)
	require.Len(t, before, 1)
	first, old := s.bearer(t, namespace)
	require.Equal(t, lifetime, old.Lifetime(), "the hub is configured to give no longer one")

	second, renewed := s.awaitOther(t, namespace, first)
	require.Equal(t, lifetime, renewed.Lifetime())
	require.Equal(t, old.UID, renewed.UID, "it is the same identity")
	require.True(t, renewed.Expires.After(old.Expires))
	found := s.EventuallyCluster(t, cluster, func(c *fleet.Cluster) (bool, string) {
		expires := c.Status.Agent.CredentialExpires
		return expires != nil && !expires.Time.Before(renewed.Expires), fmt.Sprintf("the Cluster shows %v, the token ends at %v", expires, renewed.Expires)
	})
	require.Equal(t, before[0], found.Status.Agent.Registration)
	require.NotEmpty(t, found.Status.Agent.Instance)

	for name, token := range map[string]string{"old": first, "new": second} {
		_, err := s.Hub.ClientFor(t, token).Fleet.BundleDeployments(found.Status.Namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err, "the %s token", name)
	}
	s.awaitOther(t, namespace, second) // again and again
	require.Equal(t, before, s.requests(t), "no agent registers again")
	require.Equal(t, found.Status.Agent.Instance, s.Cluster(t, cluster).Status.Agent.Instance, "the same process all the time")
	requireNoSecret(t, s, cluster, first)
}

// requireNoSecret checks that the Cluster contains no part of the token.
func requireNoSecret(t *testing.T, s *stage, cluster, token string) {
	t.Helper()
	require.NotContains(t, testenv.Bytes(t, s.Cluster(t, cluster)), token[len(token)/2:])
}

func testExpiredCredentialOfAnImportedAgent(t *testing.T, s *stage) {
	namespace := s.Member.Namespace(t)
	s.ImportInto(t, "managed", namespace)
	running := s.Member.Agent(t, namespace, writingStatus(hasty(2.0/3)))
	s.Hub.ClusterCondition(t, s.Namespace, "managed", fleet.ConditionRegistered, "True")
	testenv.RequireCredential(t, s.Member, namespace, "managed")
	_, claims := s.bearer(t, namespace)
	before := s.requests(t)
	require.Len(t, before, 1)

	running.Stop(t)
	foreign := s.Member.TokenOf(t, namespace, "default")
	s.lose(t, namespace, foreign)
	s.Hub.ClusterCondition(t, s.Namespace, "managed", fleet.ConditionConnected, "False")
	require.Equal(t, claims.Expires.Unix(), s.Cluster(t, "managed").Status.Agent.CredentialExpires.Unix())
	s.ends(t, "managed")

	s.Member.Agent(t, namespace, writingStatus(hasty(2.0/3)))
	s.awaitOther(t, namespace, foreign)
	s.Hub.ClusterCondition(t, s.Namespace, "managed", fleet.ConditionConnected, "True")
	s.Hub.ClusterCondition(t, s.Namespace, "managed", fleet.ConditionRegistered, "True")
	testenv.Eventually(t, func() (bool, string) {
		left := s.requests(t)
		return len(left) == 1 && left[0] != before[0], fmt.Sprintf("there are %v, the first one was %v", left, before)
	})
}

// ends sets the expiry that the Cluster shows to a time in the past.
func (s *stage) ends(t *testing.T, cluster string) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"agent":{"credentialExpires":%q}}}`, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
	testenv.Merge(t, s.Hub.Fleet.Clusters(s.Namespace).Patch, cluster, patch, "status")
}

func testExpiredCredentialOfASelfRegisteredAgent(t *testing.T, s *stage) {
	namespace := s.Member.Namespace(t)
	cluster, running := s.installed(t, namespace, "away", writingStatus(hasty(2.0/3)))
	running.Stop(t)
	s.Hub.ClusterCondition(t, s.Namespace, cluster, fleet.ConditionConnected, "False")
	s.ends(t, cluster)
	s.Hub.ClusterCondition(t, s.Namespace, cluster, fleet.ConditionRegistered, "False CredentialExpired")

	foreign := s.Member.TokenOf(t, namespace, "default")
	s.lose(t, namespace, foreign)
	values := s.Hub.Token(t, s.Namespace, "again", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"away"}})
	s.bootstrap(t, namespace, values)
	s.Member.Agent(t, namespace, writingStatus(hasty(2.0/3)))
	s.awaitOther(t, namespace, foreign)
	s.Hub.ClusterCondition(t, s.Namespace, cluster, fleet.ConditionRegistered, "True")
}

// bootstrap gives a registered agent another bootstrap Secret.
func (s *stage) bootstrap(t *testing.T, namespace string, values registration.Values, more ...string) {
	t.Helper()
	data := map[string][]byte{
		registration.BootstrapAPIServerURL:                []byte(values.APIServerURL),
		registration.BootstrapAPIServerCA:                 []byte(values.APIServerCA),
		registration.BootstrapWorkspace:                   []byte(values.Workspace),
		registration.BootstrapToken:                       []byte(values.Token),
		registration.BootstrapTokenName:                   []byte(values.TokenName),
		registration.BootstrapSystemRegistrationNamespace: []byte(values.SystemRegistrationNamespace),
	}
	for i := 0; i+1 < len(more); i += 2 {
		data[more[i]] = []byte(more[i+1])
	}
	s.Member.WriteSecret(t, namespace, registration.BootstrapSecret, data)
}

// An agent that proves possession of its current credential may use any token.
func testRegisterAgainWithoutAGap(t *testing.T, s *stage) {
	namespace := s.Member.Namespace(t)
	cluster, _ := s.installed(t, namespace, "alive", hasty(2.0/3))
	before := s.requests(t)
	first, _ := s.bearer(t, namespace)

	s.bootstrap(t, namespace, s.Token(t, "another"), registration.BootstrapRegistrationKey, "anew/1")
	s.awaitOther(t, namespace, first)
	testenv.Eventually(t, func() (bool, string) {
		left := s.requests(t)
		return len(left) == 1 && !slices.Contains(before, left[0]), fmt.Sprintf("there are %v, the first one was %v", left, before)
	})
	found := s.EventuallyCluster(t, cluster, func(c *fleet.Cluster) (bool, string) {
		return c.Status.Agent.Registration == s.requests(t)[0] && c.Status.Agent.PossessionProof == "", fmt.Sprintf("the agent says %+v", c.Status.Agent)
	})
	require.NotNil(t, found.Status.Agent.CredentialExpires)
	testenv.RequireUnauthorized(t, s.Hub, first)
}

func testDenialAndLateApproval(t *testing.T, s *stage) {
	namespace := s.Member.Namespace(t)
	values := s.Hub.Token(t, s.Namespace, "manual", fleet.ClusterRegistrationTokenSpec{Approval: fleet.ApprovalManual})
	testenv.BootstrapAgent(t, s.Member, namespace, values, map[string]string{"config": `{"clientID":"asked"}`})
	s.Member.Agent(t, namespace, hasty(2.0/3))
	var request string
	testenv.Eventually(t, func() (bool, string) {
		names := s.requests(t)
		if len(names) == 1 {
			request = names[0]
		}
		return len(names) == 1, fmt.Sprint(names)
	})
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, request, fleet.ConditionGranted, "Unknown WaitingForApproval")
	s.decides(t, request, fleet.DecisionDenied)
	testenv.Eventually(t, func() (bool, string) {
		for _, event := range s.Member.Events(t, namespace, registration.AgentName) {
			if event.Reason == "RegistrationRefused" {
				require.Contains(t, event.Message, "because of the test")
				return true, ""
			}
		}
		return false, "the agent does not say that it was refused"
	})
	s.decides(t, request, fleet.DecisionApproved)
	s.Hub.ClusterCondition(t, s.Namespace, registration.ClusterName("asked"), fleet.ConditionRegistered, "True")
	require.Equal(t, []string{request}, s.requests(t), "it is the same request all the time")
}

// decides approves or denies a request in place of a user.
func (s *stage) decides(t *testing.T, request string, decision fleet.Decision) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"approval":{"decision":%q,"message":"because of the test"}}}`, decision)
	testenv.Merge(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Patch, request, patch, "status")
}
