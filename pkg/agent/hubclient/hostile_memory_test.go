//go:build !race

// The race detector needs memory of its own for each object, so its build measures something else.

package hubclient

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/internal/testenv/heap"
	"github.com/muster-fleet/muster/internal/testenv/sample"
)

// The limit includes the work of the server, and garbage. TestHostileServers shows that longer answers are not read to their end.
func TestHostileMemory(t *testing.T) {
	for name, row := range hostileAnswers {
		for _, what := range []string{"probe", "answer Secret"} {
			t.Run(name+", "+what, func(t *testing.T) {
				h := hostileHub(t, "HTTP/2.0", agenttest.Patience, answerWith(row.contentType, row.body))
				assert.Less(t, heap.Allocated(func() { require.Error(t, hubCalls[what](t.Context(), h)) }), 32<<20)
			})
		}
	}
}

func TestHostileMemory_watch(t *testing.T) {
	sample.Long(t)
	h := hostileHub(t, "HTTP/2.0", agenttest.Patience, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		_, _ = io.WriteString(w, `{"type":"ADDED","object":{"metadata":{"name":"`)
		endless(w, "xxxxxxxxxxxxxxxx")
	})
	assert.Less(t, heap.Allocated(func() { watchOf(t, h) }), 96<<20)

	t.Run("large events, one after another", func(t *testing.T) {
		const size, events, limit = 7 << 20, 12, 6 * 7 << 20 // events, buffers of the decoder, and what the server writes
		large := event(`,"annotations":{"a":"` + strings.Repeat("x", size) + `"}`)
		h := hostileHub(t, "HTTP/2.0", agenttest.Patience, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", jsonType)
			for range events {
				_, _ = io.WriteString(w, large)
			}
		})
		before := heap.InUse()
		w, err := h.Watching.FleetV1alpha1().BundleDeployments(h.Namespace).Watch(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		defer w.Stop()
		for range events {
			event := <-w.ResultChan()
			require.Equal(t, watch.Added, event.Type, "%v", event.Object)
			assert.Less(t, heap.InUse(), before+limit)
		}
	})
}
