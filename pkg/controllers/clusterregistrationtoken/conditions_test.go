package clusterregistrationtoken

import (
	"fmt"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
)

func conditionText(token *fleet.ClusterRegistrationToken, conditionType string) string {
	c := fleetstatus.Condition(token.Status.Conditions, conditionType)
	return string(c.Status) + " " + c.Reason
}

func TestSetWithinLimits(t *testing.T) {
	s := newScene(t)
	s.Backlog = backlog.New(s.requests, generic.NewCache[*fleet.Cluster](emptyIndexer(), schema.GroupResource{}), s.Clock, s.OriginPolicies)
	s.Config.Set(config.Hub{Registration: config.Registration{Limits: config.BacklogLimits{UnconnectedPerToken: 2, WaitingPerNamespace: 3}}})
	token, other := someToken(0), someToken(0)
	other.Name = "other"
	have := func(phase backlog.Phase, from, to int) {
		for n := from; n < to; n++ {
			_, err := s.Backlog.Admit(phase, &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "r", UID: types.UID(fmt.Sprint(n)), Labels: map[string]string{fleet.RegistrationTokenLabel: "tok"},
			}}, backlog.PhaseLimit{PerToken: 9, PerNamespace: 9})
			require.NoError(t, err)
		}
	}
	requires := func(token *fleet.ClusterRegistrationToken, want string, transition bool) string {
		t.Helper()
		changed, err := s.setWithinLimits(token)
		require.NoError(t, err)
		assert.Equal(t, want, conditionText(token, fleet.ConditionWithinLimits))
		assert.Equal(t, transition, changed != nil)
		return fleetstatus.Condition(token.Status.Conditions, fleet.ConditionWithinLimits).Message
	}
	have(backlog.Unconnected, 0, 1)
	requires(token, " ", false)
	have(backlog.Unconnected, 1, 2)
	assert.Contains(t, requires(token, "False LimitReached", true), "2 granted requests are for Clusters that have never connected")
	requires(token, "False LimitReached", false)
	requires(other, " ", false)
	have(backlog.Waiting, 0, 3)
	assert.Contains(t, requires(other, "False LimitReached", true), "3 requests wait")

	s.Config.Set(config.Hub{})
	requires(token, "True WithinLimits", true)
	requires(token, "True WithinLimits", false)
}

func TestSetLabelsLimited(t *testing.T) {
	s := newScene(t)
	token := someToken(0)
	s.Config.Set(config.Hub{IgnoreClusterRegistrationLabels: true})
	s.setLabelsLimited(token)
	assert.Equal(t, " ", conditionText(token, fleet.ConditionLabelsLimited))
	s.Config.Set(config.Hub{})
	s.setLabelsLimited(token)
	assert.Equal(t, "False AgentLabelsAccepted", conditionText(token, fleet.ConditionLabelsLimited))
	token.Spec.AllowedLabelKeys = &[]string{}
	s.setLabelsLimited(token)
	assert.Equal(t, "True LabelsLimited", conditionText(token, fleet.ConditionLabelsLimited))
}

func refusedRequest(name, clientID, reason string, created int) *fleet.ClusterRegistration {
	return &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(created) * time.Minute)),
			Labels: map[string]string{fleet.RegistrationTokenLabel: "tok"},
		},
		Spec: fleet.ClusterRegistrationSpec{ClientID: clientID},
		Status: fleet.ClusterRegistrationStatus{Conditions: fleetstatus.Conditions{
			{Type: fleet.ConditionGranted, Status: corev1.ConditionFalse, Reason: reason, Message: "no"},
		}},
	}
}

func grantedRequest(name, clientID string, created int) *fleet.ClusterRegistration {
	r := refusedRequest(name, clientID, "", created)
	r.Status.Granted, r.Status.Conditions = true, nil
	return r
}

func TestSetRequestsAccepted(t *testing.T) {
	s := newScene(t)
	s.requests.AddIndexer(refusedByToken, tokenOfRefused)
	index.RequestsByClientID.AddTo(s.requests)
	token := someToken(0)
	requires := func(want, message string, transition bool) {
		t.Helper()
		changed, err := s.setRequestsAccepted(token)
		require.NoError(t, err)
		assert.Equal(t, want, conditionText(token, fleet.ConditionRequestsAccepted))
		assert.Equal(t, message, fleetstatus.Condition(token.Status.Conditions, fleet.ConditionRequestsAccepted).Message)
		assert.Equal(t, transition, changed != nil)
	}
	requires(" ", "", false)
	for _, undisturbed := range []*fleet.ClusterRegistration{
		grantedRequest("fine", "fine", 0), refusedRequest("retried", "retried", fleet.ReasonError, 0), refusedRequest("old", "fine", fleet.ReasonSuperseded, 0),
	} {
		require.NoError(t, s.cached.Add(undisturbed))
	}
	requires(" ", "", false)
	require.NoError(t, s.cached.Add(refusedRequest("first", "a", fleet.ReasonClientIDInUse, 1)))
	requires("False ClientIDInUse", "ClusterRegistration first is refused: no", true)
	require.NoError(t, s.cached.Add(refusedRequest("second", "b", fleet.ReasonTokenUsedUp, 2)))
	requires("False TokenUsedUp", "ClusterRegistration second is refused: no", true)
	requires("False TokenUsedUp", "ClusterRegistration second is refused: no", false)
	require.NoError(t, s.cached.Add(grantedRequest("third", "b", 3)))
	requires("False ClientIDInUse", "ClusterRegistration first is refused: no", true)
	require.NoError(t, s.cached.Delete(refusedRequest("first", "a", fleet.ReasonClientIDInUse, 1)))
	requires("True RequestsAccepted", "", true)
}

// lookUps counts the look-ups in an index.
type lookUps struct {
	fleetcontrollers.ClusterRegistrationCache
	count int
}

func (l *lookUps) GetByIndex(name, key string) ([]*fleet.ClusterRegistration, error) {
	l.count++
	return l.ClusterRegistrationCache.GetByIndex(name, key)
}

// A holder of a token sends hundreds of requests with one clientID, and a pass follows each.
func TestSetRequestsAccepted_manyOfOneAgent(t *testing.T) {
	s := newScene(t)
	s.requests.AddIndexer(refusedByToken, tokenOfRefused)
	index.RequestsByClientID.AddTo(s.requests)
	counted := &lookUps{ClusterRegistrationCache: s.requests}
	s.requests = counted
	for n := range 500 {
		require.NoError(t, s.cached.Add(refusedRequest(fmt.Sprint("refused-", n), "a", fleet.ReasonClientIDInUse, n)))
	}
	require.NoError(t, s.cached.Add(refusedRequest("other", "b", fleet.ReasonClientIDInUse, 1000)))
	require.NoError(t, s.cached.Add(grantedRequest("granted", "a", 499)))
	require.NoError(t, s.cached.Add(grantedRequest("granted-before", "a", 3)))
	token := someToken(0)
	_, err := s.setRequestsAccepted(token)
	require.NoError(t, err)
	assert.Equal(t, "ClusterRegistration other is refused: no", fleetstatus.Condition(token.Status.Conditions, fleet.ConditionRequestsAccepted).Message)
	assert.Equal(t, 3, counted.count, "one of the refused requests, one of each clientID")

	require.NoError(t, s.cached.Delete(refusedRequest("other", "b", "", 0)))
	_, err = s.setRequestsAccepted(token)
	require.NoError(t, err)
	assert.Equal(t, "True RequestsAccepted", conditionText(token, fleet.ConditionRequestsAccepted))
}

func TestTokensOfRequest(t *testing.T) {
	tokens := emptyIndexer()
	s := newScene(t)
	s.handler.tokens = generic.NewCache[*fleet.ClusterRegistrationToken](tokens, schema.GroupResource{})
	s.handler.tokens.AddIndexer(index.ByToken, func(token *fleet.ClusterRegistrationToken) ([]string, error) {
		return []string{index.TokenKey(token.Namespace, token.Name)}, nil
	})
	accepted, refusing := someToken(0), someToken(0)
	refusing.Status.Conditions = fleetstatus.Conditions{{Type: fleet.ConditionRequestsAccepted, Status: corev1.ConditionFalse}}
	created := refusedRequest("r", "a", "", 0)
	created.Status.Conditions = nil
	inUse, usedUp := refusedRequest("r", "a", fleet.ReasonClientIDInUse, 0), refusedRequest("r", "a", fleet.ReasonTokenUsedUp, 0)
	granted := grantedRequest("r", "a", 0)
	for _, row := range []struct {
		name          string
		before, after *fleet.ClusterRegistration
		token         *fleet.ClusterRegistrationToken
		want          bool
	}{
		{"created", nil, created, refusing, false},
		{"granted with a token that refuses nobody", created, granted, accepted, false},
		{"granted with a token that has refused a request", created, granted, refusing, true},
		{"granted before", granted, granted, refusing, false},
		{"refused", created, inUse, accepted, true},
		{"refused for another reason", inUse, usedUp, refusing, true},
		{"refused as before", inUse, inUse, refusing, false},
		{"refused and deleted", inUse, nil, refusing, true},
		{"granted and deleted", granted, nil, refusing, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			require.NoError(t, tokens.Replace([]any{row.token}, ""))
			assert.Equal(t, row.want, len(s.tokensOfRequest(row.before, row.after)) == 1)
		})
	}
}

// A user of another workspace can write any annotations to objects there.
func TestTokenOf(t *testing.T) {
	of := func(namespace string) []types.NamespacedName {
		return tokenOf(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Annotations: map[string]string{
			apply.LabelGVK: tokenKind.String(), apply.LabelNamespace: "ns", apply.LabelName: "tok",
		}}})
	}
	own := []types.NamespacedName{{Namespace: "ns", Name: "tok"}}
	assert.Equal(t, own, of("ns"))
	assert.Equal(t, own, of(""), "a ClusterRoleBinding")
	assert.Empty(t, of("mallory"))
}

func TestIsUnusedImportToken(t *testing.T) {
	for name, row := range map[string]struct {
		change func(before, after *fleet.ClusterRegistrationToken)
		want   bool
	}{
		"ready":         {func(_, _ *fleet.ClusterRegistrationToken) {}, true},
		"used":          {func(_, after *fleet.ClusterRegistrationToken) { after.Status.LastUsed = &metav1.Time{Time: noon} }, false},
		"with a status": {func(before, after *fleet.ClusterRegistrationToken) { before.Status = after.Status }, false},
		"of a person":   {func(_, after *fleet.ClusterRegistrationToken) { after.OwnerReferences = nil }, false},
		"not ready": {func(_, after *fleet.ClusterRegistrationToken) {
			after.Status.Conditions[0].Reason = fleet.ReasonNameConflict
		}, false},
		"without policies": {func(_, after *fleet.ClusterRegistrationToken) {
			result.Set(&after.Status.Conditions, fleet.ConditionPoliciesInForce, result.Stalled("Missing", ""), noon)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := someToken(0)
			before.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", UID: "cluster"}}
			after := before.DeepCopy()
			result.Set(&after.Status.Conditions, fleet.ConditionReady, result.Done(fleet.ReasonTokenReady, ""), noon)
			row.change(before, after)
			assert.Equal(t, row.want, isUnusedImportToken(before, after))
		})
	}
}
