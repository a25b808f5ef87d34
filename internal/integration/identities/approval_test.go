package identities

import (
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// nothingMade checks that the hub has created nothing for a request that waits or was refused.
func nothingMade(t *testing.T, s *testenv.Stage, clientID string) {
	t.Helper()
	_, err := s.Hub.Fleet.Clusters(s.Namespace).Get(t.Context(), registration.ClusterName(clientID), metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestManualApproval(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Hub.Token(t, s.Namespace, "manual", fleet.ClusterRegistrationTokenSpec{
		Approval: fleet.ApprovalManual, Labels: map[string]string{"site": "north", "env": "prod"},
	})
	request := s.Hub.Send(t, values, &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "request-", Labels: map[string]string{fleet.RegistrationTokenLabel: "manual"}},
		Spec:       fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "r" + s.Namespace, ClusterLabels: map[string]string{"env": "mine", "a": "b"}},
	})
	says(t, s.Hub, request, "Unknown WaitingForApproval")
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, request.Name, fleet.ConditionApproved, "Unknown WaitingForApproval")
	s.Hub.RequireEvents(t, s.Namespace, request.Name, fleet.ReasonWaitingForApproval, 1)
	nothingMade(t, s, "edge")

	decide(t, s.Hub, request, fleet.DecisionApproved, "")
	granted, _ := s.Hub.Granted(t, values, request)
	cluster := s.Cluster(t, granted.Status.ClusterName)
	assert.Equal(t, map[string]string{"site": "north", "env": "prod", "a": "b", fleet.ClusterLabel: cluster.Name}, cluster.Labels)
}

func TestRefusalIsDeletedWithItsRequest(t *testing.T) {
	sample.Long(t)
	s := testenv.NewStage(t)
	values := s.Hub.Token(t, s.Namespace, "narrow", fleet.ClusterRegistrationTokenSpec{ClientIDPattern: "edge-*"})
	var secrets []string
	for _, clientID := range []string{"core-1", "core-2"} {
		request := ask(t, s.Hub, values, clientID, "r")
		says(t, s.Hub, request, "False ClientIDNotAllowed")
		secrets = append(secrets, answer(t, s.Hub, values, request, fleet.ReasonClientIDNotAllowed).Name)
		if clientID == "core-2" { // the hub does not see its deletion
			s.Stop(t)
		}
		assert.NoError(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Delete(t.Context(), request.Name, metav1.DeleteOptions{}))
		if clientID == "core-1" {
			testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace).Get, "Secret", secrets[0])
		}
	}
	s.Running = s.Hub.Hub(t)
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace).Get, "Secret", secrets[1])
}

func TestPolicy(t *testing.T) {
	s := testenv.NewStage(t)
	values := s.Token(t, "tok")
	with := func(rules ...map[string]any) {
		settings := s.Hub.Reachable()
		settings["registration"] = map[string]any{"approval": "Manual", "policy": rules}
		s.Hub.Configure(t, settings)
	}
	with(
		map[string]any{"name": "banned", "expression": `request.spec.clusterLabels["env"] == "banned"`, "action": "Deny", "message": "go away"},
		map[string]any{"name": "edges", "expression": `request.spec.clientID.startsWith("edge-") && token.metadata.name == "tok"`, "action": "Approve"},
	)
	send := func(clientID, env string) *fleet.ClusterRegistration {
		return s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{
			ClientID: clientID, ClientRandom: "r" + s.Namespace, ClusterLabels: map[string]string{"env": env},
		})
	}
	first := send("core-1", "prod") // its answer shows that the cache of the hub has the policy
	says(t, s.Hub, first, "Unknown WaitingForApproval")
	edge, banned, odd := send("edge-1", "prod"), send("edge-2", "banned"), s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{
		ClientID: "edge-3", ClientRandom: "r" + s.Namespace,
	})
	says(t, s.Hub, edge, "True Granted")
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, edge.Name, fleet.ConditionApproved, `True Approved: approved by rule "edges"`)
	says(t, s.Hub, banned, `False Denied: denied by rule "banned" of the hub's policy: go away`)
	says(t, s.Hub, odd, "Unknown WaitingForApproval")
	nothingMade(t, s, "edge-2")
	decide(t, s.Hub, banned, fleet.DecisionApproved, "please")
	says(t, s.Hub, banned, "False Denied")

	with(map[string]any{"name": "all", "expression": "true", "action": "Approve"})
	for _, request := range []*fleet.ClusterRegistration{first, banned, odd} {
		says(t, s.Hub, request, "True Granted")
	}
}

func TestRefuseLongLivedCredentials(t *testing.T) {
	s := testenv.NewStage(t)
	values := s.Token(t, "tok")
	settings := s.Hub.Reachable()
	settings["registration"] = map[string]any{"longLivedCredentials": "Refuse", "approval": "Manual"}
	s.Hub.Configure(t, settings)
	renewing := ask(t, s.Hub, values, "ours", "r")
	says(t, s.Hub, renewing, "Unknown WaitingForApproval")
	old := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "old", ClientRandom: "r" + s.Namespace})
	says(t, s.Hub, old, "False LongLivedRefused")

	s.Hub.Configure(t, s.Hub.Reachable())
	says(t, s.Hub, old, "True Granted")
	says(t, s.Hub, renewing, "True Granted")
}
