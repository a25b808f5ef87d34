package charts_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/testenv/golden"
)

// release is the one each chart is documented to be installed as.
func release(chart string) charts.Release {
	return charts.Release{Name: chart, Namespace: "cattle-fleet-system"}
}

func valuesFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*/*.values.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

func chartOf(valuesFile string) string { return filepath.Base(filepath.Dir(valuesFile)) }

func TestRenderGolden(t *testing.T) {
	forEachValuesFile(t, func(t *testing.T, chart, file string) {
		rendered, err := charts.Render(chart, release(chart), readValues(t, file))
		require.NoError(t, err)
		if chart == charts.CRD {
			return // it is one generated file, the same for all values; pkg/crds tests it
		}
		golden.Equal(t, strings.TrimSuffix(file, ".values.yaml")+".golden.yaml", join(rendered))
	})
}

func TestKindsDoNotDependOnValues(t *testing.T) {
	bare, err := charts.Render(charts.CRD, release(charts.CRD), nil)
	require.NoError(t, err)
	rendered, err := charts.Render(charts.CRD, release(charts.CRD), readValues(t, "testdata/fleet-crd/rancher.values.yaml"))
	require.NoError(t, err)
	assert.Equal(t, bare, rendered)
	kinds := strings.Count(join(bare), "\nkind: CustomResourceDefinition\n")
	assert.Equal(t, kinds, strings.Count(join(bare), "helm.sh/resource-policy: keep"), "without it an uninstallation would delete every Cluster")
}

func readValues(t *testing.T, file string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return parseValues(t, string(data))
}

func parseValues(t *testing.T, data string) map[string]any {
	t.Helper()
	values := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(data), &values))
	return values
}

func join(rendered map[string]string) string {
	var all strings.Builder
	for _, file := range slices.Sorted(maps.Keys(rendered)) {
		fmt.Fprintf(&all, "---\n# Source: %s\n%s\n", file, strings.TrimSpace(rendered[file]))
	}
	return all.String()
}
