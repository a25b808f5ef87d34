package charts_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/charts"
)

// all are the charts in the order of their installation.
var all = []string{charts.CRD, charts.Hub, charts.Agent}

var valueRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]*)` \\| (.+) \\|$")

func TestReadmeDocumentsTheValues(t *testing.T) {
	for _, chart := range all {
		readme, err := os.ReadFile(chart + "/README.md")
		require.NoError(t, err)
		documented := map[string]string{}
		for _, row := range valueRow.FindAllStringSubmatch(string(readme), -1) {
			assert.NotContains(t, documented, row[1], "%s: twice", chart)
			documented[row[1]] = row[2]
			assert.NotEmpty(t, row[3], "%s: %s", chart, row[1])
		}
		defaults := map[string]string{}
		flatten(t, "", readValues(t, chart+"/values.yaml"), defaults)
		assert.Equal(t, defaults, documented, chart)
	}
}

// flatten returns the defaults by their path. An empty map is a value, a map with keys is not.
func flatten(t *testing.T, path string, values map[string]any, into map[string]string) {
	t.Helper()
	for key, value := range values {
		if inner, ok := value.(map[string]any); ok && len(inner) > 0 {
			flatten(t, path+key+".", inner, into)
			continue
		}
		data, err := json.Marshal(value)
		require.NoError(t, err)
		into[path+key] = string(data)
	}
}

// A value that the schema does not know may have any type, and the error of the template would not name the value.
func TestSchemaKnowsEveryValue(t *testing.T) {
	free := []string{"image.os", "internal.image", "internal.clusterRole", "internal.clusterRoleBinding", "internal.scope", "internal.checkinInterval", "internal.credentialLifetime"}
	for _, chart := range all {
		var schema map[string]any
		data, err := os.ReadFile(chart + "/values.schema.json")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &schema))
		definitions, _ := schema["definitions"].(map[string]any)
		known := map[string]bool{}
		describe("", schema, definitions, known)
		defaults := map[string]string{}
		flatten(t, "", readValues(t, chart+"/values.yaml"), defaults)
		for _, path := range slices.Sorted(maps.Keys(defaults)) {
			assert.True(t, known[path] || slices.Contains(free, path), "%s: values.schema.json says nothing of %s", chart, path)
		}
	}
}

func describe(path string, schema, definitions map[string]any, known map[string]bool) {
	if reference, ok := schema["$ref"].(string); ok {
		schema, _ = definitions[regexp.MustCompile(`[^/]+$`).FindString(reference)].(map[string]any)
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, property := range properties {
		known[path+name] = true
		if inner, ok := property.(map[string]any); ok {
			describe(path+name+".", inner, definitions, known)
		}
	}
}

// idle are the values of Fleet's own chart that this chart accepts and ignores.
var idle = []string{
	"gitops", "gitjob", "helmops", "imagescan", "migrations", "shards", "insecureSkipHostKeyChecks", "additionalKnownHosts",
	"proxyCACert", "clusterEnqueueDelay", "controller.reconciler.workers",
}

func TestReadmeNamesUnusedValues(t *testing.T) {
	readme, err := os.ReadFile("fleet/README.md")
	require.NoError(t, err)
	defaults := map[string]string{}
	flatten(t, "", readValues(t, "fleet/values.yaml"), defaults)
	for _, value := range idle {
		assert.Contains(t, string(readme), "`"+value+"`")
		assert.NotContains(t, defaults, value, "it has an effect")
	}
}
