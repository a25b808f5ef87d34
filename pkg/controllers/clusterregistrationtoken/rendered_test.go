package clusterregistrationtoken

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/pkg/registration"
)

var rendering = types.NamespacedName{Namespace: "ws", Name: "token"}

func TestValuesCacheEncode(t *testing.T) {
	r := newValuesCache()
	values := registration.Values{ClusterNamespace: "ws", Token: "a", Internal: &registration.ValuesInternal{SystemNamespace: "s"}}
	want, err := registration.EncodeValues(values)
	require.NoError(t, err)
	first, err := r.encode(rendering, values)
	require.NoError(t, err)
	assert.Equal(t, want, first)
	again := values
	again.Internal = &registration.ValuesInternal{SystemNamespace: "s"}
	second, err := r.encode(rendering, again)
	require.NoError(t, err)
	assert.Same(t, &first[0], &second[0], "equal values are rendered a second time")

	changed := values
	changed.Internal = &registration.ValuesInternal{SystemNamespace: "other"}
	third, err := r.encode(rendering, changed)
	require.NoError(t, err)
	assert.NotEqual(t, first, third)

	r.forget(rendering)
	fourth, err := r.encode(rendering, changed)
	require.NoError(t, err)
	assert.Equal(t, third, fourth)
	assert.NotSame(t, &third[0], &fourth[0])
}

func TestValuesCacheDecode(t *testing.T) {
	r := newValuesCache()
	values := registration.Values{ClusterNamespace: "ws", Token: "a"}
	data, err := r.encode(rendering, values)
	require.NoError(t, err)
	for text, want := range map[string]registration.Values{
		string(data):                 values,
		"token: b\n":                 {Token: "b"},
		"# by hand\n" + string(data): values,
	} {
		read, err := r.decode(rendering, []byte(text))
		require.NoError(t, err)
		assert.Equal(t, want, read)
	}
	kept, err := r.encode(rendering, values)
	require.NoError(t, err)
	assert.Equal(t, data, kept, "what a person wrote is not what is rendered")
}

// Imports have a token each, which lives for half a day.
func TestValuesCacheIsBounded(t *testing.T) {
	r := newValuesCache()
	for i := range 2 * renderedKept {
		_, err := r.encode(types.NamespacedName{Name: fmt.Sprint(i)}, registration.Values{Token: "a"})
		require.NoError(t, err)
	}
	assert.Equal(t, renderedKept, r.files.Len())
}
