package identities

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// storm sends count requests of different agents at the same time.
func storm(t *testing.T, hub *testenv.Cluster, values registration.Values, size int) []*fleet.ClusterRegistration {
	t.Helper()
	hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: ""}) // waits until the token works, and counts for nothing
	client := hub.ClientFor(t, values.Token).Fleet.ClusterRegistrations(values.Workspace)
	requests, errs := make([]*fleet.ClusterRegistration, size), make([]error, size)
	var sending sync.WaitGroup
	for n := range size {
		sending.Go(func() {
			requests[n], errs[n] = client.Create(t.Context(), &fleet.ClusterRegistration{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "request-", Labels: map[string]string{fleet.RegistrationTokenLabel: values.TokenName}},
				Spec:       fleet.ClusterRegistrationSpec{ClientID: fmt.Sprint("edge-", n), ClientRandom: values.Workspace},
			}, metav1.CreateOptions{})
		})
	}
	sending.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	return requests
}

// decided waits until the hub has granted or refused all of them, and returns the reasons and the names of the Clusters.
func decided(t *testing.T, hub *testenv.Cluster, requests []*fleet.ClusterRegistration) (reasons map[string]int, clusters []string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		reasons, clusters = map[string]int{}, nil
		for _, request := range requests {
			latest := testenv.RequireThere(t, hub.Fleet.ClusterRegistrations(request.Namespace).Get, request.Name)
			answer := testenv.Condition(latest.Status.Conditions, fleet.ConditionGranted)
			final := strings.HasPrefix(answer, "True") || strings.HasPrefix(answer, "False")
			if !final || strings.HasPrefix(answer, "False "+fleet.ReasonError) { // an error passes
				return false, fmt.Sprintf("request %s is %s", request.Name, answer)
			}
			reasons[strings.Fields(answer)[1]]++
			if latest.Status.Granted {
				clusters = append(clusters, latest.Status.ClusterName)
			}
		}
		return true, ""
	})
	return reasons, clusters
}

func tokenOf(t *testing.T, hub *testenv.Cluster, values registration.Values) *fleet.ClusterRegistrationToken {
	t.Helper()
	return testenv.RequireThere(t, hub.Fleet.ClusterRegistrationTokens(values.Workspace).Get, values.TokenName)
}

func TestRaceForTheLastUse(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	values := s.Hub.Token(t, s.Namespace, "once", fleet.ClusterRegistrationTokenSpec{UsageLimit: ptr.To(int32(1))})
	reasons, clusters := decided(t, s.Hub, storm(t, s.Hub, values, 50))
	assert.Equal(t, map[string]int{"Granted:": 1, "TokenUsedUp:": 49}, reasons)

	token := tokenOf(t, s.Hub, values)
	assert.EqualValues(t, 1, token.Status.Uses)
	assert.Equal(t, []string{token.Status.LastCluster}, clusters)
	assert.NotNil(t, token.Status.LastUsed)
	all := testenv.List(t, s.Hub.Fleet.Clusters(s.Namespace).List, metav1.ListOptions{})
	assert.Len(t, all.Items, 1, "nothing is made for those that are refused")

	late := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "late", ClientRandom: "late" + s.Namespace})
	message := s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, late.Name, fleet.ConditionGranted, "False TokenUsedUp")
	assert.Contains(t, message, "ClusterRegistrationToken once has been used 1 times and spec.usageLimit is 1")

	testenv.Merge(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Patch, "once", `{"spec":{"usageLimit":3}}`)
	testenv.Eventually(t, func() (bool, string) {
		uses := tokenOf(t, s.Hub, values).Status.Uses
		return uses == 3, fmt.Sprintf("the limit was raised to 3, and %d are counted", uses)
	})
}

func TestWritesOfAStormOnOneToken(t *testing.T) {
	sample.Long(t)
	const size = 60
	recorder := &testenv.Recorder{}
	s := testenv.NewStage(t, recorder.Wrap)
	values := s.Hub.Token(t, s.Namespace, "many", fleet.ClusterRegistrationTokenSpec{})
	s.ReadyToken(t, "many")
	recorder.Settle(t)
	reasons, _ := decided(t, s.Hub, storm(t, s.Hub, values, size))
	assert.Equal(t, map[string]int{"Granted:": size}, reasons)
	assert.EqualValues(t, size, tokenOf(t, s.Hub, values).Status.Uses)

	writes := 0
	for _, sent := range testenv.WritesIn(recorder.Settle(t)) {
		if strings.HasSuffix(sent.Path, "/clusterregistrationtokens/many/status") {
			writes++
			assert.Equal(t, http.StatusOK, sent.Code, "a conflict")
		}
	}
	t.Logf("%d requests were counted with %d writes of the token", size, writes)
	assert.LessOrEqual(t, writes, size/3)
}

func TestUsesAfterATakeover(t *testing.T) {
	sample.Long(t)
	s := testenv.NewStage(t)
	values := s.Token(t, "tok")
	first := s.Register(t, values, "edge", "a")
	earlier := s.Register(t, values, "granted-before-uses-were-counted", "b")
	s.Stop(t)
	testenv.Merge(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Patch, earlier.Request.Name, `{"status":{"tokenUID":null}}`, "status")

	s.Running = s.Hub.Hub(t)
	s.AwaitWork(t, "marker")
	assert.EqualValues(t, 2, tokenOf(t, s.Hub, values).Status.Uses)
	s.Register(t, values, "third", "c")
	token := tokenOf(t, s.Hub, values)
	assert.EqualValues(t, 3, token.Status.Uses)
	assert.NotContains(t, token.Status.PendingUses, string(first.Request.UID), "its own status says that it was counted")
	assert.Equal(t, string(token.UID), testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, first.Request.Name).Status.TokenUID)
}
