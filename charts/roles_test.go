package charts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The roles extend existing roles of people, so they are created on demand only, and contain only the rights in docs/security.md.
func TestAggregatedRoles(t *testing.T) {
	require.NotContains(t, rolesIn(t, `{}`), "ClusterRole fleet-view")
	require.NotContains(t, rolesIn(t, `aggregatedRoles: null`), "ClusterRole fleet-edit")

	roles := rolesIn(t, `aggregatedRoles: {enabled: true}`)
	view, edit := roles["ClusterRole fleet-view"], roles["ClusterRole fleet-edit"]
	require.Equal(t, "true", view.Labels["rbac.authorization.k8s.io/aggregate-to-view"])
	require.Equal(t, "true", edit.Labels["rbac.authorization.k8s.io/aggregate-to-edit"])
	require.NotContains(t, edit.Labels, "rbac.authorization.k8s.io/aggregate-to-view")
	for _, rule := range append(view.Rules, edit.Rules...) {
		assert.Equal(t, []string{"fleet.cattle.io"}, rule.APIGroups)
		assert.Subset(t, []string{"bundledeployments", "bundles", "clustergroups", "clusterregistrations", "clusterregistrationtokens", "clusters"}, rule.Resources)
		assert.NotContains(t, rule.Verbs, "*")
		assert.NotContains(t, rule.Verbs, "register", "the hub grants it to the ServiceAccount of a token")
	}
	for _, rule := range view.Rules {
		assert.Equal(t, []string{"get", "list", "watch"}, rule.Verbs)
		assert.NotContains(t, rule.Resources, "bundles", "their values can contain what Secrets contain")
		assert.NotContains(t, rule.Resources, "bundledeployments")
	}
}
