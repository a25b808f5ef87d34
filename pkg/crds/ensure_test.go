package crds

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLackingStatus(t *testing.T) {
	wanted, err := Objects()
	require.NoError(t, err)
	existing, err := Objects()
	require.NoError(t, err)
	for i := range wanted {
		assert.Empty(t, lackingStatus(existing[i], wanted[i]), wanted[i].Name)
		if wanted[i].Name != "clusterregistrations.fleet.cattle.io" {
			continue
		}
		status := existing[i].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
		delete(status.Properties, "conditions")
		keep := true
		status.XPreserveUnknownFields = &keep
		existing[i].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"] = status
		assert.Empty(t, lackingStatus(existing[i], wanted[i]), "the API server keeps unknown fields")
		status.XPreserveUnknownFields = nil
		existing[i].Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"] = status
		assert.Equal(t, []string{"status.conditions"}, lackingStatus(existing[i], wanted[i]))
	}
}
