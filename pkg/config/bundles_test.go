package config

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWorkspaceLimit(t *testing.T) {
	for document, limit := range map[string]int64{"{}": 512 << 20, "bundles: {workspaceLimitMiB: 3}": 3 << 20} {
		hub, _, err := ParseHub(document)
		require.NoError(t, err, document)
		assert.Equal(t, limit, hub.Bundles.WorkspaceLimit(), document)
	}
	for _, document := range []string{"bundles: {workspaceLimitMiB: -1}", "bundles: {workspaceLimitMiB: 1048577}"} {
		_, _, err := ParseHub(document)
		require.ErrorContains(t, err, "it must be from 1 to 1048576, or 0 for the default of 512", document)
	}
}
