package clusterregistration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestIsHeld(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(s *scene, earlier *fleet.ClusterRegistration, secret *corev1.Secret)
		held   bool
	}{
		{"by an agent that has sent a heartbeat", func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			s.cluster.Status.Agent.LastSeen, earlier.Status.Granted = metav1.NewTime(noon), false
		}, true},
		{"by a credential that waits for its agent", func(*scene, *fleet.ClusterRegistration, *corev1.Secret) {}, true},
		{"by a credential that the cache does not show", func(s *scene, _ *fleet.ClusterRegistration, secret *corev1.Secret) {
			s.secrets = secretsOf{}
			s.server(secret)
		}, true},
		{"not by a credential that expired", func(s *scene, _ *fleet.ClusterRegistration, _ *corev1.Secret) { s.secrets = secretsOf{} }, false},
		{"not by a request that is being deleted", func(_ *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			earlier.DeletionTimestamp = &metav1.Time{Time: noon}
		}, false},
		{"not by a request that is not granted", func(_ *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) { earlier.Status.Granted = false }, false},
		{"not by the Secret of another request", func(_ *scene, _ *fleet.ClusterRegistration, secret *corev1.Secret) { secret.Annotations = nil }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			earlier, secret := s.earlier()
			s.secrets = secretsOf{all: []*corev1.Secret{secret}}
			row.change(s, earlier, secret)
			held, lostIn, err := s.isHeld(t.Context(), s.request, s.cluster, registration.OriginOf(s.request, s.recording()), []*fleet.ClusterRegistration{s.request, earlier})
			require.NoError(t, err)
			assert.Equal(t, row.held, held)
			assert.Zero(t, lostIn)
		})
	}
}

// An agent of another release that is stopped before it has stored its credential comes back with another request.
func TestIsHeldByAgentThatMayHaveLostItsCredential(t *testing.T) {
	for _, row := range []struct {
		name   string
		age    time.Duration
		change func(s *scene, earlier *fleet.ClusterRegistration)
		held   bool
		lostIn time.Duration
	}{
		{"a minute ago: held for four more", time.Minute, nil, true, lostAfter - time.Minute},
		{"five minutes ago: lost", lostAfter, nil, false, 0},
		{"it has sent a heartbeat: held", lostAfter, func(s *scene, _ *fleet.ClusterRegistration) { s.cluster.Status.Agent.LastSeen = metav1.NewTime(noon) }, true, 0},
		{"with another token: held", lostAfter, func(_ *scene, earlier *fleet.ClusterRegistration) {
			earlier.Annotations[fleet.CreatorAnnotation] = tokenUser + "-other"
		}, true, 0},
		{"no creator is recorded: held", lostAfter, func(s *scene, _ *fleet.ClusterRegistration) { s.Admission = &recorded{missing: "x"} }, true, 0},
		{"before creators were recorded: held", lostAfter, func(_ *scene, earlier *fleet.ClusterRegistration) {
			earlier.CreationTimestamp = metav1.NewTime(noon.Add(-1))
		}, true, 0},
		{"it renews its credential and loses none: held", lostAfter, func(_ *scene, earlier *fleet.ClusterRegistration) {
			earlier.Annotations[registration.RenewalAnnotation] = "true"
		}, true, 0},
		{"this agent renews, so it is another one: held", lostAfter, func(s *scene, _ *fleet.ClusterRegistration) {
			s.request.Annotations[registration.RenewalAnnotation] = "true"
		}, true, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			s.stock()
			earlier, secret := s.earlier()
			secret.CreationTimestamp = metav1.NewTime(noon.Add(-row.age))
			s.secrets = secretsOf{all: []*corev1.Secret{secret}}
			if row.change != nil {
				row.change(s, earlier)
			}
			held, lostIn, err := s.isHeld(t.Context(), s.request, s.cluster, registration.OriginOf(s.request, s.recording()), []*fleet.ClusterRegistration{s.request, earlier})
			require.NoError(t, err)
			assert.Equal(t, row.held, held)
			assert.Equal(t, row.lostIn, lostIn)
		})
	}
}

func TestAwaitsGrant(t *testing.T) {
	s := newScene(t)
	other, _ := s.earlier()
	other.ResourceVersion = "5"
	written := other.DeepCopy()
	written.ResourceVersion = "6"
	both := []*fleet.ClusterRegistration{s.request, other}
	s.written.Wrote(written)
	assert.False(t, s.awaitsGrant(s.request, both), "any other write")
	s.grants.Wrote(written)
	assert.True(t, s.awaitsGrant(s.request, both))
	assert.False(t, s.awaitsGrant(other, both), "its own grant")
	s.Clock.(interface{ Step(time.Duration) }).Step(time.Minute)
	assert.True(t, s.awaitsGrant(s.request, both), "however slow the cache is")
}

func (s *scene) sibling(name string, age time.Duration, granted bool) *fleet.ClusterRegistration {
	r := s.request.DeepCopy()
	r.Name, r.Spec.ClientRandom, r.Status.Granted = name, name, granted
	r.CreationTimestamp = metav1.NewTime(s.request.CreationTimestamp.Add(-age))
	return r
}

func TestSupersede(t *testing.T) {
	for _, row := range []struct {
		name     string
		renewing bool
		agent    fleet.AgentStatus
		granting []string // deleted by the pass that grants
		keeping  []string // deleted by the passes after that
	}{
		{name: "an agent that does not report what it uses", granting: []string{"delete clusterregistrations older", "delete clusterregistrations twin"}},
		{name: "an agent that reports, and has not come yet", renewing: true},
		{name: "an agent that still uses the old credential", renewing: true, agent: fleet.AgentStatus{Registration: "older"}},
		{
			name: "an agent that uses the new one", renewing: true, agent: fleet.AgentStatus{Registration: "request-abc"},
			granting: []string{"delete clusterregistrations older", "delete clusterregistrations twin"},
			keeping:  []string{"delete clusterregistrations older", "delete clusterregistrations twin"},
		},
		{
			name: "an agent that has announced its next request within the second", renewing: true, agent: fleet.AgentStatus{Registration: "request-abc", Vouches: "twin"},
			granting: []string{"delete clusterregistrations older"}, keeping: []string{"delete clusterregistrations older"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, granted := range []bool{false, true} {
				s := newScene(t)
				s.ready()
				if !row.renewing {
					s.stock()
				}
				s.cluster.Status.Agent = row.agent
				s.cached(s.sibling("older", time.Hour, true), s.sibling("twin", 0, true), s.sibling("newer", -time.Hour, false))
				s.request.Status.Granted, s.request.Status.ClusterName = granted, "member"
				s.accounts = accountsOf{all: []*corev1.ServiceAccount{s.account()}}
				want := row.granting
				if granted {
					want = row.keeping
					require.True(t, s.repair(t.Context(), s.request).IsDone())
				} else {
					siblings, err := s.siblings(s.request)
					require.NoError(t, err)
					if renews(s.request) {
						require.NoError(t, s.supersedeOnceUsed(t.Context(), s.request, s.cluster, siblings))
					} else {
						require.NoError(t, s.supersede(t.Context(), s.request, siblings, ""))
					}
				}
				var deleted []string
				for _, write := range s.writes() {
					if write != "create serviceaccounts" {
						deleted = append(deleted, write)
					}
				}
				assert.Equal(t, want, deleted, granted)
			}
		})
	}
	t.Run("a deletion that fails is retried, one of a request that is gone is not", func(t *testing.T) {
		s := newScene(t)
		older := []*fleet.ClusterRegistration{s.sibling("older", time.Hour, true)}
		require.NoError(t, s.supersede(t.Context(), s.request, older, ""))
		s.fails("delete", "clusterregistrations", errTest)
		require.ErrorIs(t, s.supersede(t.Context(), s.request, older, ""), errTest)
	})
}
