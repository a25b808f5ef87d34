package charts_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
)

func TestEveryChartLoadsUnderTheNameOfItsFolder(t *testing.T) {
	for _, name := range []string{charts.CRD, charts.Hub, charts.Agent} {
		loaded, err := charts.Load(name)
		require.NoError(t, err)
		assert.Equal(t, name, loaded.Name())
		assert.Equal(t, "cattle-fleet-system", loaded.Metadata.Annotations["catalog.cattle.io/namespace"])
		assert.Equal(t, name, loaded.Metadata.Annotations["catalog.cattle.io/release-name"])
	}
}

func TestAnUnknownChartIsAnErrorThatNamesIt(t *testing.T) {
	_, err := charts.Load("fleet-nothing")
	assert.ErrorContains(t, err, "fleet-nothing")
	_, err = charts.Render("fleet-nothing", charts.Release{}, nil)
	assert.ErrorContains(t, err, "fleet-nothing")
	_, err = charts.Notes("fleet-nothing", charts.Release{}, nil)
	assert.ErrorContains(t, err, "fleet-nothing")
}

func TestRenderedFilesAreManifestsOnly(t *testing.T) {
	rendered := renderHub(t, "{}")
	assert.NotContains(t, rendered, "fleet/templates/NOTES.txt")
	assert.NotContains(t, rendered, "fleet/templates/_helpers.tpl")
	for file, content := range rendered {
		assert.NotEmpty(t, strings.TrimSpace(content), file)
	}
}

func TestAChartLoadedOnceRendersTheSameEveryTime(t *testing.T) {
	loaded, err := charts.Load(charts.Agent)
	require.NoError(t, err)
	first, err := charts.RenderChart(loaded, release(charts.Agent), readValues(t, "testdata/fleet-agent/minimal.values.yaml"))
	require.NoError(t, err)
	_, err = charts.RenderChart(loaded, release(charts.Agent), readValues(t, "testdata/fleet-agent/full.values.yaml"))
	require.NoError(t, err)
	again, err := charts.RenderChart(loaded, release(charts.Agent), readValues(t, "testdata/fleet-agent/minimal.values.yaml"))
	require.NoError(t, err)
	assert.Equal(t, first, again)
}

// A misspelt field would be dropped in silence by an API server that does not validate.
func TestEveryManifestHasOnlyFieldsThatKubernetesKnows(t *testing.T) {
	for _, chart := range []string{charts.Agent, charts.Hub} {
		rendered, err := charts.Render(chart, release(chart), readValues(t, "testdata/"+chart+"/full.values.yaml"))
		require.NoError(t, err)
		for file, content := range rendered {
			for document := range strings.SplitSeq(content, "\n---\n") {
				object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
				require.NoError(t, err, file)
				require.NoError(t, yaml.UnmarshalStrict([]byte(document), object), file)
			}
		}
	}
}
