package clusterregistration

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/backlog"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/metrics"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestLimits(t *testing.T) {
	const granted, unconnected, refused = "True Granted", "Unknown TooManyUnconnected", "False TooManyWaiting"
	for _, row := range []struct {
		name     string
		limits   config.BacklogLimits
		before   []backlog.Phase // the phases of other requests of the token
		change   func(*scene)
		want     string
		reported bool
	}{
		{"below the limits: granted", config.BacklogLimits{UnconnectedPerToken: 2}, []backlog.Phase{backlog.Unconnected}, nil, granted, false},
		{"too many unconnected: waits", config.BacklogLimits{UnconnectedPerToken: 1}, []backlog.Phase{backlog.Unconnected}, nil, unconnected, true},
		{"too many unconnected in the namespace: waits", config.BacklogLimits{UnconnectedPerNamespace: 1}, []backlog.Phase{backlog.Unconnected}, nil, unconnected, true},
		{
			"too many unconnected, and too many wait: refused",
			config.BacklogLimits{UnconnectedPerToken: 1, WaitingPerToken: 1},
			[]backlog.Phase{backlog.Unconnected, backlog.Waiting},
			nil, refused, true,
		},
		{"too many wait, and this one does not have to: granted", config.BacklogLimits{WaitingPerToken: 1}, []backlog.Phase{backlog.Waiting}, nil, granted, false},
		{
			"too many wait for a person: refused",
			config.BacklogLimits{WaitingPerToken: 1},
			[]backlog.Phase{backlog.Waiting},
			func(s *scene) { s.token.Spec.Approval = fleet.ApprovalManual }, refused, true,
		},
		{
			"few wait for a person: waits",
			config.BacklogLimits{WaitingPerToken: 2},
			[]backlog.Phase{backlog.Waiting},
			func(s *scene) { s.token.Spec.Approval = fleet.ApprovalManual }, "Unknown WaitingForApproval", false,
		},
		{
			"the hub imports the Cluster: granted",
			config.BacklogLimits{UnconnectedPerToken: 1},
			[]backlog.Phase{backlog.Unconnected},
			func(s *scene) {
				s.cluster.Spec.KubeConfigSecret, s.token.Spec.ClientIDs = "kubeconfig", []string{"client"}
			}, granted, false,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			s.ready()
			s.handler.requests = requestsOf()
			s.Backlog = backlog.New(s.requests, fakecache.With[*fleet.Cluster](), s.Clock, s.OriginPolicies)
			if row.change != nil {
				row.change(s)
			}
			s.configure(config.Registration{Limits: row.limits})
			for n, phase := range row.before {
				other := s.request.DeepCopy()
				other.UID = types.UID(fmt.Sprint("other-", n))
				admitted, err := s.Backlog.Admit(phase, other, backlog.PhaseLimit{PerToken: 9, PerNamespace: 9})
				assert.True(t, admitted && err == nil)
			}
			found, out := s.grantRequest(t)
			assert.Equal(t, row.want, text(out), out.Message)
			s.recordDecision(s.request, found, result.Set(&s.request.Status.Conditions, fleet.ConditionGranted, out, s.Clock.Now()))
			for reason, decision := range map[string]string{fleet.ReasonTooManyUnconnected: unconnected, fleet.ReasonTooManyWaiting: refused} {
				assert.InDelta(t, count(row.want == decision), testutil.ToFloat64(s.Metrics.OverLimit.WithLabelValues(reason)), 0, reason)
			}
			assert.Equal(t, row.reported, len(s.counting.delays) > 0, "the token is reconciled, for its condition")
			if row.reported {
				assert.Empty(t, s.writes(), "nothing is created for it")
				assert.False(t, out.EventOnWait, "the token has the event")
				assert.Positive(t, out.After)
			}
		})
	}
}

func count(happened bool) float64 {
	if happened {
		return 1
	}
	return 0
}

func TestUnusedGrantsAreSuperseded(t *testing.T) {
	s := newScene(t)
	s.ready()
	var unused []*fleet.ClusterRegistration
	for n := range registration.MostUnused + 4 {
		r, _ := s.earlier()
		r.Name, r.UID = fmt.Sprintf("request-%02d", n), types.UID(fmt.Sprint(n))
		unused = append(unused, r)
	}
	delete(unused[0].Annotations, registration.RenewalAnnotation)
	s.cluster.Status.Agent.Registration, s.cluster.Status.Agent.PossessionProof = "request-01", "request-02"
	s.server(s.request, s.cluster, unused[3])
	assert.NoError(t, s.deleteOlderOnceUsed(t.Context(), s.request, s.cluster, append(unused, s.request)))
	assert.Equal(t, []string{"delete clusterregistrations request-03"}, s.writes(), "not the one in use, nor the next one")

	s.fails("delete", "clusterregistrations", errTest)
	assert.ErrorIs(t, s.deleteOlderOnceUsed(t.Context(), s.request, s.cluster, append(unused, s.request)), errTest)
}

func TestRecordDecision_refused(t *testing.T) {
	for reason, want := range map[string]float64{fleet.ReasonDenied: 1, fleet.ReasonError: 0} { // the decision is repeated after an error
		s, registry := newScene(t), prometheus.NewRegistry()
		s.Metrics = metrics.New(registry)
		s.recordDecision(s.request, findings{}, &result.Transition{Before: corev1.ConditionUnknown, After: corev1.ConditionFalse, Reason: reason})
		families, err := registry.Gather()
		require.NoError(t, err)
		counted := 0.0
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == "muster_registrations_refused_total" {
					counted += m.GetCounter().GetValue()
				}
			}
		}
		assert.InDelta(t, want, counted, 0, reason)
	}
}
