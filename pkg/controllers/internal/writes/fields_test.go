package writes

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestFields(t *testing.T) {
	client := &recorder{reply: &fleet.Cluster{}}
	latest, changed, err := Fields(t.Context(), client, someCluster(), []PatchOperation{
		{Op: "add", Path: "/spec/clientID", Value: "new"}, {Op: "add", Path: "/spec/paused", Value: false}, {Op: "remove", Path: "/spec/paused"},
	})
	require.NoError(t, err)
	assert.True(t, changed)
	assert.Same(t, client.reply, latest)
	assert.Equal(t, []string{`c application/json-patch+json [] [{"op":"replace","path":"/metadata/resourceVersion","value":"7"},` +
		`{"op":"add","path":"/spec/clientID","value":"new"},{"op":"add","path":"/spec/paused","value":false},{"op":"remove","path":"/spec/paused"}]`}, client.sent)
}

func TestFieldsWithoutChange(t *testing.T) {
	client, before := &recorder{}, someCluster()
	latest, changed, err := Fields(t.Context(), client, before, nil)
	require.NoError(t, err)
	assert.False(t, changed)
	assert.Same(t, before, latest)
	assert.Empty(t, client.sent)
}

func TestFieldsErrorNamesTheObject(t *testing.T) {
	client := &recorder{err: assert.AnError}
	_, changed, err := Fields(t.Context(), client, someCluster(), []PatchOperation{{Op: "remove", Path: "/spec/clientID"}})
	require.ErrorIs(t, err, assert.AnError)
	require.ErrorContains(t, err, "patching ns/c")
	assert.False(t, changed)
}
