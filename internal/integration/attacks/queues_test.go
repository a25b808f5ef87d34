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

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
)

// A user of one workspace creates many more objects of each kind than the hub has workers, and each pass over such an object takes as long as
// a pass can. A cluster of another workspace registers, and one is imported, much earlier than if all objects waited in one queue.
func TestObjectsOfOneWorkspace(t *testing.T) {
	sample.Long(t)
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
