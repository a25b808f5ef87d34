package identities

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ask sends a request of an agent that renews its credential.
func ask(t *testing.T, hub *testenv.Cluster, values registration.Values, clientID, random string) *fleet.ClusterRegistration {
	t.Helper()
	return hub.RenewingRequest(t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: random + values.Workspace})
}

// says waits until condition Granted begins with this text.
func says(t *testing.T, hub *testenv.Cluster, request *fleet.ClusterRegistration, want string) {
	t.Helper()
	hub.WaitCondition(t, testenv.KindRequest, request.Namespace, request.Name, fleet.ConditionGranted, want)
}

// answer reads the answer Secret as the agent does, and waits for a refusal with that reason, or for a credential if the reason is empty.
func answer(t *testing.T, hub *testenv.Cluster, values registration.Values, request *fleet.ClusterRegistration, reason string) *corev1.Secret {
	t.Helper()
	name := registration.AnswerSecretName(request.Spec.ClientID, request.Spec.ClientRandom)
	secrets := hub.ClientFor(t, values.Token).Kubernetes.CoreV1().Secrets(values.SystemRegistrationNamespace)
	found := testenv.EventuallyIs(t, secrets.Get, name, func(secret *corev1.Secret) (bool, string) {
		return string(secret.Data[registration.RefusalReason]) == reason, fmt.Sprintf("the answer is %q", secret.Data[registration.RefusalReason])
	})
	assert.Equal(t, reason == "", len(found.Data[registration.CredentialToken]) > 0, "a refusal has no token")
	return found
}

func decide(t *testing.T, hub *testenv.Cluster, request *fleet.ClusterRegistration, decision fleet.Decision, message string) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"approval":{"decision":%q,"message":%q}}}`, decision, message)
	testenv.Merge(t, hub.Fleet.ClusterRegistrations(request.Namespace).Patch, request.Name, patch, "status")
}

func works(t *testing.T, hub *testenv.Cluster, r testenv.Registered) {
	t.Helper()
	testenv.RequireMay(t, hub, r.Bearer(), testenv.To("list", "bundledeployments.fleet.cattle.io", r.ClusterNamespace(), ""))
}

func TestTokenForOneCluster(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	first := s.Register(t, s.Token(t, "shared"), "edge", "1")
	own := s.Hub.Token(t, s.Namespace, "own", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"edge"}})

	other := ask(t, s.Hub, own, "somebody-else", "x")
	says(t, s.Hub, other, "False ClientIDNotAllowed")
	answer(t, s.Hub, own, other, fleet.ReasonClientIDNotAllowed)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", registration.ClusterName("somebody-else"))

	second := s.Register(t, own, "edge", "2")
	assert.Equal(t, first.Request.Status.ClusterName, second.Request.Status.ClusterName)
	testenv.RequireUnauthorized(t, s.Hub, first.Bearer())
	works(t, s.Hub, second)
}

// Kubernetes deletes the requests of a Cluster that the hub does not finalize. A request that was refused because of that Cluster would otherwise
// create the Cluster again.
func TestDeletionWithoutTheHub(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	granted := s.Register(t, values, "edge", "1").Request
	refused := ask(t, s.Hub, values, "edge", "2")
	says(t, s.Hub, refused, "False ClientIDInUse")

	cluster := granted.Status.ClusterName
	testenv.Merge(t, s.Hub.Fleet.Clusters(s.Namespace).Patch, cluster,
		`{"metadata":{"finalizers":null,"labels":{"`+fleet.ClusterManagementLabel+`":"other"}}}`)
	s.DeleteCluster(t, cluster)
	for _, request := range []*fleet.ClusterRegistration{granted, refused} {
		testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", request.Name)
	}
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", cluster)
}

func TestPossessionProof(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	first := s.Register(t, values, "edge", "1")
	cluster := first.Request.Status.ClusterName
	next := ask(t, s.Hub, values, "edge", "2")
	says(t, s.Hub, next, "False ClientIDInUse")
	refusal := answer(t, s.Hub, values, next, fleet.ReasonClientIDInUse)

	patch := fmt.Sprintf(`{"status":{"agent":{"lastSeen":%q,"vouches":%q}}}`, time.Now().UTC().Format(time.RFC3339), next.Name)
	testenv.Merge(t, s.Hub.ClientFor(t, first.Bearer()).Fleet.Clusters(s.Namespace).Patch, cluster, patch, "status")

	says(t, s.Hub, next, "True Granted")
	credential := answer(t, s.Hub, values, next, "")
	assert.NotEqual(t, refusal.UID, credential.UID, "a new Secret: its lifetime begins again")
}

// thief has the credential of an agent and a registration token that several agents share.
type thief struct {
	*testenv.Stage
	shared, credential testenv.Registered
}

// proves writes the proof of possession for a request into the status of the Cluster, together with the request with which the agent says to
// have registered.
func (s thief) proves(t *testing.T, request, registered string) {
	t.Helper()
	agent := s.Hub.ClientFor(t, s.credential.Bearer()).Fleet.Clusters(s.Namespace)
	patch := fmt.Appendf(nil, `{"status":{"agent":{"lastSeen":%q,"registration":%q,"vouches":%q}}}`,
		time.Now().UTC().Format(time.RFC3339), registered, request)
	testenv.Eventually(t, func() (bool, string) { // after a quarantine, as soon as the agent has its rights again
		_, err := agent.Patch(t.Context(), s.credential.Request.Status.ClusterName, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err == nil, fmt.Sprint(err)
	})
}

// isRefused sends a request with this name and the shared token.
func (s thief) isRefused(t *testing.T, name string) *fleet.ClusterRegistration {
	t.Helper()
	request := s.Hub.Send(t, s.shared.Values, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{fleet.RegistrationTokenLabel: s.shared.Values.TokenName},
			Annotations: map[string]string{registration.RenewalAnnotation: "true"},
		},
		Spec: fleet.ClusterRegistrationSpec{ClientID: s.credential.Request.Spec.ClientID, ClientRandom: name + s.Namespace},
	})
	says(t, s.Hub, request, "False ClientIDInUse")
	return request
}

// proofIsCleared waits until the hub has removed the proof from the status.
func (s thief) proofIsCleared(t *testing.T) {
	t.Helper()
	s.EventuallyCluster(t, s.credential.Request.Status.ClusterName, func(c *fleet.Cluster) (bool, string) {
		return c.Status.Agent.PossessionProof == "", "the proof is still there"
	})
}

func newThief(t *testing.T) thief {
	t.Helper()
	s := testenv.ParallelStage(t)
	registered := s.Register(t, s.Token(t, "shared"), "edge", "1")
	return thief{Stage: s, shared: registered, credential: registered}
}

func TestPossessionProofAndQuarantine(t *testing.T) {
	s := newThief(t)
	cluster := s.credential.Request.Status.ClusterName
	s.proves(t, "request-evil", s.credential.Request.Name)
	s.PatchSpec(t, cluster, `{"quarantined":true}`)
	s.proofIsCleared(t)
	s.PatchSpec(t, cluster, `{"quarantined":false}`)
	s.Hub.ClusterCondition(t, s.Namespace, cluster, fleet.ConditionRegistered, "True")
	s.isRefused(t, "request-evil")
}

// The proof of a revoked credential counts neither at once nor after the agent has got another credential. The thief reports no
// request with which he has registered, as an agent that has taken over the credential of an agent of Fleet.
func TestPossessionProofAndRevocation(t *testing.T) {
	sample.Long(t)
	s := newThief(t)
	s.proves(t, "request-evil", "")
	require.NoError(t, s.Hub.Kubernetes.CoreV1().ServiceAccounts(s.credential.ClusterNamespace()).Delete(t.Context(), s.credential.Account(), metav1.DeleteOptions{}))
	request := s.isRefused(t, "request-evil")
	s.proofIsCleared(t)
	require.NoError(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Delete(t.Context(), request.Name, metav1.DeleteOptions{}))

	again := s.Register(t, s.Hub.Token(t, s.Namespace, "own", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"edge"}}), "edge", "2")
	s.isRefused(t, "request-evil")
	works(t, s.Hub, again)
}

// Without the name of its request, the proof counts only for a credential that is not renewed: an agent that renews reports that name.
func TestPossessionProofWithoutARequest(t *testing.T) {
	sample.Long(t)
	s := newThief(t)
	s.credential = s.RegisterRenewing(t, s.shared.Values, "renewing", "2")
	s.proves(t, "request-evil", "")
	s.isRefused(t, "request-evil")
}

// An agent proves possession for a request before it sends the request. Another client that reads the name creates a request with it first.
func TestPossessionProofForARequestOfAnother(t *testing.T) {
	sample.Long(t)
	s := newThief(t)
	random := "2" + s.Namespace
	name := registration.RequestName(random)
	s.proves(t, name, s.credential.Request.Name)
	request := s.isRefused(t, name)
	require.NoError(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Delete(t.Context(), request.Name, metav1.DeleteOptions{}))
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", request.Name)

	request = s.Hub.Send(t, s.shared.Values, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{fleet.RegistrationTokenLabel: "shared"}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: random},
	})
	says(t, s.Hub, request, "True Granted")
}

func TestPossessionProofAndImport(t *testing.T) {
	sample.Long(t)
	s := newThief(t)
	cluster := s.ImportInto(t, "imported", s.Member.Namespace(t))
	s.credential = s.Register(t, s.Hub.Values(t, s.Namespace, registration.ImportTokenName("imported")), cluster.Spec.ClientID, "1")
	s.proves(t, "request-evil", s.credential.Request.Name)
	s.PatchSpec(t, cluster.Name, `{"redeployAgentGeneration":1}`)
	s.proofIsCleared(t)
	s.isRefused(t, "request-evil")
}

func TestApprovalOfAHeldIdentity(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Token(t, "shared")
	first := s.Register(t, values, "edge", "1")
	again := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "2" + s.Namespace})
	says(t, s.Hub, again, "False ClientIDInUse")

	decide(t, s.Hub, again, fleet.DecisionApproved, "reinstalled")

	granted, _ := s.Hub.Granted(t, values, again)
	assert.Equal(t, first.Request.Status.ClusterName, granted.Status.ClusterName)
	assert.Equal(t, &fleet.RegistrationApproval{Decision: fleet.DecisionApproved, Message: "reinstalled"}, granted.Status.Approval)
	assert.Equal(t, "True Approved: approved by a person: reinstalled", testenv.Condition(granted.Status.Conditions, fleet.ConditionApproved))
	s.Hub.RequireEvents(t, s.Namespace, again.Name, fleet.ReasonApproved, 1)
	testenv.RequireUnauthorized(t, s.Hub, first.Bearer())
}

func TestTokenMismatch(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	s.Hub.NeedsMutatingPolicies(t) // otherwise the API server refuses the request
	mine, victims := s.Token(t, "mine"), s.Hub.Token(t, s.Namespace, "victims", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"edge"}})
	victim := s.Register(t, victims, "edge", "1")
	forged := mine
	forged.TokenName = "victims"

	attack := ask(t, s.Hub, forged, "edge", "2")
	says(t, s.Hub, attack, "False TokenMismatch")

	s.Hub.RequireEvents(t, s.Namespace, victim.Request.Status.ClusterName, fleet.ReasonTokenMismatch, 1)
	works(t, s.Hub, victim)
	name := registration.AnswerSecretName("edge", "2"+s.Namespace)
	_, err := s.Hub.ClientFor(t, mine.Token).Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace).Get(t.Context(), name, metav1.GetOptions{})
	assert.True(t, apierrors.IsForbidden(err), "the thief reads no answer: %v", err)
}

func TestImportToken(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	cluster := s.ImportInto(t, "imported", s.Member.Namespace(t))
	values := s.Hub.Values(t, s.Namespace, registration.ImportTokenName("imported"))

	stolen := ask(t, s.Hub, values, "thief", "1")
	says(t, s.Hub, stolen, "False ClientIDNotAllowed")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", registration.ClusterName("thief"))

	first := s.Register(t, values, cluster.Spec.ClientID, "1")
	token := tokenOf(t, s.Hub, values)
	assert.EqualValues(t, 1, token.Status.Uses)
	assert.Equal(t, "imported", token.Status.LastCluster)
	second := s.Register(t, values, cluster.Spec.ClientID, "2")
	assert.Equal(t, first.Request.Status.ClusterName, second.Request.Status.ClusterName)
}

func TestUnusedGrantExpires(t *testing.T) {
	s := testenv.NewStage(t)
	values := s.Token(t, "shared")
	lost := s.Register(t, values, "edge", "lost")
	again := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "again" + s.Namespace})
	says(t, s.Hub, again, "False ClientIDInUse")
	s.Stop(t)

	s.Running = s.Hub.Hub(t, testenv.Ahead(41*time.Minute))
	says(t, s.Hub, again, "True Granted") // its answer is over forty minutes old by the clock of this hub
	granted := testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, again.Name)
	assert.Equal(t, lost.Request.Status.ClusterName, granted.Status.ClusterName)
}
