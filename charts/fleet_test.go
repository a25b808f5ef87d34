package charts_test

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/pkg/agentmanifest"
)

func renderHub(t *testing.T, values string) map[string]string {
	t.Helper()
	rendered, err := charts.Render(charts.Hub, release(charts.Hub), parseValues(t, values))
	require.NoError(t, err)
	return rendered
}

func TestHubChartRefusesValues(t *testing.T) {
	tests := map[string]struct {
		values string
		says   []string
	}{
		"unknown TLS mode":                                {"agentTLSMode: insecure", []string{"agentTLSMode", "strict", "system-store"}},
		"CA is neither form":                              {"apiServerCA: nonsense", []string{"apiServerCA holds no certificate", "--set-file apiServerCA=ca.pem"}},
		"Fleet without an image":                          {"fleetControllers: {enabled: true}", []string{"fleetControllers.image"}},
		"Schedules without Fleet's controller of Bundles": {"fleetControllers: {enabled: true, image: i, bundles: false, schedules: true}", []string{"fleetControllers.bundles"}},
		"CA with its private key":                         {"apiServerCA: " + encoded(certificate+privateKey), []string{"contains a private key"}},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			_, err := charts.Render(charts.Hub, release(charts.Hub), parseValues(t, tt.values))
			require.Error(t, err)
			for _, text := range tt.says {
				assert.ErrorContains(t, err, text)
			}
		})
	}
}

func TestHubConfigHasTheCAAsBase64OfPEM(t *testing.T) {
	tests := map[string]struct{ given, want string }{
		"none":   {"", ""},
		"PEM":    {certificate, certificate},
		"base64": {encoded(certificate), certificate},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			rendered, err := charts.Render(charts.Hub, release(charts.Hub), map[string]any{"apiServerCA": tt.given})
			require.NoError(t, err)
			ca, ok := configOf(t, rendered["fleet/templates/configmap.yaml"])["apiServerCA"].(string)
			require.True(t, ok)
			pem, err := base64.StdEncoding.DecodeString(ca)
			require.NoError(t, err)
			assert.Equal(t, tt.want, string(pem))
		})
	}
}

func TestHubConfig(t *testing.T) {
	for values, want := range map[string]map[string]any{
		"{}": {"agentMissedCheckins": nil, "registration": nil},
		"{agentCheckinInterval: '', garbageCollectionInterval: 0, gitClientTimeout: null}": {
			"agentCheckinInterval": nil, "garbageCollectionInterval": nil, "gitClientTimeout": nil,
		},
		"{agentCheckinInterval: null, garbageCollectionInterval: '', gitClientTimeout: 0}": {
			"agentCheckinInterval": nil, "garbageCollectionInterval": nil, "gitClientTimeout": nil,
		},
		"agentMissedCheckins: 0":             {"agentMissedCheckins": nil},
		"agentMissedCheckins: 5":             {"agentMissedCheckins": float64(5)},
		"registration: null":                 {"registration": nil},
		"registration: {credentialLifetime}": {"registration": nil},
		`registration: {credentialLifetime: 1h, longLivedCredentials: Refuse, longLivedNamespaces: [a], limits: {waitingPerToken: 2000000}, requireTokenTTL: true, agentLabels: Allowed, policy: [{name: a, expression: 'x["y"] == "<z>"', action: Deny}]}`: {
			"registration": map[string]any{
				"credentialLifetime": "1h", "longLivedCredentials": "Refuse", "longLivedNamespaces": []any{"a"}, "limits": map[string]any{"waitingPerToken": float64(2000000)},
				"requireTokenTTL": true, "agentLabels": "Allowed",
				"policy": []any{map[string]any{"name": "a", "expression": `x["y"] == "<z>"`, "action": "Deny"}},
			},
		},
	} {
		config := configOf(t, renderHub(t, values)["fleet/templates/configmap.yaml"])
		for key, value := range want {
			assert.Equal(t, value, config[key], "%s with values %s", key, values)
		}
	}
}

func TestHubWithoutBootstrapHasNoBootstrapIdentity(t *testing.T) {
	rendered := renderHub(t, "bootstrap: {enabled: false}")
	delete(rendered, "fleet/templates/admission.yaml") // the policies are the same with and without the bootstrap identity
	assert.NotContains(t, join(rendered), "fleet-controller-bootstrap")
	assert.Equal(t, []string{"fleetcontroller", "--disable-bootstrap"}, hubDeployment(t, rendered).Spec.Template.Spec.Containers[0].Command)
}

func TestHubDeploymentSetsEveryRequiredVariable(t *testing.T) {
	for _, values := range []string{"{}", "{agent: null, leaderElection: null, controller: null}", "agent: {leaderElection: {leaseDuration: ''}}"} {
		container := hubDeployment(t, renderHub(t, values)).Spec.Template.Spec.Containers[0]
		for _, name := range []string{
			"CATTLE_ELECTION_LEASE_DURATION", "CATTLE_ELECTION_RETRY_PERIOD", "CATTLE_ELECTION_RENEW_DEADLINE", "FLEET_AGENT_REPLICA_COUNT",
			"FLEET_AGENT_ELECTION_LEASE_DURATION", "FLEET_AGENT_ELECTION_RETRY_PERIOD", "FLEET_AGENT_ELECTION_RENEW_DEADLINE",
		} {
			assert.NotEmpty(t, variable(container, name), "%s with values %s", name, values)
		}
	}
}

func TestHubDeploymentResources(t *testing.T) {
	container := hubDeployment(t, renderHub(t, "resources: {limits: {memory: 1Gi}}")).Spec.Template.Spec.Containers[0]
	assert.Equal(t, "1Gi", container.Resources.Limits.Memory().String(), "without the name of the component")
	assert.Empty(t, container.Resources.Requests)

	for values, limit := range map[string]string{
		"{}": "2Gi", "resources: {}": "2Gi", "resources: null": "2Gi", "resources: {gitjob: {limits: {memory: 1Gi}}}": "2Gi",
		"resources: {limits: {}}": "0", "resources: {requests: {memory: 4Gi}}": "0", "resources: {fleetController: {requests: {memory: 4Gi}}}": "0",
	} {
		container = hubDeployment(t, renderHub(t, values)).Spec.Template.Spec.Containers[0]
		assert.Equal(t, limit, container.Resources.Limits.Memory().String(), values)
	}
}

func TestHubRightsHaveNoWildcards(t *testing.T) {
	for _, values := range []string{"{}", "bootstrap: {enabled: false}", "disableBundles: true", "bootstrap: {agentNamespace: elsewhere}"} {
		for _, role := range rolesIn(t, values) {
			for _, rule := range role.Rules {
				for _, term := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.ResourceNames) {
					assert.NotContains(t, term, "*", "role %s", role.Name)
				}
				assert.Empty(t, rule.NonResourceURLs)
				assert.NotContains(t, rule.Verbs, "impersonate")
				if slices.Contains(rule.Verbs, "bind") || slices.Contains(rule.Verbs, "escalate") {
					assert.Equal(t, "fleet-controller-bootstrap", role.Name, "the hub itself grants no more than it has")
					assert.Len(t, rule.ResourceNames, 1)
				}
			}
		}
	}
}

func TestBootstrapRightsNameTheLocalAgent(t *testing.T) {
	long := strings.Repeat("a-", 25) + "namespace"
	for values, namespace := range map[string]string{
		"{}": "cattle-fleet-system", "bootstrap: {agentNamespace: elsewhere}": "elsewhere", "bootstrap: {agentNamespace: " + long + "}": long,
	} {
		role := rolesIn(t, values)["ClusterRole fleet-controller-bootstrap"]
		names := map[string][]string{}
		for _, rule := range role.Rules {
			names[rule.Resources[0]] = append(names[rule.Resources[0]], rule.ResourceNames...)
		}
		assert.Equal(t, []string{agentmanifest.ClusterRoleName(namespace)}, names["clusterroles"], values)
		assert.Equal(t, []string{agentmanifest.ClusterRoleBindingName(namespace)}, names["clusterrolebindings"], values)
		assert.Equal(t, []string{namespace, "kube-system"}, names["namespaces"], values)
	}
	role := rolesIn(t, "global: {cattle: {imagePullSecrets: [{name: mine}, {name: other}]}}")["ClusterRole fleet-controller-bootstrap"]
	assert.True(t, slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Equal(r.ResourceNames, []string{"mine", "other"}) }))
}

func TestHubRightsWithDisabledBundles(t *testing.T) { // the privilege suite tests the rights with the default values
	for values, copies := range map[string]bool{
		"{}": true, "disableBundles: true": false, "fleetControllers: {enabled: true, image: i}": false,
		"fleetControllers: {enabled: true, image: i, bundles: false}": true,
	} {
		role := rolesIn(t, values)["ClusterRole fleet-controller"]
		assert.True(t, allows(role, "", "configmaps", "get"), values)
		assert.Equal(t, copies, allows(role, "", "configmaps", "create"), values)
	}
}

func allows(role rbacv1.ClusterRole, group, resource, verb string) bool {
	return slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, resource) && slices.Contains(rule.Verbs, verb)
	})
}

// rolesIn are the ClusterRoles and Roles of the chart, by kind and name.
func rolesIn(t *testing.T, values string) map[string]rbacv1.ClusterRole {
	t.Helper()
	roles := map[string]rbacv1.ClusterRole{}
	for document := range strings.SplitSeq(renderHub(t, values)["fleet/templates/rbac.yaml"], "\n---\n") {
		var role rbacv1.ClusterRole
		require.NoError(t, yaml.Unmarshal([]byte(document), &role))
		if strings.HasSuffix(role.Kind, "Role") {
			roles[role.Kind+" "+role.Name] = role
		}
	}
	require.Contains(t, roles, "ClusterRole fleet-controller")
	require.Contains(t, roles, "Role fleet-controller")
	return roles
}

func TestHubNotes(t *testing.T) {
	tests := map[string]struct {
		values      string
		says, hides []string
	}{
		"no URL":              {values: "{}", says: []string{"apiServerURL is not set", "registers itself as", "get clusters.fleet.cattle.io local"}},
		"complete":            {values: "apiServerURL: https://hub.example.com", says: []string{"kind: ClusterRegistrationToken"}, hides: []string{"apiServerURL is not set"}},
		"no local cluster":    {values: "bootstrap: {enabled: false}", hides: []string{"registers itself as"}},
		"bootstrap namespace": {values: "bootstrap: {namespace: '-'}", hides: []string{"registers itself as"}},
		"metrics": {
			values: "{}",
			says:   []string{"port-forward service/fleet-controller-metrics 8080", "helm -n cattle-fleet-system install --create-namespace --wait fleet-agent"},
			hides:  []string{"only while Fleet's own controllers run"},
		},
		"no metrics":                          {values: "metrics: {enabled: false}", hides: []string{"fleet-controller-metrics"}},
		"Bundles of Fleet's controllers only": {values: "disableBundles: true", says: []string{"only while Fleet's own controllers run"}},
		"GitRepos":                            {values: "fleetControllers: {enabled: true, image: i, bundles: false}", says: []string{"get deployments gitjob helmops\n"}},
		"GitRepos only":                       {values: "disableBundles: true\nfleetControllers: {enabled: true, image: i, bundles: false}", says: []string{"only while Fleet's own controllers run"}},
		"Fleet's Bundles":                     {values: "fleetControllers: {enabled: true, image: i}", says: []string{"get deployments fleet-bundles gitjob helmops\n"}},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			notes, err := charts.Notes(charts.Hub, release(charts.Hub), parseValues(t, tt.values))
			require.NoError(t, err)
			for _, text := range tt.says {
				assert.Contains(t, notes, text)
			}
			for _, text := range tt.hides {
				assert.NotContains(t, notes, text)
			}
		})
	}
}

func TestCRDNotes(t *testing.T) {
	notes, err := charts.Notes(charts.CRD, release(charts.CRD), nil)
	require.NoError(t, err)
	for _, says := range []string{"kubectl api-resources", "helm -n cattle-fleet-system install --create-namespace --wait fleet ", "keeps the kinds"} {
		assert.Contains(t, notes, says)
	}
}
