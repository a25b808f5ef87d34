package charts_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
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

// Fleet's own controller of Clusters cannot be switched off. Without these rights it can neither fight with the hub over a Cluster nor let go
// of one before its agent has left, and the other processes cannot either.
func TestFleetControllersCannotTouchClusters(t *testing.T) {
	const template = "fleet/templates/fleetcontrollers.yaml"
	require.NotContains(t, renderHub(t, `{}`)[template], "ClusterRole")
	rights := func(values string) map[string]map[string]bool { // by process
		all := map[string]map[string]bool{}
		for document := range strings.SplitSeq(renderHub(t, values)[template], "\n---\n") {
			var role rbacv1.ClusterRole
			require.NoError(t, yaml.Unmarshal([]byte(document), &role))
			if role.Kind != "ClusterRole" {
				continue
			}
			all[role.Name] = map[string]bool{}
			for _, rule := range role.Rules {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						for _, verb := range rule.Verbs {
							all[role.Name][verb+" "+resource+"."+group] = true
							assert.NotContains(t, []string{"*", "bind", "escalate", "impersonate", "deletecollection"}, verb, role.Name)
						}
					}
				}
			}
		}
		return all
	}
	all := rights(`fleetControllers: {enabled: true, image: i}`)
	for _, process := range []string{"fleet-bundles", "gitjob", "helmops"} {
		may := all[process]
		for _, verb := range []string{"create", "update", "patch", "delete"} {
			for _, resource := range []string{
				"clusters.fleet.cattle.io", "clusters/status.fleet.cattle.io", "clusterregistrations.fleet.cattle.io",
				"clusterregistrationtokens.fleet.cattle.io", "namespaces.", "clusterroles.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io",
			} {
				assert.False(t, may[verb+" "+resource], "%s may %s %s", process, verb, resource)
			}
		}
		assert.True(t, may["watch clusters.fleet.cattle.io"], "%s waits until it can watch Clusters", process)
		if process == "fleet-bundles" {
			assert.False(t, may["delete bundles.fleet.cattle.io"], "the first step of its deletion of a Cluster")
			assert.True(t, may["patch bundles/status.fleet.cattle.io"] && may["create bundledeployments.fleet.cattle.io"] &&
				may["patch bundledeployments/status.fleet.cattle.io"] && may["create contents.fleet.cattle.io"], "what it is for")
		}
	}

	withoutBundles := rights(`fleetControllers: {enabled: true, image: i, bundles: false}`)
	delete(all, "fleet-bundles")
	assert.Equal(t, all, withoutBundles)
	all = rights(`fleetControllers: {enabled: true, image: i}`)

	scheduling := rights(`fleetControllers: {enabled: true, image: i, schedules: true}`)
	assert.Equal(t, []any{all["gitjob"], all["helmops"]}, []any{scheduling["gitjob"], scheduling["helmops"]})
	var more []string
	for right := range scheduling["fleet-bundles"] {
		if !all["fleet-bundles"][right] && !strings.Contains(right, "schedules") {
			more = append(more, right)
		}
	}
	assert.Equal(t, []string{"patch clusters/status.fleet.cattle.io"}, more, "its controller of Clusters needs update")
	assert.True(t, scheduling["fleet-bundles"]["update schedules/status.fleet.cattle.io"])
}
