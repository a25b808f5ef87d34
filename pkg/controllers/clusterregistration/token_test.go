package clusterregistration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubetesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/fakecache"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestFindToken(t *testing.T) {
	tokens := func(s *scene, names ...string) {
		var all []*fleet.ClusterRegistrationToken
		for _, name := range names {
			token := s.token.DeepCopy()
			token.Name = name
			all = append(all, token)
		}
		s.tokens = fakecache.With(all...)
	}
	silent := func(s *scene) { s.request.Labels = nil }
	for _, row := range []struct {
		name   string
		change func(*scene)
		token  string // or the reason why there is none
		origin string
	}{
		{"the one it names", func(*scene) {}, "token", fleet.ReasonOriginProved},
		{"named, deleted", func(s *scene) { s.tokens = fakecache.With[*fleet.ClusterRegistrationToken]() }, fleet.ReasonTokenNotFound, fleet.ReasonOriginProved},
		{"named, being deleted", func(s *scene) { s.token.DeletionTimestamp = &metav1.Time{Time: noon} }, fleet.ReasonTokenNotFound, fleet.ReasonOriginProved},
		{"named, expired and not deleted yet", func(s *scene) {
			s.token.CreationTimestamp, s.token.Spec.TTL = metav1.NewTime(noon.Add(-time.Hour)), &metav1.Duration{Duration: time.Hour}
		}, fleet.ReasonTokenNotFound, fleet.ReasonOriginProved},
		{"named, expired only by the clock of the hub, which is ahead", func(s *scene) {
			s.token.CreationTimestamp, s.token.Spec.TTL = metav1.NewTime(noon.Add(-13*time.Hour)), &metav1.Duration{Duration: time.Hour}
			s.kube.PrependReactor("create", "selfsubjectreviews", func(kubetesting.Action) (bool, runtime.Object, error) {
				return true, &authenticationv1.SelfSubjectReview{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: s.token.CreationTimestamp}}, nil
			})
		}, "token", fleet.ReasonOriginProved},
		{"named, with a ttl that cannot be decoded", func(s *scene) { s.token.Undecodable = "spec.ttl" }, fleet.ReasonTokenNotFound, fleet.ReasonOriginProved},
		{"named, created by the holder of another token", func(s *scene) {
			tokens(s, "token", "other")
			s.request.Labels[fleet.RegistrationTokenLabel] = "other"
		}, "other", fleet.ReasonTokenMismatch},
		{"named, another token has the same shortened name: the creator decides", func(s *scene) {
			long := strings.Repeat("a", 64)
			first, second := s.token.DeepCopy(), s.token.DeepCopy()
			first.Name, second.Name = long+"-267", long+"-919"
			first.UID = "of-another"
			require.Equal(t, registration.LabelValue(first.Name), registration.LabelValue(second.Name))
			s.tokens = fakecache.With(first, second)
			s.request.Labels[fleet.RegistrationTokenLabel] = registration.LabelValue(first.Name)
			s.request.Annotations[fleet.CreatorAnnotation] = registration.AccountUser(second.Namespace, asToken(second).ServiceAccount)
		}, strings.Repeat("a", 64) + "-919", fleet.ReasonOriginProved},
		{"none named: the creator is recorded", func(s *scene) { silent(s); tokens(s, "other", "token", "third") }, "token", fleet.ReasonOriginProved},
		{"none named, nothing recorded, one token", func(s *scene) { silent(s); s.Admission = policiesIn(admission.PolicyState{Missing: "x"}) }, "token", fleet.ReasonPolicyMissing},
		{"none named, nothing recorded, two tokens", func(s *scene) {
			silent(s)
			tokens(s, "token", "other")
			s.Admission = nil
		}, fleet.ReasonTokenUnknown, fleet.ReasonPolicyMissing},
		{"none named, nothing recorded, one of them of the import", func(s *scene) {
			silent(s)
			tokens(s, "token", registration.ImportTokenName("member"))
			s.Admission = nil
		}, "import-token-member", fleet.ReasonPolicyMissing},
		{"none named, created by a person", func(s *scene) { silent(s); s.request.Annotations[fleet.CreatorAnnotation] = "admin" }, "token", fleet.ReasonTokenMismatch},
		{"named, and checked by the API server", func(s *scene) { checked(s) }, "token", fleet.ReasonOriginProved},
		{"named, by somebody who says another name", func(s *scene) {
			checked(s)
			s.request.Annotations[fleet.CreatorAnnotation] = "admin"
		}, "token", fleet.ReasonTokenMismatch},
		{"none named where the API server checks names: assumed", func(s *scene) { silent(s); checked(s) }, "token", fleet.ReasonOriginUnknown},
		{"named, created after the request", func(s *scene) { checked(s); s.createToken(clockTolerance + time.Second) }, fleet.ReasonTokenNotFound, fleet.ReasonOriginProved},
		{"named, created after the request where nothing is checked", func(s *scene) {
			s.Admission = nil
			s.createToken(clockTolerance + time.Second)
		}, fleet.ReasonTokenNotFound, fleet.ReasonPolicyMissing},
		{"named, created a little later, by a clock that is ahead", func(s *scene) { checked(s); s.createToken(clockTolerance) }, "token", fleet.ReasonOriginProved},
		{"named, created after the request: the recorded creator decides", func(s *scene) { s.createToken(clockTolerance + time.Second) }, "token", fleet.ReasonOriginProved},
		{"none named, nothing recorded, created after the request", func(s *scene) {
			silent(s)
			s.Admission = nil
			s.createToken(clockTolerance + time.Second)
		}, fleet.ReasonTokenUnknown, fleet.ReasonPolicyMissing},
		{"named, of a request that was granted with it", func(s *scene) {
			checked(s)
			s.createToken(clockTolerance + time.Second) // by another API server, whose clock is ahead
			s.request.Status = fleet.ClusterRegistrationStatus{Granted: true, TokenUID: "uid"}
		}, "token", fleet.ReasonOriginProved},
		{"named, of a request that was granted with an earlier token of that name", func(s *scene) {
			s.request.Status = fleet.ClusterRegistrationStatus{Granted: true, TokenUID: "earlier"}
		}, fleet.ReasonTokenNotFound, fleet.ReasonOriginProved},
		{"created before creators were recorded", func(s *scene) { s.Admission = policiesIn(admission.PolicyState{Since: noon.Add(time.Second)}) }, "token", fleet.ReasonOriginUnknown},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newScene(t)
			row.change(s)
			origin := registration.OriginOf(s.request, s.OriginPolicies())
			token, refusal, err := s.findToken(t.Context(), s.request, origin, "member")
			require.NoError(t, err)
			if refusal != nil {
				assert.Nil(t, token)
				assert.Equal(t, row.token, refusal.Reason)
			} else {
				assert.Equal(t, row.token, token.Name)
				origin = origin.For(s.request.Namespace, asToken(token))
			}
			assert.Equal(t, row.origin, origin.Reason)
		})
	}
}

func TestFindToken_serverClockUnknown(t *testing.T) {
	s := newScene(t)
	s.kube.PrependReactor("create", "selfsubjectreviews", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("out") })
	find := func() (*fleet.ClusterRegistrationToken, error) {
		token, _, err := s.findToken(t.Context(), s.request, registration.OriginOf(s.request, s.OriginPolicies()), "member")
		return token, err
	}
	expired := s.token.DeepCopy()
	expired.Name, expired.UID = "expired", "expired"
	expired.CreationTimestamp, expired.Spec.TTL = metav1.NewTime(noon.Add(-time.Hour)), &metav1.Duration{Duration: time.Hour}
	deleted := expired.DeepCopy()
	deleted.Name, deleted.DeletionTimestamp = "deleted", &metav1.Time{Time: noon}

	s.request.Labels = nil
	s.tokens = fakecache.With(expired, s.token)
	token, err := find()
	require.NoError(t, err, "the creator is recorded")
	assert.Equal(t, "token", token.Name)
	s.Admission = nil
	_, err = find()
	require.ErrorContains(t, err, "out", "the only token, if the other one has expired")
	s.tokens = fakecache.With(deleted, s.token)
	token, err = find()
	require.NoError(t, err, "a deleted token is unusable at any time")
	assert.Equal(t, "token", token.Name)
}

// createToken gives the token of the scene a creation time after that of the request.
func (s *scene) createToken(after time.Duration) {
	s.token.CreationTimestamp = metav1.NewTime(s.request.CreationTimestamp.Add(after))
}

// checked is for an API server that checks the tokens that requests name, and records no creators.
func checked(s *scene) {
	s.Admission = policiesIn(admission.PolicyState{Since: noon, NotRecorded: "too old"})
	delete(s.request.Annotations, fleet.CreatorAnnotation)
}

func TestAskForUse(t *testing.T) {
	for _, row := range []struct {
		named, asking int
		want          time.Duration
	}{
		{0, 1, 0},
		{1, 1, 0},
		{0, 2, 0},
		{2, 1, batchDelay},
		{0, 3, batchDelay},
		{0, 500, batchDelay},
		{burstMin - 1, 1, batchDelay},
		{burstMin, 1, burstDelay},
		{100, 200, burstDelay},
	} {
		assert.Equal(t, row.want, countDelay(row.named, row.asking), row)
	}
	s := newScene(t)
	s.token.Status.PendingUses = make([]string, burstMin)
	s.askForUse(s.request, s.token, "member")
	assert.Equal(t, []time.Duration{burstDelay}, s.counting.delays)
	assert.Equal(t, []registration.Use{{UID: "0c5bbf4e", Name: "request-abc", Cluster: "member", Created: noon}},
		s.TokenUsage.Of(types.NamespacedName{Namespace: "fleet-default", Name: "token"}))
}
