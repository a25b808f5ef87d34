//go:build !race

// The race detector needs memory of its own for each object, so its build measures something else.

package clusterimport

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Each object of a release, and each answer to its deletion, is as large as the member likes.
func TestHostileObjects(t *testing.T) {
	sample.Long(t)
	const objects, large, limit = 50, 512 << 10, 16 << 20
	m := newFakeMember(t)
	newWorkloads(m)
	var manifest strings.Builder
	for i := range objects {
		fmt.Fprintf(&manifest, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x%d}\n---\n", i)
	}
	answer, text := history(t, manifest.String()), strings.Repeat("x", large)
	stored := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"annotations":{"meta.helm.sh/release-name":"shop","meta.helm.sh/release-namespace":"apps"}},` +
		`"data":{"a":"` + text + `"}}`
	var mu sync.Mutex
	var first, last int
	deleted, before := 0, heap.InUse()
	m.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/api/v1":
			fmt.Fprint(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","kind":"ConfigMap","namespaced":true}]}`)
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/configmaps/x"):
			fmt.Fprint(w, stored)
		case r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/configmaps/x"):
			if deleted++; deleted == 1 {
				first = heap.InUse()
			} else if deleted == objects {
				last = heap.InUse()
			}
			reply(w, http.StatusForbidden, metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: 403, Message: text,
			})
		case !answer(0, w, r):
			m.handle(w, r)
		}
	})
	connected := m.connect(t)
	u := removal{member: connected, cluster: deletedCluster(), namespaces: []string{system}, releases: connected.openReleases, deployments: deploymentsOf()}
	failed := u.run(t.Context())
	require.NotNil(t, failed)
	assert.Equal(t, fleet.ReasonForbidden, failed.reason, failed.message)
	assert.Equal(t, objects, deleted)
	assert.Less(t, first, before+limit, "the objects that it has read")
	assert.Less(t, last, before+limit, "the errors")
	assert.True(t, hasAllTurns(connected.large.Of))
}
