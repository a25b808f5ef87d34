package writes

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestSpec(t *testing.T) {
	const version = `{"op":"replace","path":"/metadata/resourceVersion","value":"7"}`
	for _, row := range []struct {
		name   string
		change func(*fleet.Cluster)
		patch  string
	}{
		{"the spec", func(c *fleet.Cluster) { c.Spec.ClientID = "new" }, `,{"op":"add","path":"/spec","value":{"clientID":"new"}}`},
		{"a null in it", func(c *fleet.Cluster) {
			c.Spec.TemplateValues = &fleet.GenericMap{Data: map[string]any{"a": nil}}
		}, `,{"op":"add","path":"/spec","value":{"clientID":"id","templateValues":{"a":null}}}`},
		{"a label that goes", func(c *fleet.Cluster) { c.Labels = map[string]string{"c": "d"} }, `,{"op":"add","path":"/metadata/labels","value":{"c":"d"}}`},
		{"both", func(c *fleet.Cluster) { c.Labels, c.Spec.ClientID = map[string]string{"c": "d"}, "x" }, `,{"op":"add","path":"/metadata/labels","value":{"c":"d"}},{"op":"add","path":"/spec","value":{"clientID":"x"}}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := &recorder{reply: &fleet.Cluster{}}
			before, after := someCluster(), someCluster()
			row.change(after)
			latest, written, err := Spec(t.Context(), client, before, after)
			require.NoError(t, err)
			assert.True(t, written)
			assert.Same(t, client.reply, latest)
			assert.Equal(t, []string{"c application/json-patch+json [] [" + version + row.patch + "]"}, client.sent)
		})
	}
}

func TestSpecIgnoresOtherFields(t *testing.T) {
	client := &recorder{}
	before, after := someCluster(), someCluster()
	after.Status.APIServerURL, after.Annotations, after.Finalizers = "x", map[string]string{"a": "b"}, []string{"f"}
	latest, written, err := Spec(t.Context(), client, before, after)
	require.NoError(t, err)
	assert.False(t, written)
	assert.Same(t, before, latest)
	assert.Empty(t, client.sent)
}

func TestSpecErrorNamesTheObject(t *testing.T) {
	client := &recorder{err: assert.AnError}
	after := someCluster()
	after.Spec.ClientID = "new"
	_, written, err := Spec(t.Context(), client, someCluster(), after)
	require.ErrorIs(t, err, assert.AnError)
	require.ErrorContains(t, err, "patching ns/c")
	assert.False(t, written)
}
