package charts_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/util"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/crds"
)

func TestChartMetadata(t *testing.T) {
	for _, name := range all {
		chart, err := charts.Load(name)
		require.NoError(t, err)
		m := chart.Metadata
		assert.Equal(t, name, m.Name)
		assert.NotEmpty(t, m.Description)
		assert.NotEmpty(t, m.AppVersion)
		assert.NotEmpty(t, m.Home)
		assert.NotEmpty(t, m.Sources)
		assert.NotEmpty(t, m.Maintainers)
		assert.NotEmpty(t, m.Keywords)
		for key, want := range map[string]string{
			"catalog.cattle.io/namespace": "cattle-fleet-system", "catalog.cattle.io/release-name": name,
			"catalog.cattle.io/hidden": "true", "catalog.cattle.io/os": "linux",
		} {
			assert.Equal(t, want, m.Annotations[key], "%s %s", name, key)
		}
		assert.True(t, util.IsCompatibleRange(m.Annotations["catalog.cattle.io/kube-version"], "v1.36.3+rke2r1"), name)
		assert.True(t, util.IsCompatibleRange(m.Annotations["catalog.cattle.io/rancher-version"], "2.15.1"), name)
		assert.NotContains(t, m.Annotations, "catalog.cattle.io/certified", "%s: only the publisher of a catalogue can certify it", name)
	}
	hub, err := charts.Load(charts.Hub)
	require.NoError(t, err)
	assert.Equal(t, "clusters.fleet.cattle.io/v1alpha1", hub.Metadata.Annotations["catalog.cattle.io/provides-gvr"])
}

// Artifact Hub shows these annotations. It ignores what it cannot parse.
func TestChartAnnotationsOfArtifactHub(t *testing.T) {
	imagesOf := map[string][]string{charts.CRD: nil, charts.Hub: {"muster-fleet/fleet:dev", "muster-fleet/fleet-agent:dev"}, charts.Agent: {"muster-fleet/fleet-agent:dev"}}
	for _, name := range all {
		chart, err := charts.Load(name)
		require.NoError(t, err)
		annotations := chart.Metadata.Annotations
		assert.Equal(t, "Apache-2.0", annotations["artifacthub.io/license"])
		var links []struct{ Name, URL string }
		require.NoError(t, yaml.UnmarshalStrict([]byte(annotations["artifacthub.io/links"]), &links), name)
		assert.NotEmpty(t, links, name)
		var listed []struct{ Name, Image string }
		require.NoError(t, yaml.UnmarshalStrict([]byte(annotations["artifacthub.io/images"]), &listed), name)
		var images []string
		for _, one := range listed {
			images = append(images, one.Image)
		}
		assert.Equal(t, imagesOf[name], images, name)
	}
	definitions, err := charts.Load(charts.CRD)
	require.NoError(t, err)
	var listed []struct{ Kind, Version, Name, DisplayName, Description string }
	require.NoError(t, yaml.UnmarshalStrict([]byte(definitions.Metadata.Annotations["artifacthub.io/crds"]), &listed))
	var names []string
	for _, one := range listed {
		assert.NotEmpty(t, one.Description, one.Name)
		names = append(names, one.Name)
	}
	objects, err := crds.Objects()
	require.NoError(t, err)
	var served []string
	for _, definition := range objects {
		served = append(served, definition.Name)
	}
	assert.ElementsMatch(t, served, names)
}

func TestKubeVersion(t *testing.T) {
	for version, want := range map[string]bool{
		"v1.27.16": false, "v1.28.0": true, "v1.28.15+k3s1": true, "v1.30.2-gke.1200": true, "v1.36.3+rke2r1": true, "v1.40.0": true,
	} {
		for _, name := range all {
			chart, err := charts.Load(name)
			require.NoError(t, err)
			assert.Equal(t, want, util.IsCompatibleRange(chart.Metadata.KubeVersion, version), "%s on %s", name, version)
		}
	}
}

// forEachValuesFile runs a test for each chart with each values file of testdata.
func forEachValuesFile(t *testing.T, test func(t *testing.T, chart, file string)) {
	t.Helper()
	for _, file := range valuesFiles(t) {
		t.Run(strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".values.yaml"), func(t *testing.T) {
			test(t, chartOf(file), file)
		})
	}
}

func TestHelmLint(t *testing.T) {
	sample.Long(t)
	forEachValuesFile(t, func(t *testing.T, chart, file string) {
		lint := action.NewLint()
		lint.Strict, lint.Namespace = true, "cattle-fleet-system"
		lint.KubeVersion = &common.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"}
		result := lint.Run([]string{chart}, readValues(t, file))
		assert.Empty(t, result.Errors)
		for _, message := range result.Messages {
			assert.ErrorContains(t, message.Err, "icon is recommended", "nothing else")
		}
	})
}
