package attacks

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// A user of one workspace creates many more objects of each kind than the hub has workers, and each pass over such an object takes as long as
// a pass can. A cluster of another workspace registers, and one is imported, much earlier than if all objects waited in one queue.
func TestObjectsOfOneWorkspace(t *testing.T) {
	const many, workers = 60, 4
	var sent testenv.Recorder
	s := testenv.NewStage(t, sent.Wrap, func(o *muster.Options) { o.Workers = workers })
	busy := s.Hub.Namespace(t)
	var held atomic.Int32
	sent.Inject(func(req *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if testenv.IsWrite(req) && strings.Contains(req.URL.Path, "/namespaces/"+busy+"/") {
			held.Add(1)
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
		return send()
	})
	for n := range many {
		name := metav1.ObjectMeta{Name: fmt.Sprint("many-", n)}
		require.NoError(t, only(s.Hub.Fleet.ClusterRegistrationTokens(busy).Create(t.Context(), &fleet.ClusterRegistrationToken{ObjectMeta: name}, metav1.CreateOptions{})))
		require.NoError(t, only(s.Hub.Fleet.ClusterRegistrations(busy).Create(t.Context(), &fleet.ClusterRegistration{
			ObjectMeta: name, Spec: fleet.ClusterRegistrationSpec{ClientID: name.Name, ClientRandom: name.Name},
		}, metav1.CreateOptions{})))
		require.NoError(t, only(s.Hub.Fleet.Clusters(busy).Create(t.Context(), &fleet.Cluster{ObjectMeta: name}, metav1.CreateOptions{})))
		require.NoError(t, only(s.Hub.Fleet.Bundles(busy).Create(t.Context(), &fleet.Bundle{ObjectMeta: name}, metav1.CreateOptions{})))
	}
	const kinds = 4
	testenv.Eventually(t, func() (bool, string) {
		return held.Load() >= kinds*workers, fmt.Sprintf("%d passes are held", held.Load())
	})

	newVictim(t, s, s.Token(t, "other"), "victim")
	s.ImportInto(t, "imported", "cattle-fleet-system")
	assert.Less(t, int(held.Load()), kinds*many/2, "most objects of the busy workspace had their pass first")
}

// A tenant changes the labels of one Cluster two hundred times, in a workspace in which it takes long to find the Bundles that target the Cluster.
// The hub handles a later event of another tenant about as fast as without these changes. The test measures time in requests that a client
// sends in sequence, because a busy machine delays them too. The pauses between them leave the CPU to the hub.
func TestEventsOfOneWorkspace(t *testing.T) {
	const bundles, targets, groups, changes, limit, pause = 15, 1000, 200, 200, 100_000, 5 * time.Millisecond
	s := testenv.NewStage(t)
	busy := s.Hub.Namespace(t)
	for n := range groups {
		require.NoError(t, only(s.Hub.Fleet.ClusterGroups(busy).Create(t.Context(), &fleet.ClusterGroup{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("all-", n)}, Spec: fleet.ClusterGroupSpec{Selector: &metav1.LabelSelector{}},
		}, metav1.CreateOptions{})))
	}
	expensive := make([]fleet.BundleTarget, targets)
	for n := range expensive {
		expensive[n].ClusterGroupSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"of": "none"}}
	}
	for n := range bundles {
		require.NoError(t, only(s.Hub.Fleet.Bundles(busy).Create(t.Context(), &fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("expensive-", n)}, Spec: fleet.BundleSpec{Targets: expensive},
		}, metav1.CreateOptions{})))
	}
	require.NoError(t, only(s.Hub.Fleet.Clusters(busy).Create(t.Context(), &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "changing"}}, metav1.CreateOptions{})))

	require.NoError(t, only(s.Hub.Fleet.Bundles(s.Namespace).Create(t.Context(), &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: fleet.BundleSpec{Targets: []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}},
	}, metav1.CreateOptions{})))
	quarantined := 0
	addCluster := func() (requests int) {
		t.Helper()
		quarantined++
		s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("honest-", quarantined)}, Spec: fleet.ClusterSpec{Quarantined: true}})
		shown := fmt.Sprintf("quarantined (%d)", quarantined)
		for ; ; <-time.NewTimer(pause).C {
			b := testenv.RequireThere(t, s.Hub.Fleet.Bundles(s.Namespace).Get, "app")
			if requests++; strings.Contains(testenv.Condition(b.Status.Conditions, fleet.ConditionReady), shown) {
				return requests
			}
			require.Less(t, requests, limit, "the status of the Bundle")
		}
	}
	addCluster()
	alone := max(addCluster(), addCluster(), addCluster()) // the hub delays some writes of a status, so one of them can be very fast
	for n := range changes {
		patch := fmt.Sprintf(`{"metadata":{"labels":{"change":"%d"}}}`, n)
		require.NoError(t, only(s.Hub.Fleet.Clusters(busy).Patch(t.Context(), "changing", types.MergePatchType, []byte(patch), metav1.PatchOptions{})))
	}
	beside := addCluster()
	t.Logf("%d requests alone, %d after the changes", alone, beside)
	assert.Less(t, beside, 4*alone)
}
