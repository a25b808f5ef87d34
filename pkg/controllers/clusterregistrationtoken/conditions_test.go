package clusterregistrationtoken

import (
	"fmt"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/backlog"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

func conditionText(token *fleet.ClusterRegistrationToken, conditionType string) string {
	c := fleetstatus.Condition(token.Status.Conditions, conditionType)
	return string(c.Status) + " " + c.Reason
}

func TestSetWithinLimits(t *testing.T) {
	s := newScene(t)
	s.Backlog = backlog.New(s.requests, generic.NewCache[*fleet.Cluster](emptyIndexer(), schema.GroupResource{}), s.Clock)
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
	assert.Contains(t, requires(token, "False LimitReached", true), "2 registered clusters have never connected")
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
