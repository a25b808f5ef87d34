package bundle

import (
	"context"
	"fmt"
	"testing"

	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

var (
	home    = registration.ClusterNamespace("ws", "alice")
	atHome  = home + "/app"
	taken   = apierrors.NewAlreadyExists(schema.GroupResource{}, "app")
	stale   = apierrors.NewConflict(schema.GroupResource{}, "app", errBadDay)
	missing = apierrors.NewNotFound(schema.GroupResource{}, "app")
)

func toAlice() *fleet.Bundle {
	return bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterName: "alice"}} })
}

// deployed is the BundleDeployment of a Bundle on alice as it should be.
func deployed(t testing.TB, b *fleet.Bundle) *fleet.BundleDeployment {
	t.Helper()
	v, err := newPlan(b).variant([]int{0})
	require.NoError(t, err)
	d := desired(b, v, someCluster(), nil)
	d.UID, d.ResourceVersion, d.Generation = "uid-of-app", "5", 1
	return d
}

func TestAClusterGetsWhatItsBundlesAskForAndNoMore(t *testing.T) {
	s := newStage(t)
	s.has(t, someCluster(), toAlice())
	cluster, out := s.pass(t, someCluster())
	assert.Equal(t, []string{"bring Bundle app in 1s", "create " + atHome}, s.log.take())
	assert.Len(t, s.contents.store.created, 1, "the Content is there first")
	assert.Equal(t, fleet.ReasonNotReady, out.Reason)
	assert.Equal(t, fleet.ClusterDisplay{ReadyBundles: "0/1", State: "WaitApplied"}, cluster.Status.Display)

	_, out = s.pass(t, someCluster())
	assert.Empty(t, s.log.take(), "it was made and is not in the cache yet")
	assert.Equal(t, expectations.Timeout, out.After, "in case its event is lost")

	d := deployed(t, toAlice())
	s.has(t, d)
	_, out = s.pass(t, someCluster())
	assert.Empty(t, s.log.take())
	assert.Zero(t, out.After)

	s.lost(t, toAlice())
	cluster, out = s.pass(t, someCluster())
	assert.Equal(t, []string{"delete " + atHome + " uid-of-app"}, s.log.take())
	assert.Equal(t, "0/0", cluster.Status.Display.ReadyBundles)
	assert.True(t, out.IsDone())
	s.pass(t, someCluster())
	assert.Empty(t, s.log.take(), "it was deleted and is still in the cache")
}

func TestOnlyWhatDiffersIsWritten(t *testing.T) {
	s := newStage(t)
	changed := toAlice()
	changed.Generation, changed.Spec.TargetNamespace = 2, "other"
	s.has(t, someCluster(), changed, deployed(t, toAlice()))
	s.pass(t, someCluster())
	sent := s.log.take()
	require.Len(t, sent, 1)
	assert.Contains(t, sent[0], "patch "+atHome+` [{"op":"replace","path":"/metadata/resourceVersion","value":"5"},{"op":"add","path":"/spec"`)
	assert.NotContains(t, sent[0], "/metadata/labels", "they are the same")
}

func TestABundleThatCannotBeDeployedKeepsWhatIsThere(t *testing.T) {
	s := newStage(t)
	d := deployed(t, toAlice())
	d.Status = fleet.BundleDeploymentStatus{AppliedDeploymentID: d.Spec.DeploymentID, Ready: true, NonModified: true}
	broken := toAlice()
	broken.Generation, broken.Spec.ContentsID = 2, "x"
	s.has(t, someCluster(), broken, d)
	cluster, out := s.pass(t, someCluster())
	assert.Empty(t, s.log.take())
	assert.Equal(t, "1/1", cluster.Status.Display.ReadyBundles)
	assert.True(t, out.IsDone(), "the Bundle says what is wrong")
}

func TestAnErrorIsReportedAndDeletesNothing(t *testing.T) {
	existing := func(t *testing.T) *fleet.BundleDeployment {
		d := deployed(t, toAlice())
		d.Spec.DeploymentID = "other:1"
		return d
	}
	foreign := &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "app"}}
	for _, row := range []struct {
		name     string
		existing func(*testing.T) *fleet.BundleDeployment
		errors   map[string]error
		content  error
		live     *fleet.BundleDeployment
		sent     []string
		reason   string
		skip     bool
	}{
		{name: "no Content", content: errBadDay, reason: fleet.ReasonError},
		{name: "no BundleDeployment", errors: map[string]error{"create": errBadDay}, sent: []string{"create"}, reason: fleet.ReasonError},
		{name: "no patch", existing: existing, errors: map[string]error{"patch": errBadDay}, sent: []string{"patch"}, reason: fleet.ReasonError},
		{name: "somebody was faster", existing: existing, errors: map[string]error{"patch": stale}, sent: []string{"patch"}, skip: true},
		{name: "it is there, and nobody says what it is", errors: map[string]error{"create": taken, "get": errBadDay}, sent: []string{"create", "get"}, reason: fleet.ReasonError},
		{name: "it is there, of somebody else", errors: map[string]error{"create": taken}, live: foreign, sent: []string{"create", "get"}, reason: fleet.ReasonNameConflict},
		{name: "it is in the cache, of somebody else", existing: func(*testing.T) *fleet.BundleDeployment { return foreign }, reason: fleet.ReasonNameConflict},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, someCluster(), toAlice())
			if row.existing != nil {
				s.has(t, row.existing(t))
			}
			s.log.errors, s.contents.store.err = row.errors, row.content
			s.log.live = map[string]*fleet.BundleDeployment{atHome: row.live}
			s.tally.expect(key{Namespace: "ws", Name: "app"}, map[string]key{home: {Namespace: "ws", Name: "alice"}}, noon)
			cluster, out := s.pass(t, someCluster())
			sent := s.log.take()
			require.Len(t, sent, len(row.sent))
			for i, line := range sent {
				assert.Contains(t, line, row.sent[i]+" "+atHome)
			}
			assert.Equal(t, row.skip, out.IsSkip())
			assert.Equal(t, row.reason, out.Reason)
			assert.Equal(t, "0/1", cluster.Status.Display.ReadyBundles, "what could not be made counts all the same")
			assert.Equal(t, "0/1 WaitApplied(1) [Cluster ws/alice]", shown(s.tally, key{Namespace: "ws", Name: "app"}), "the Bundle has not arrived")
		})
	}
}

func TestWhatExistsAndWasNotInTheCacheIsBroughtInLine(t *testing.T) {
	s := newStage(t)
	s.has(t, someCluster(), toAlice())
	live := deployed(t, toAlice())
	live.Spec.DeploymentID = "other:1"
	s.log.errors, s.log.live = map[string]error{"create": taken}, map[string]*fleet.BundleDeployment{atHome: live}
	_, out := s.pass(t, someCluster())
	assert.Equal(t, fleet.ReasonNotReady, out.Reason)
	assert.Len(t, s.log.take(), 3, "create, get, patch")
}

func TestAPassThatRunsOutOfTimeDeletesNothingAndSumsUpNothing(t *testing.T) {
	s := newStage(t)
	other := deployed(t, toAlice())
	other.Name, other.Labels[fleet.BundleNameLabel] = "left", "left"
	s.has(t, someCluster(), toAlice(), other)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cluster := someCluster()
	cluster.Status.Display.ReadyBundles = "7/9"
	out := s.Reconcile(ctx, cluster)
	require.ErrorIs(t, out.Err, context.Canceled)
	assert.Empty(t, s.log.take())
	assert.Equal(t, "7/9", cluster.Status.Display.ReadyBundles)
}

func TestADeletionThatFailsIsTriedAgain(t *testing.T) {
	for _, row := range []struct {
		name  string
		err   error
		done  bool
		again int
	}{
		{"an error", errBadDay, false, 1},
		{"it is gone already", missing, true, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStage(t)
			s.has(t, someCluster(), deployed(t, toAlice()))
			s.log.errors = map[string]error{"delete": row.err}
			_, out := s.pass(t, someCluster())
			assert.Equal(t, row.done, out.IsDone())
			assert.Len(t, s.log.take(), 1)
			s.pass(t, someCluster())
			assert.Len(t, s.log.take(), row.again)
		})
	}
}

func TestWhatIsNotOursIsNeverDeleted(t *testing.T) {
	s := newStage(t)
	ofOther, going := deployed(t, toAlice()), deployed(t, toAlice())
	ofOther.Labels[fleet.BundleNamespaceLabel] = "another-workspace"
	going.Name, going.Labels[fleet.BundleNameLabel], going.DeletionTimestamp = "going", "going", &metav1.Time{Time: noon}
	s.has(t, someCluster(), ofOther, going, &fleet.BundleDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "foreign"}})
	cluster, out := s.pass(t, someCluster())
	assert.Empty(t, s.log.take())
	assert.True(t, out.IsDone())
	assert.Equal(t, "0/0", cluster.Status.Display.ReadyBundles)
}

func TestTheFinalizerOfAnEarlierControllerIsTakenOff(t *testing.T) {
	s := newStage(t)
	d := deployed(t, toAlice())
	d.Finalizers = []string{"other", fleet.BundleDeploymentFinalizer}
	_, err := s.dropFinalizer("", d)
	require.NoError(t, err)
	assert.Empty(t, s.log.take(), "it is not being deleted")
	d.DeletionTimestamp = &metav1.Time{Time: noon}
	_, err = s.dropFinalizer("", d)
	require.NoError(t, err)
	assert.Equal(t, []string{"patch " + atHome + ` {"metadata":{"finalizers":["other"],"resourceVersion":"5"}}`}, s.log.take())
	s.log.errors = map[string]error{"patch": missing}
	_, err = s.dropFinalizer("", d)
	require.NoError(t, err, "it is gone")
	s.log.errors = map[string]error{"patch": errBadDay}
	_, err = s.dropFinalizer("", d)
	require.ErrorIs(t, err, errBadDay)
	_, err = s.dropFinalizer("", nil)
	require.NoError(t, err)
}

// A heartbeat costs a pass, so a pass over a settled Cluster must cost little, however many other Clusters there are.
func BenchmarkASettledPass(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		b.Run(fmt.Sprint(others, " other Clusters"), func(b *testing.B) {
			s := newStage(b)
			for i := range others {
				other := bundleWith(func(s *fleet.BundleSpec) { s.Targets = []fleet.BundleTarget{{ClusterName: fmt.Sprint("c", i)}} })
				other.Name = fmt.Sprint("fleet-agent-c", i)
				s.has(b, other)
			}
			for i := range 20 {
				bundle := toAlice()
				bundle.Name = fmt.Sprint("app", i)
				s.has(b, bundle, deployed(b, bundle))
			}
			cluster := someCluster()
			for b.Loop() {
				s.Reconcile(b.Context(), cluster)
			}
			require.Empty(b, s.log.take())
		})
	}
}
