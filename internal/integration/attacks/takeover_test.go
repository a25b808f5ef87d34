package attacks

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestHeldIdentity(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	shared, other := s.Token(t, "shared"), s.Token(t, "other")
	v := newVictim(t, s, shared, "victim")
	imported := s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "imported"}, Spec: fleet.ClusterSpec{ClientID: "its-own"}})
	require.NotEmpty(t, imported.UID)

	for name, attack := range map[string]struct {
		values  registration.Values
		request *fleet.ClusterRegistration
		reason  string
	}{
		"with the token of the victim":     {shared, with("shared", "victim", "1"+s.Namespace), fleet.ReasonClientIDInUse},
		"with another token":               {other, with("other", "victim", "2"+s.Namespace), fleet.ReasonClientIDInUse},
		"with a copy of its request":       {shared, with("shared", "victim", v.Request.Spec.ClientRandom), fleet.ReasonClientIDInUse},
		"with the name of another token":   {other, with("shared", "victim", "3"+s.Namespace), fleet.ReasonTokenMismatch},
		"with a token that does not exist": {other, with("import-token-"+v.cluster(), "victim", "4"+s.Namespace), fleet.ReasonTokenNotFound},
		"as an agent that renews": {shared, func() *fleet.ClusterRegistration {
			r := with("shared", "victim", "5"+s.Namespace)
			r.Annotations = map[string]string{registration.RenewalAnnotation: "true"}
			return r
		}(), fleet.ReasonClientIDInUse},
	} {
		t.Run(name, func(t *testing.T) {
			if namesOthersToken := attack.reason != fleet.ReasonClientIDInUse; namesOthersToken && !s.Hub.ServesMutatingPolicies(t) {
				refusedByPolicy(t, s, attack.values, attack.request)
				v.undisturbed(t)
				return
			}
			request := sends(t, s, attack.values, attack.request)
			refused(t, s, request, attack.reason)
			if attack.reason == fleet.ReasonClientIDInUse {
				warned(t, s, v.cluster(), fleet.ReasonClientIDInUse)
			}
			v.undisturbed(t)
		})
	}
}

// A request is created with the annotation of another creator and with the status of a granted request. The API server replaces both, or refuses
// the request if it cannot record creators.
func TestForgedCreatorAndStatus(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	shared := s.Token(t, "shared")
	v := newVictim(t, s, shared, "victim")
	other := s.Token(t, "other")
	account := registration.TokenServiceAccount("shared", string(s.ReadyToken(t, "shared").UID))
	forged := with("shared", "victim", "f"+s.Namespace)
	forged.Annotations = map[string]string{fleet.CreatorAnnotation: registration.AccountUser(s.Namespace, account)}
	forged.Status = fleet.ClusterRegistrationStatus{
		Granted: true, ClusterName: v.cluster(), Approval: &fleet.RegistrationApproval{Decision: fleet.DecisionApproved},
	}
	if !s.Hub.ServesMutatingPolicies(t) {
		refusedByPolicy(t, s, other, forged)
		v.undisturbed(t)
		return
	}
	created := sends(t, s, other, forged)
	assert.False(t, created.Status.Granted)
	assert.Nil(t, created.Status.Approval)
	liar := registration.AccountUser(s.Namespace, registration.TokenServiceAccount("other", string(s.ReadyToken(t, "other").UID)))
	assert.Equal(t, liar, created.Annotations[fleet.CreatorAnnotation])
	refused(t, s, created, fleet.ReasonTokenMismatch)
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, created.Name, fleet.ConditionOriginProved, "False TokenMismatch")
	v.undisturbed(t)
}

// An agent at work proves possession for its next request, by name. Another client that knows the name cannot use it again.
func TestReplayedPossessionProof(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	shared := s.Token(t, "shared")
	v := newVictim(t, s, shared, "victim")
	provePossession(t, s, v, "request-next")
	next := with("shared", "victim", "next"+s.Namespace)
	next.Name = "request-next"
	granted, secret := s.Hub.Granted(t, shared, sends(t, s, shared, next))
	successor := &victim{Registered: testenv.Registered{Values: shared, Request: granted, Secret: secret}, stage: s, secret: testenv.Bytes(t, secret)}
	beat(t, s, successor, fleet.AgentStatus{PossessionProof: "request-next", Registration: "request-next"})
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", v.Request.Name)

	again := with("shared", "victim", "again"+s.Namespace)
	again.Name = v.Request.Name // of the first request, which was deleted
	refused(t, s, sends(t, s, shared, again), fleet.ReasonClientIDInUse)
	successor.undisturbed(t)

	require.NoError(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Delete(t.Context(), "request-next", metav1.DeleteOptions{}))
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", "request-next")
	redeemed := with("shared", "victim", "redeemed"+s.Namespace)
	redeemed.Name = "request-next" // the request for which the agent proved possession
	refused(t, s, sends(t, s, shared, redeemed), fleet.ReasonClientIDInUse)
}

func provePossession(t *testing.T, s *testenv.Stage, v *victim, request string) {
	t.Helper()
	beat(t, s, v, fleet.AgentStatus{PossessionProof: request})
}

// beat sends a heartbeat with these fields of status.agent.
func beat(t *testing.T, s *testenv.Stage, v *victim, agent fleet.AgentStatus) {
	t.Helper()
	agent.LastSeen, agent.Namespace = metav1.Now(), testenv.SystemNamespace
	patch := map[string]any{"status": map[string]any{"agent": agent}}
	testenv.Merge(t, s.Hub.ClientFor(t, v.Bearer()).Fleet.Clusters(s.Namespace).Patch, v.cluster(), patch, "status")
}

// Fifty requests with the same new clientID are created at the same time. The hub grants exactly one, and refuses the others or deletes
// them: a grant deletes the requests that were created in an earlier second, because the same agent may have sent them.
func TestRaceForOneIdentity(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	shared := s.Token(t, "shared")
	const many = 50
	var sending sync.WaitGroup
	requests := s.Hub.ClientFor(t, shared.Token).Fleet.ClusterRegistrations(s.Namespace)
	sends(t, s, shared, with("shared", "", "first"+s.Namespace)) // returns when the token has its rights
	for n := range many {
		sending.Go(func() {
			request := with("shared", "wanted", fmt.Sprint(n, s.Namespace))
			request.GenerateName = "request-"
			_, err := requests.Create(t.Context(), request, metav1.CreateOptions{})
			assert.NoError(t, err)
		})
	}
	sending.Wait()
	testenv.Eventually(t, func() (bool, string) {
		answers := answersTo(t, s, "wanted")
		undecided := maps.Clone(answers)
		delete(undecided, "True")
		delete(undecided, "False")
		return answers["True"] == 1 && len(undecided) == 0, fmt.Sprint(answers)
	})
	namespace := registration.ClusterNamespace(s.Namespace, registration.ClusterName("wanted"))
	identities := testenv.List(t, s.Hub.Kubernetes.CoreV1().ServiceAccounts(namespace).List, testenv.Ours())
	assert.Len(t, identities.Items, 1)
}

// A clone uses the credential of the agent from which it was copied. The hub cannot tell which of the two is the clone, but it reports both.
func TestClone(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	v := newVictim(t, s, s.Token(t, "shared"), "victim")
	instance := func(name string) {
		beat(t, s, v, fleet.AgentStatus{Instance: name, CheckinInterval: &metav1.Duration{Duration: time.Minute}})
		s.EventuallyCluster(t, v.cluster(), func(c *fleet.Cluster) (bool, string) { return c.Status.Agent.Instance == name, "instance" })
	}
	for n := 0; n < 20 && s.Hub.EventCount(t, s.Namespace, v.cluster(), fleet.ReasonCloneDetected) == 0; n++ {
		instance("original")
		s.AwaitWork(t, fmt.Sprint("marker-a", n))
		instance("clone")
		s.AwaitWork(t, fmt.Sprint("marker-b", n))
	}
	warned(t, s, v.cluster(), fleet.ReasonCloneDetected)
	s.Hub.ClusterCondition(t, s.Namespace, v.cluster(), fleet.ConditionRegistered, "False CloneDetected")
}

// While the hub installs the agent of a Cluster, no heartbeat has arrived yet. A request with another token must be refused nevertheless.
func TestIdentityDuringAnImport(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	shared := s.Token(t, "shared")
	imported := s.CreateCluster(t, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "imported"}, Spec: fleet.ClusterSpec{ClientID: "imported-id", KubeConfigSecret: "kubeconfig"},
	})
	s.Hub.ClusterCondition(t, s.Namespace, imported.Name, fleet.ConditionProcessed, "True")
	require.True(t, s.Cluster(t, imported.Name).Status.Agent.LastSeen.IsZero())
	refused(t, s, sends(t, s, shared, with("shared", "imported-id", "1"+s.Namespace)), fleet.ReasonClientIDInUse)
	warned(t, s, imported.Name, fleet.ReasonClientIDInUse)
	made := s.Hub.Token(t, s.Namespace, "made", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"imported-id"}})
	granted, _ := s.Hub.Granted(t, made, sends(t, s, made, with("made", "imported-id", "2"+s.Namespace)))
	require.Equal(t, imported.Name, granted.Status.ClusterName)
}
