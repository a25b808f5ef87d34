package attacks

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A user of one workspace creates many more objects of each kind than the hub has workers, and each pass over one of them takes as long as a
// pass can. A cluster of another workspace registers, and one is imported, long before their turn would come if all waited in one queue.
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

// A tenant changes the selector of a ClusterGroup in a loop, in a workspace with many Clusters that are expensive to match. A change of a group
// of another tenant is on its cluster about as soon as without that. Time is measured in requests that a client sends one after the other.
func TestEventsOfOneWorkspace(t *testing.T) {
	const clusters, labels, changes, limit = 500, 1000, 200, 20_000
	s := testenv.NewStage(t)
	busy := s.Hub.Namespace(t)
	elsewhere := map[string]string{fleet.ClusterManagementLabel: "other"} // the hub creates nothing for them
	for n := range clusters {
		require.NoError(t, only(s.Hub.Fleet.Clusters(busy).Create(t.Context(), &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("many-", n), Labels: elsewhere},
		}, metav1.CreateOptions{})))
	}
	expensive := &fleet.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Name: "expensive"}, Spec: fleet.ClusterGroupSpec{Selector: &metav1.LabelSelector{}}}
	for n := range labels {
		expensive.Spec.Selector.MatchExpressions = append(expensive.Spec.Selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: fmt.Sprint("label-", n), Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a", "b"},
		})
	}
	require.NoError(t, only(s.Hub.Fleet.ClusterGroups(busy).Create(t.Context(), expensive, metav1.CreateOptions{})))
	testenv.EventuallyIs(t, s.Hub.Fleet.ClusterGroups(busy).Get, "expensive", func(g *fleet.ClusterGroup) (bool, string) {
		return g.Status.ClusterCount == clusters, fmt.Sprintf("%d of %d Clusters are counted", g.Status.ClusterCount, clusters)
	})

	s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "honest", Labels: map[string]string{"env": "a"}}})
	require.NoError(t, only(s.Hub.Fleet.Bundles(s.Namespace).Create(t.Context(), &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: fleet.BundleSpec{Targets: []fleet.BundleTarget{{ClusterGroup: "group"}}},
	}, metav1.CreateOptions{})))
	group := &fleet.ClusterGroup{ObjectMeta: metav1.ObjectMeta{Name: "group"}, Spec: fleet.ClusterGroupSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "b"}},
	}}
	require.NoError(t, only(s.Hub.Fleet.ClusterGroups(s.Namespace).Create(t.Context(), group, metav1.CreateOptions{})))
	deployments := s.Hub.Fleet.BundleDeployments(registration.ClusterNamespace(s.Namespace, "honest"))
	selectEnv := func(env string, deployed bool) (requests int) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"selector":{"matchLabels":{"env":%q}}}}`, env)
		require.NoError(t, only(s.Hub.Fleet.ClusterGroups(s.Namespace).Patch(t.Context(), "group", types.MergePatchType, []byte(patch), metav1.PatchOptions{})))
		for {
			list, err := deployments.List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			if requests++; len(list.Items) > 0 == deployed {
				return requests
			}
			require.Less(t, requests, limit)
		}
	}
	selectEnv("a", true)
	alone := selectEnv("b", false) + selectEnv("a", true) + selectEnv("b", false)

	for n := range changes {
		patch := fmt.Sprintf(`{"spec":{"selector":{"matchLabels":{"none":"%d"}}}}`, n)
		require.NoError(t, only(s.Hub.Fleet.ClusterGroups(busy).Patch(t.Context(), "expensive", types.MergePatchType, []byte(patch), metav1.PatchOptions{})))
	}
	beside := selectEnv("a", true) + selectEnv("b", false) + selectEnv("a", true)
	t.Logf("%d requests alone, %d beside the changes", alone, beside)
	assert.Less(t, beside, 5*alone)
}
