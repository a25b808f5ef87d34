package agentmanifest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// A cache has more than a hundred entries, which the users of all workspaces can fill.
func TestRenderer_keepsSmallOptions(t *testing.T) {
	r, o := NewRenderer(), Options{Namespace: "ns", Image: "image"}
	_, err := r.Render(o)
	require.NoError(t, err)
	assert.Equal(t, 1, r.cache.Len())

	o.Tolerations = make([]corev1.Toleration, 5000)
	assert.False(t, o.IsSmall())
	_, err = r.Render(o)
	require.NoError(t, err)
	assert.Equal(t, 1, r.cache.Len())
}
