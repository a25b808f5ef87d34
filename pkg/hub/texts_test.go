package hub

import (
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestEqualTextsAreInMemoryOnce(t *testing.T) {
	var held texts
	share := func(name string) *fleet.Bundle {
		b := &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: name}}
		b.Spec.Resources = []fleet.BundleResource{{Name: "agent.yaml", Content: strings.Repeat("kind: Deployment\n", 100)}}
		shared, err := held.share(b)
		require.NoError(t, err)
		runtime.GC() // what nobody held would be gone now, and the next would have a copy of its own
		return shared.(*fleet.Bundle)
	}
	one, other := share("one"), share("other")
	assert.Equal(t, one.Spec, other.Spec)
	assert.Same(t, unsafe.StringData(one.Spec.Resources[0].Content), unsafe.StringData(other.Spec.Resources[0].Content))

	held.forget(one)
	held.forget(cache.DeletedFinalStateUnknown{Key: "ws/other", Obj: other})
	held.forget("no Bundle")
	assert.Empty(t, held.held)
	same, err := held.share("no Bundle")
	require.NoError(t, err)
	assert.Equal(t, "no Bundle", same)
}
