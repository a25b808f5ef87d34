package controllers

import (
	"testing"

	"github.com/stretchr/testify/assert"
	rbacv1 "k8s.io/api/rbac/v1"
)

func TestSharedRoles(t *testing.T) {
	rules := map[string][]rbacv1.PolicyRule{}
	for _, role := range sharedRoles() {
		rules[role.Name] = role.Rules
	}
	assert.Equal(t, map[string][]rbacv1.PolicyRule{
		"fleet-bundle-deployment": {
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"fleet.cattle.io"}, Resources: []string{"bundledeployments"}},
			{Verbs: []string{"update", "patch"}, APIGroups: []string{"fleet.cattle.io"}, Resources: []string{"bundledeployments/status"}},
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}},
		},
		"fleet-content": {{Verbs: []string{"get"}, APIGroups: []string{"fleet.cattle.io"}, Resources: []string{"contents"}}},
	}, rules)
}
