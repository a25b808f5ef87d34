package clusterregistration

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// fleetOf has the queue of tokens.
type fleetOf struct {
	fleetcontrollers.Interface
	tokens *tokenQueue
}

func (f fleetOf) ClusterRegistrationToken() fleetcontrollers.ClusterRegistrationTokenController {
	return f.tokens
}

type tokenQueue struct {
	fleetcontrollers.ClusterRegistrationTokenController
	added  []string
	delays []time.Duration
}

func (q *tokenQueue) EnqueueAfter(namespace, name string, delay time.Duration) {
	q.added = append(q.added, namespace+"/"+name)
	q.delays = append(q.delays, delay)
}

func (t tokensOf) Get(_, name string) (*fleet.ClusterRegistrationToken, error) {
	for _, token := range t.all {
		if token.Name == name {
			return token, t.err
		}
	}
	return nil, orNotFound(t.err, name)
}

func TestARequestIsMadeNothingForBeforeItIsCounted(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*pass, *fleet.ClusterRegistrationToken)
		want   string // "" is done
		asks   bool
		notes  string
	}{
		{"it asks", func(*pass, *fleet.ClusterRegistrationToken) {}, "Unknown CountingUse", true, ""},
		{"it asks, and there is a limit", func(_ *pass, token *fleet.ClusterRegistrationToken) { token.Spec.UsageLimit = ptr.To(int32(1)) }, "Unknown CountingUse", true, ""},
		{"the token names it", func(p *pass, token *fleet.ClusterRegistrationToken) {
			token.Status.PendingUses = []string{string(p.request.UID)}
		}, "", false, "uid"},
		{"it was counted before", func(p *pass, _ *fleet.ClusterRegistrationToken) { p.request.Status.TokenUID = "uid" }, "", false, "uid"},
		{"it was counted for an earlier token of that name", func(p *pass, _ *fleet.ClusterRegistrationToken) { p.request.Status.TokenUID = "earlier" }, "Unknown CountingUse", true, ""},
		{"the token is used up", func(_ *pass, token *fleet.ClusterRegistrationToken) {
			token.Spec.UsageLimit, token.Status.Uses = ptr.To(int32(1)), 1
		}, "False TokenUsedUp", false, ""},
		{"used up, and by this one", func(p *pass, token *fleet.ClusterRegistrationToken) {
			token.Spec.UsageLimit, token.Status.Uses = ptr.To(int32(1)), 1
			token.Status.PendingUses = []string{string(p.request.UID)}
		}, "", false, "uid"},
		{"the token has just gone", func(p *pass, _ *fleet.ClusterRegistrationToken) { p.tokens = tokensOf{} }, "Unknown CountingUse", false, ""},
		{"the cache is broken", func(p *pass, _ *fleet.ClusterRegistrationToken) { p.tokens = tokensOf{err: errors.New("out")} }, "False Error", false, ""},
		{"nobody knows the token, and a person has approved it", func(p *pass, _ *fleet.ClusterRegistrationToken) { p.reader = nil }, "", false, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, token, queue := somePass(), someToken(), &tokenQueue{}
			p.tokens, p.Fleet = tokensOf{all: []*fleet.ClusterRegistrationToken{token}}, fleetOf{tokens: queue}
			row.change(p, token)
			before := token.DeepCopy()
			out := p.countUse(t.Context())
			if row.want == "Unknown CountingUse" && token.Spec.UsageLimit == nil && p.uncounted != "" {
				assert.True(t, out.IsDone(), "its Cluster can be made meanwhile")
				out = p.awaitCount(t.Context())
			}
			if row.want == "" {
				assert.True(t, out.IsDone())
				assert.True(t, p.awaitCount(t.Context()).IsDone())
			} else {
				assert.Equal(t, row.want, text(out))
			}
			assert.Equal(t, row.notes, p.after.TokenUID)
			assert.Equal(t, row.asks, len(p.Uses.Of(types.NamespacedName{Namespace: "fleet-default", Name: "token"})) == 1)
			assert.Equal(t, row.asks, len(queue.added) == 1)
			assert.True(t, equality.Semantic.DeepEqual(before, token), "the token is another controller's to write")
		})
	}
}

func TestAUseSaysForWhichClusterItIs(t *testing.T) {
	p := somePass()
	assert.Equal(t, registration.Use{UID: "0c5bbf4e", Name: "request-abc", Cluster: "member", Created: noon}, p.use())
	p.cluster = nil
	assert.Equal(t, registration.ClusterName("client"), p.use().Cluster, "the one that will be made")
}

func TestAQuarantineLeavesABareIdentity(t *testing.T) {
	p := somePass()
	assert.Greater(t, len(p.rights()), 1)
	p.cluster.Spec.Quarantined = true
	rights := p.rights()
	assert.Len(t, rights, 1)
	assert.IsType(t, &corev1.ServiceAccount{}, rights[0])
}

func TestOneThatComesAloneIsCountedAtOnceAndAStormTogether(t *testing.T) {
	for _, row := range []struct {
		named, asking int
		want          time.Duration
	}{
		{0, 1, 0},
		{1, 1, 0},
		{0, 2, 0},
		{2, 1, gather},
		{0, 3, gather},
		{0, 500, gather},
		{storm - 1, 1, gather},
		{storm, 1, gatherInStorm},
		{100, 200, gatherInStorm},
	} {
		assert.Equal(t, row.want, gathering(row.named, row.asking), row)
	}
}
