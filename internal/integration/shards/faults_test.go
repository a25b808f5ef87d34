package shards

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/shard"
)

// To the others one that is cut off is one that was killed; itself, it has to notice in time.
func TestAHubThatIsCutOffStopsBeforeAnotherGoesOn(t *testing.T) {
	s := newScene(t)
	a, b := startIn(t, s.hub, "a", quick), startIn(t, s.hub, "b", quick)
	await(t, []*replica{a, b}, 8, 8)
	s.token(t, nil)
	s.storm(t, "before", 20)
	s.requireGranted(t, 20, 0)

	cut := time.Now()
	a.wire.kill()
	s.storm(t, "while", 40)
	await(t, []*replica{b}, 16)
	t.Logf("all shards were held %s after the cut", b.gained.Sub(cut).Round(100*time.Millisecond))
	s.requireGranted(t, 60, 0)
	s.requireUses(t, 60)
	require.ErrorIs(t, a.wait(t), leader.ErrLost)
	assert.True(t, a.stopped.Before(b.gained), "it stopped at %s, when another had its shards since %s", a.stopped, b.gained)
	assert.True(t, a.lastWrite().Before(cut.Add(time.Second)), "it wrote after it was cut off")
	requireShared(t, len(a.tokens())+len(b.tokens()), a, b)
}

// setMain has somebody hold the main Lease, whatever it was before.
func (s *scene) setMain(t *testing.T, holder string) {
	t.Helper()
	now := metav1.NowMicro().Format("2006-01-02T15:04:05.000000Z07:00")
	_, err := s.hub.Kubernetes.CoordinationV1().Leases(testenv.SystemNamespace).Patch(t.Context(), mainLease, types.MergePatchType,
		[]byte(`{"spec":{"holderIdentity":"`+holder+`","renewTime":"`+now+`"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
}

func TestShardsAreDroppedWhenOneTakesOverThatDoesNotShare(t *testing.T) {
	s := newScene(t)
	a, b := start(t, s.hub, "a"), start(t, s.hub, "b")
	await(t, []*replica{a, b}, 8, 8)
	s.token(t, nil)

	s.setMain(t, "fleet-controller-of-an-older-release")
	took := time.Now()
	for _, r := range []*replica{a, b} {
		err := r.wait(t)
		require.ErrorIs(t, err, shard.ErrNotShared)
		assert.Zero(t, r.holding())
		t.Logf("%s stopped %s after", r.name, r.stopped.Sub(took).Round(time.Millisecond))
	}
	s.storm(t, "meanwhile", 10)
	c := start(t, s.hub, "c")
	leases, err := s.hub.Kubernetes.CoordinationV1().Leases(testenv.SystemNamespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, lease := range leases.Items {
		if lease.Name != mainLease {
			assert.Empty(t, *lease.Spec.HolderIdentity, lease.Name)
		}
	}
	assert.Zero(t, c.holding())
	s.setMain(t, "")
	await(t, []*replica{c}, 16)
	s.requireGranted(t, 10, 0)
}

func TestAHubThatSharesWaitsForOneThatDoesNot(t *testing.T) {
	s := newScene(t)
	old := startAlone(t, s.hub, "old")
	await(t, []*replica{old}, 16)
	s.token(t, nil)
	a, b := start(t, s.hub, "a"), start(t, s.hub, "b")
	s.storm(t, "old", 20)
	s.requireGranted(t, 20, 0)
	assert.Zero(t, a.holding()+b.holding())
	assert.Empty(t, a.writes(func(sent) bool { return true }), "it has no business here yet")

	old.stop()
	s.storm(t, "change", 20)
	require.NoError(t, old.wait(t))
	await(t, []*replica{a, b}, 8, 8)
	s.storm(t, "shared", 20) // the first of the two may have been quicker than the second to those before
	s.requireGranted(t, 60, 0)
	s.requireUses(t, 60)
	requireEach(t, []*replica{a, b, old})
}
