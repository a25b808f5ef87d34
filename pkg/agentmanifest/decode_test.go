package agentmanifest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFilesThatAreNotManifestsAreErrorsThatNameThem(t *testing.T) {
	tests := map[string]string{
		"not YAML":     "a: [",
		"no kind":      "apiVersion: v1",
		"unknown kind": "apiVersion: example.com/v1\nkind: Mystery",
	}
	for title, manifest := range tests {
		t.Run(title, func(t *testing.T) {
			objects, err := decode(map[string]string{"chart/templates/odd.yaml": manifest})
			assert.ErrorContains(t, err, "chart/templates/odd.yaml")
			assert.Nil(t, objects)
		})
	}
}

func TestKindsTheOrderDoesNotNameComeLast(t *testing.T) {
	objects, err := decode(map[string]string{
		"a.yaml": "apiVersion: v1\nkind: ConfigMap\n---\n\n---\napiVersion: apps/v1\nkind: Deployment\n",
		"b.yaml": "apiVersion: v1\nkind: ServiceAccount\n",
	})
	require.NoError(t, err)
	var kinds []string
	for _, object := range objects {
		kinds = append(kinds, object.GetObjectKind().GroupVersionKind().Kind)
	}
	assert.Equal(t, []string{"ServiceAccount", "Deployment", "ConfigMap"}, kinds)
}
