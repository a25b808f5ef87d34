package crds_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/pkg/crds"
)

const (
	readyMessage = `.status.conditions[?(@.type=="Ready")].message`
	firstReason  = `.status.conditions[?(@.status!="True")].reason`
	created      = ".metadata.creationTimestamp"
)

// kinds are the properties of each kind that clients and people see.
var kinds = []struct {
	kind       string
	plural     string
	scope      apiextensionsv1.ResourceScope
	categories []string
	columns    map[string]string
}{
	{kind: "BundleDeployment", plural: "bundledeployments", scope: "Namespaced", columns: map[string]string{
		"Deployed": ".status.display.deployed", "Monitored": ".status.display.monitored", "Status": readyMessage,
	}},
	{kind: "Bundle", plural: "bundles", scope: "Namespaced", columns: map[string]string{
		"BundleDeployments-Ready": ".status.display.readyClusters", "Status": readyMessage,
	}},
	{kind: "ClusterGroup", plural: "clustergroups", scope: "Namespaced", categories: []string{"fleet"}, columns: map[string]string{
		"Clusters-Ready": ".status.display.readyClusters", "Bundles-Ready": ".status.display.readyBundles", "Status": readyMessage,
	}},
	{kind: "ClusterRegistration", plural: "clusterregistrations", scope: "Namespaced", columns: map[string]string{
		"Cluster-Name": ".status.clusterName", "Labels": ".spec.clusterLabels", "Granted": ".status.granted",
		"Approved": `.status.conditions[?(@.type=="Approved")].status`, "Reason": `.status.conditions[?(@.type=="Granted")].reason`,
		"Age": created,
	}},
	{kind: "ClusterRegistrationToken", plural: "clusterregistrationtokens", scope: "Namespaced", columns: map[string]string{
		"Secret-Name": ".status.secretName", "Uses": ".status.uses", "Limit": ".spec.usageLimit",
		"Expires": ".status.expires", "Last-Cluster": ".status.lastCluster",
		"Ready": `.status.conditions[?(@.type=="Ready")].status`, "Reason": firstReason, "Age": created,
	}},
	{kind: "Cluster", plural: "clusters", scope: "Namespaced", columns: map[string]string{
		"Bundles-Ready": ".status.display.readyBundles", "Last-Seen": ".status.agent.lastSeen", "Status": readyMessage,
		"Registered": `.status.conditions[?(@.type=="Registered")].status`, "Connected": `.status.conditions[?(@.type=="Connected")].status`,
		"Reason": firstReason, "Age": created,
	}},
	{kind: "Content", plural: "contents", scope: "Cluster", columns: map[string]string{}},
}

func TestDefinitions(t *testing.T) {
	byPlural := definitions(t)
	require.Len(t, byPlural, len(kinds))
	for _, want := range kinds {
		t.Run(want.kind, func(t *testing.T) {
			crd := byPlural[want.plural]
			require.NotNil(t, crd)
			assert.Equal(t, want.plural+".fleet.cattle.io", crd.Name)
			assert.Equal(t, "fleet.cattle.io", crd.Spec.Group)
			assert.Equal(t, want.kind, crd.Spec.Names.Kind)
			assert.Equal(t, want.kind+"List", crd.Spec.Names.ListKind)
			assert.Equal(t, want.categories, crd.Spec.Names.Categories)
			assert.Empty(t, crd.Spec.Names.ShortNames)
			assert.Equal(t, want.scope, crd.Spec.Scope)

			require.Len(t, crd.Spec.Versions, 1)
			version := crd.Spec.Versions[0]
			assert.Equal(t, "v1alpha1", version.Name)
			assert.True(t, version.Served)
			assert.True(t, version.Storage)
			require.NotNil(t, version.Subresources)
			assert.NotNil(t, version.Subresources.Status)
			assert.Equal(t, want.columns, columns(version))
		})
	}
}

func TestNullableFields(t *testing.T) {
	nullable := map[string][]string{
		"clusters spec": {
			"agentAffinity", "agentEnvVars", "agentNamespace", "agentPullSecrets", "agentResources",
			"agentSchedulingCustomization", "agentTolerations", "clientID", "hostNetwork", "kubeConfigSecret",
			"kubeConfigSecretNamespace", "privateRepoURL", "templateValues",
		},
		"clusters status": {"agentDeployedGeneration", "agentTLSMode", "apiServerCAHash", "apiServerURL"},

		"clustergroups spec":          {"selector"},
		"clusterregistrations spec":   {"clientID", "clientRandom", "clusterLabels"},
		"clusterregistrations status": {"approval", "clusterName", "tokenUID"},

		"clusterregistrationtokens spec":   {"allowedLabelKeys", "approval", "clientIDPattern", "clientIDs", "labels", "longLivedCredentials", "ttl", "usageLimit"},
		"clusterregistrationtokens status": {"lastCluster", "pendingUses", "secretName"},
	}
	byPlural := definitions(t)
	for place, want := range nullable {
		plural, half, _ := strings.Cut(place, " ")
		assert.Equal(t, want, nullableFields(schemaOf(byPlural[plural]).Properties[half]), place)
	}
	agent := schemaOf(byPlural["clusters"]).Properties["status"].Properties["agent"]
	assert.Equal(t, []string{"lastSeen", "namespace"}, nullableFields(agent))
	assert.Equal(t, "date-time", agent.Properties["lastSeen"].Format)
}

// An older or newer component may write fields that this schema does not have. The API server drops them silently, at each level of a
// schema that does not preserve unknown fields.
func TestSchemasPreserveUnknownFields(t *testing.T) {
	// Types of Kubernetes and wrangler, which no component extends.
	foreign := map[string]bool{
		"agentEnvVars": true, "agentTolerations": true, "agentAffinity": true, "agentResources": true,
		"agentPullSecrets": true, "conditions": true, "selector": true, "clusterSelector": true,
		"clusterGroupSelector": true, "allowedTargetNamespaceSelector": true,
	}
	var walk func(path string, schema apiextensionsv1.JSONSchemaProps)
	walk = func(path string, schema apiextensionsv1.JSONSchemaProps) {
		if len(schema.Properties) > 0 {
			assert.True(t, schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields, path)
		}
		for name, property := range schema.Properties {
			if !foreign[name] {
				walk(path+"."+name, property)
			}
		}
		if schema.Items != nil && schema.Items.Schema != nil {
			walk(path+"[]", *schema.Items.Schema)
		}
	}
	byPlural := definitions(t)
	for _, place := range []string{
		"clusters spec", "clusters status", "clustergroups status", "bundles spec", "bundles status",
		"bundledeployments spec", "bundledeployments status", "contents status",
	} {
		plural, half, _ := strings.Cut(place, " ")
		walk(plural+"."+half, schemaOf(byPlural[plural]).Properties[half])
	}
}

// The API server tests in this package try the limits themselves.
func TestDefinitions_immutableRequest(t *testing.T) {
	request := schemaOf(definitions(t)["clusterregistrations"]).Properties["spec"]
	fields := []string{}
	for _, rule := range request.XValidations {
		fields = append(fields, rule.FieldPath)
	}
	assert.Equal(t, []string{".clientID", ".clientRandom", ".clusterLabels"}, fields)
	assert.Len(t, request.Properties, len(fields), "a new field needs a rule")
}

func TestRequiredFields(t *testing.T) {
	for plural, crd := range definitions(t) {
		if plural == "clusterregistrations" {
			assert.Equal(t, []string{"spec"}, schemaOf(crd).Required)
		} else {
			assert.Empty(t, schemaOf(crd).Required, plural)
		}
		for _, half := range []string{"spec", "status"} {
			assert.Empty(t, schemaOf(crd).Properties[half].Required, "%s %s", plural, half)
		}
	}
}

func TestYAMLIsNoTemplate(t *testing.T) {
	assert.NotContains(t, string(crds.YAML()), "{{", "Helm would evaluate this: reword the comment it comes from")

	rendered, err := charts.Render(charts.CRD, charts.Release{Name: "fleet-crd", Namespace: "cattle-fleet-system"}, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"fleet-crd/templates/crds.yaml", "fleet-crd/templates/others.yaml"}, slices.Sorted(maps.Keys(rendered)))
	assert.Equal(t, string(crds.YAML()), rendered["fleet-crd/templates/crds.yaml"])
}

func TestObjectsAreNewInEachCall(t *testing.T) {
	first, err := crds.Objects()
	require.NoError(t, err)
	first[0].Name = "changed"

	second, err := crds.Objects()
	require.NoError(t, err)
	assert.NotEqual(t, "changed", second[0].Name)
}

func definitions(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	objects, err := crds.Objects()
	require.NoError(t, err)
	byPlural := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, object := range objects {
		byPlural[object.Spec.Names.Plural] = object
	}
	return byPlural
}

func schemaOf(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.JSONSchemaProps {
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

func columns(version apiextensionsv1.CustomResourceDefinitionVersion) map[string]string {
	paths := map[string]string{}
	for _, column := range version.AdditionalPrinterColumns {
		paths[column.Name] = column.JSONPath
	}
	return paths
}

func nullableFields(object apiextensionsv1.JSONSchemaProps) []string {
	var names []string
	for name, property := range object.Properties {
		if property.Nullable {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// One object that a client cannot decode ends every list of its kind, and an exponent of nine digits costs minutes to decode.
func TestQuantityPattern(t *testing.T) {
	agent := schemaOf(definitions(t)["clusters"]).Properties["status"].Properties["agent"]
	pattern := regexp.MustCompile(agent.Properties["capacity"].AdditionalProperties.Schema.Pattern)
	for _, admitted := range []string{"0", "4", "3950m", "16Gi", "1.5", ".5", "1e3", "1E-3", "12E", "9223372036854775807", "98765432109876543210.5"} {
		assert.Regexp(t, pattern, admitted)
		_, err := apiresource.ParseQuantity(admitted)
		assert.NoError(t, err, admitted)
	}
	for _, refused := range []string{"", "1e1.5", "1e100", "1e-2000000000", "1000000000000000000e2000000000", strings.Repeat("9", 21), "1GiB"} {
		assert.NotRegexp(t, pattern, refused)
	}
}

// An API server before 1.34 sends all objects in one response, which a hub decodes at once. Empty elements of these lists take the most memory.
func TestObjects_limitLists(t *testing.T) {
	objects, err := crds.Objects()
	require.NoError(t, err)
	specs := map[string]apiextensionsv1.JSONSchemaProps{}
	for _, object := range objects {
		specs[object.Spec.Names.Kind] = object.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	}
	bundle, cluster := specs["Bundle"].Properties, specs["Cluster"].Properties
	for most, lists := range map[int64][]apiextensionsv1.JSONSchemaProps{
		10_000: {bundle["targets"], bundle["targetRestrictions"], bundle["rolloutStrategy"].Properties["partitions"]},
		1000:   {cluster["agentEnvVars"], cluster["agentTolerations"], cluster["agentPullSecrets"]},
	} {
		for _, list := range lists {
			require.NotNil(t, list.MaxItems)
			assert.Equal(t, most, *list.MaxItems)
		}
	}
	clusterLabels := specs["ClusterRegistration"].Properties["clusterLabels"]
	require.NotNil(t, clusterLabels.MaxProperties)
	assert.Equal(t, int64(1000), *clusterLabels.MaxProperties)
}
