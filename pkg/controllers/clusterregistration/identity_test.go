package clusterregistration

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestHasAgentOrAnswer(t *testing.T) {
	cannotRenew := func(s *scene, earlier *fleet.ClusterRegistration) {
		s.cannotRenew()
		delete(earlier.Annotations, registration.RenewalAnnotation)
	}
	for _, row := range []struct {
		name     string
		age      time.Duration // of the credential of the earlier request
		change   func(s *scene, earlier *fleet.ClusterRegistration, secret *corev1.Secret)
		hasAgent bool
		freeIn   time.Duration
	}{
		{"by an agent that has sent a heartbeat", 0, func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			s.cluster.Status.Agent.LastSeen, earlier.Status.Granted = metav1.NewTime(noon), false
		}, true, 0},
		{"by a credential that waits for its agent", 0, func(*scene, *fleet.ClusterRegistration, *corev1.Secret) {}, true, 0},
		{"by a credential that the cache does not show", 0, func(s *scene, _ *fleet.ClusterRegistration, secret *corev1.Secret) {
			s.secrets = secretsOf()
			s.server(secret)
		}, true, 0},
		{"not by a credential that expired", 0, func(s *scene, _ *fleet.ClusterRegistration, _ *corev1.Secret) { s.secrets = secretsOf() }, false, 0},
		{"not by a request that is being deleted", 0, func(_ *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			earlier.DeletionTimestamp = &metav1.Time{Time: noon}
		}, false, 0},
		{"not by a request that is not granted", 0, func(_ *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) { earlier.Status.Granted = false }, false, 0},
		{"not by the Secret of another request", 0, func(_ *scene, _ *fleet.ClusterRegistration, secret *corev1.Secret) { secret.Annotations = nil }, false, 0},

		// An agent of Fleet that is stopped before it has stored its credential comes back with another request.
		{"a minute ago by an agent that may have lost its credential: held for four more", time.Minute, func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			cannotRenew(s, earlier)
		}, true, unusedAfter - time.Minute},
		{"five minutes ago: free", unusedAfter, func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) { cannotRenew(s, earlier) }, false, 0},
		{"five minutes ago, and it has sent a heartbeat", unusedAfter, func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			cannotRenew(s, earlier)
			s.cluster.Status.Agent.LastSeen = metav1.NewTime(noon)
		}, true, 0},
		{"five minutes ago, with another token", unusedAfter, func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			cannotRenew(s, earlier)
			earlier.Annotations[fleet.CreatorAnnotation] = tokenUser + "-other"
		}, true, 0},
		{"five minutes ago, and no creator is recorded", unusedAfter, func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			cannotRenew(s, earlier)
			s.Admission = policiesIn(admission.PolicyState{Missing: "x"})
		}, true, 0},
		{"five minutes ago, and both name the token that it came with", unusedAfter, func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			cannotRenew(s, earlier)
			checked(s)
			delete(earlier.Annotations, fleet.CreatorAnnotation)
			earlier.Status.TokenUID = string(s.token.UID)
		}, false, 0},
		{"five minutes ago, with a token of the same name that was deleted", unusedAfter, func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			cannotRenew(s, earlier)
			checked(s)
			delete(earlier.Annotations, fleet.CreatorAnnotation)
			earlier.Status.TokenUID = "before"
		}, true, 0},
		{"before creators were recorded", unusedAfter, func(s *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			cannotRenew(s, earlier)
			earlier.CreationTimestamp = metav1.NewTime(noon.Add(-1))
		}, true, 0},
		{"five minutes ago by an agent that renews, and so loses no credential", unusedAfter, func(s *scene, _ *fleet.ClusterRegistration, _ *corev1.Secret) {
			s.cannotRenew()
		}, true, 0},
		{"this agent renews, so it is another one", unusedAfter, func(_ *scene, earlier *fleet.ClusterRegistration, _ *corev1.Secret) {
			delete(earlier.Annotations, registration.RenewalAnnotation)
		}, true, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			earlier, secret := s.earlier()
			secret.CreationTimestamp = metav1.NewTime(noon.Add(-row.age))
			s.secrets = secretsOf(secret)
			row.change(s, earlier, secret)
			hasAgent, freeIn, err := s.hasAgentOrAnswer(t.Context(), s.request, s.cluster, s.token, registration.OriginOf(s.request, s.OriginPolicies()), []*fleet.ClusterRegistration{s.request, earlier})
			require.NoError(t, err)
			assert.Equal(t, row.hasAgent, hasAgent)
			assert.Equal(t, row.freeIn, freeIn)
		})
	}
}

func TestOtherMayBeGranted(t *testing.T) {
	s := newScene(t)
	other, _ := s.earlier()
	other.ResourceVersion = "5"
	written := other.DeepCopy()
	written.ResourceVersion = "6"
	both := []*fleet.ClusterRegistration{s.request, other}
	s.written.Wrote(written)
	assert.False(t, s.otherMayBeGranted(s.request, both), "any other write")
	s.writtenGrants.Wrote(written)
	assert.True(t, s.otherMayBeGranted(s.request, both))
	assert.False(t, s.otherMayBeGranted(other, both), "its own grant")
	s.Clock.(interface{ Step(time.Duration) }).Step(time.Minute)
	assert.True(t, s.otherMayBeGranted(s.request, both), "however slow the cache is")
}

func TestOtherMayBeGranted_refusedWrite(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("denied by a webhook"))
	unknown := apierrors.NewTimeoutError("", 0)
	for name, row := range map[string]struct {
		answers []error
		mayBe   bool
	}{
		"refused, so nothing is stored":       {[]error{forbidden}, false},
		"refused again":                       {[]error{forbidden, forbidden}, false},
		"invalid":                             {[]error{apierrors.NewInvalid(schema.GroupKind{}, "", nil)}, false},
		"a webhook refuses it without a code": {[]error{apierrors.NewBadRequest("denied")}, false},
		"unknown":                             {[]error{unknown}, true},
		"refused, after an earlier write with an unknown result": {[]error{unknown, forbidden}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			granted := s.request.Status
			granted.Granted = true
			for _, answer := range row.answers {
				s.fails("patch", "clusterregistrations", answer)
				_, _, _, err := s.writeStatus(t.Context(), s.request, granted, done)
				require.ErrorIs(t, err, answer)
			}
			other, _ := s.earlier()
			assert.Equal(t, row.mayBe, s.otherMayBeGranted(other, []*fleet.ClusterRegistration{s.request, other}))
		})
	}
}

func (s *scene) sibling(name string, age time.Duration, granted bool) *fleet.ClusterRegistration {
	r := s.request.DeepCopy()
	r.Name, r.Spec.ClientRandom, r.Status.Granted = name, name, granted
	r.CreationTimestamp = metav1.NewTime(s.request.CreationTimestamp.Add(-age))
	return r
}

func TestDeleteOlder(t *testing.T) {
	for _, row := range []struct {
		name     string
		renewing bool
		agent    fleet.AgentStatus
		granting []string // deleted by the pass that grants
		keeping  []string // deleted by the passes after that
	}{
		{name: "an agent that does not report what it uses", granting: []string{"delete clusterregistrations older", "delete clusterregistrations twin"}},
		{name: "an agent that reports, and has sent no heartbeat yet", renewing: true},
		{name: "an agent that still uses the old credential", renewing: true, agent: fleet.AgentStatus{Registration: "older"}},
		{
			name: "an agent that uses the new one", renewing: true, agent: fleet.AgentStatus{Registration: "request-abc"},
			granting: []string{"delete clusterregistrations older", "delete clusterregistrations twin"},
			keeping:  []string{"delete clusterregistrations older", "delete clusterregistrations twin"},
		},
		{
			name: "an agent that has announced its next request within the second", renewing: true, agent: fleet.AgentStatus{Registration: "request-abc", PossessionProof: "twin"},
			granting: []string{"delete clusterregistrations older"}, keeping: []string{"delete clusterregistrations older"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, granted := range []bool{false, true} {
				s := newScene(t)
				s.ready()
				if !row.renewing {
					s.cannotRenew()
				}
				s.cluster.Status.Agent = row.agent
				s.haveCached(s.sibling("older", time.Hour, true), s.sibling("twin", 0, true), s.sibling("newer", -time.Hour, false))
				s.request.Status.Granted, s.request.Status.ClusterName = granted, "member"
				s.accounts = fakecache.With(s.account())
				want := row.granting
				if granted {
					want = row.keeping
					require.True(t, s.repair(t.Context(), s.request).IsDone())
				} else {
					sameClientID, err := s.sameClientID(s.request)
					require.NoError(t, err)
					if registration.Renews(s.request) {
						require.NoError(t, s.deleteOlderOnceUsed(t.Context(), s.request, s.cluster, sameClientID))
					} else {
						require.NoError(t, s.deleteOlder(t.Context(), s.request, sameClientID, ""))
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
		require.NoError(t, s.deleteOlder(t.Context(), s.request, older, ""))
		s.fails("delete", "clusterregistrations", errTest)
		require.ErrorIs(t, s.deleteOlder(t.Context(), s.request, older, ""), errTest)
	})
}

func TestIsClusternetReentry(t *testing.T) {
	const hub = "system:serviceaccount:cattle-fleet-system:fleet-controller"
	disconnected := func(cluster *fleet.Cluster, status corev1.ConditionStatus) {
		cluster.Status.Conditions = fleetstatus.Conditions{{Type: fleet.ConditionConnected, Status: status}}
	}
	for name, row := range map[string]struct {
		change func(s *scene, earlier *fleet.ClusterRegistration)
		want   bool
	}{
		"it is disconnected, and the token is the same": {func(*scene, *fleet.ClusterRegistration) {}, true},
		"the namespace does not allow it": {func(s *scene, _ *fleet.ClusterRegistration) {
			s.Config = config.NewStore(config.Hub{Clusternet: config.ClusternetAgents{ReentryNamespaces: []string{"other"}}})
		}, false},
		"it is connected":             {func(s *scene, _ *fleet.ClusterRegistration) { disconnected(s.cluster, corev1.ConditionTrue) }, false},
		"its connection is not known": {func(s *scene, _ *fleet.ClusterRegistration) { s.cluster.Status.Conditions = nil }, false},
		"it has another token":        {func(_ *scene, earlier *fleet.ClusterRegistration) { earlier.Status.TokenUID = "other" }, false},
		"an agent of Muster uses its credential": {func(_ *scene, earlier *fleet.ClusterRegistration) {
			delete(earlier.Annotations, fleet.RequesterAnnotation)
		}, false},
		"the earlier request is not granted": {func(_ *scene, earlier *fleet.ClusterRegistration) { earlier.Status.Granted = false }, false},
		"the credential was revoked":         {func(s *scene, _ *fleet.ClusterRegistration) { s.accounts = fakecache.With[*corev1.ServiceAccount]() }, false},
		"the request says that the credential was revoked": {func(_ *scene, earlier *fleet.ClusterRegistration) {
			result.Set(&earlier.Status.Conditions, fleet.ConditionGranted, result.Stalled(fleet.ReasonCredentialRevoked, ""), noon)
		}, false},
		"an agent of Muster asks": {func(s *scene, _ *fleet.ClusterRegistration) { delete(s.request.Annotations, fleet.RequesterAnnotation) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.HubUser = hub
			s.Config = config.NewStore(config.Hub{Clusternet: config.ClusternetAgents{ReentryNamespaces: []string{"fleet-default"}}})
			s.request.Annotations = map[string]string{fleet.CreatorAnnotation: hub, fleet.RequesterAnnotation: tokenUser}
			earlier := s.sibling("earlier", time.Hour, true)
			earlier.UID, earlier.Status.TokenUID = "earlier", string(s.token.UID)
			earlier.Annotations = maps.Clone(s.request.Annotations)
			disconnected(s.cluster, corev1.ConditionFalse)
			s.accounts = fakecache.With(s.rights(earlier, s.cluster, nil)[0].(*corev1.ServiceAccount))
			row.change(s, earlier)
			origin := registration.OriginOf(s.request, s.OriginPolicies()).For(s.request.Namespace, asToken(s.token))
			may := func() (bool, error) {
				return s.isClusternetReentry(t.Context(), s.request, s.token, s.cluster, origin, []*fleet.ClusterRegistration{s.request, earlier})
			}
			got, err := may()
			require.NoError(t, err)
			assert.Equal(t, row.want, got)
			if row.want {
				s.accounts = fakecache.With[*corev1.ServiceAccount]()
				s.fails("get", "serviceaccounts", errTest)
				got, err = may()
				require.ErrorIs(t, err, errTest, "it is not known whether the credential was revoked")
				assert.False(t, got)
			}
		})
	}
}
