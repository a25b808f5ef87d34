package packaging

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"github.com/muster-fleet/muster/charts"
)

const (
	chartVersion = "110.0.0+up1.2.3"
	imageTag     = "20261122" // YAML reads digits as a number
)

// needs are the values that each chart requires.
var needs = map[string]map[string]any{
	charts.CRD:   {},
	charts.Hub:   {},
	charts.Agent: {"apiServerURL": "https://hub.example.com", "tokenName": "t"},
}

// The second checkout has other times and modes, as another clone has.
func TestChartArchives(t *testing.T) {
	checkout := t.TempDir()
	copyRepository(t, checkout)
	first := packageCharts(t, repository, "umask 022", "TZ=UTC")
	second := packageCharts(t, checkout, "umask 077", "TZ=Asia/Tokyo")
	for name, values := range needs {
		t.Run(name, func(t *testing.T) {
			archive := name + "-" + chartVersion + ".tgz"
			data, err := os.ReadFile(filepath.Join(first, archive))
			require.NoError(t, err)
			again, err := os.ReadFile(filepath.Join(second, archive))
			require.NoError(t, err)
			require.Equal(t, data, again, "the archives of two checkouts differ")

			packed, err := loader.LoadFile(filepath.Join(first, archive))
			require.NoError(t, err)
			require.Equal(t, name, packed.Name())
			require.Equal(t, chartVersion, packed.Metadata.Version)
			require.Equal(t, imageTag, packed.Metadata.AppVersion)
			require.ElementsMatch(t, sourcesOf(t, name), filesOf(packed), "an archive has the files of its chart, and nothing else")
			rendered, err := charts.RenderChart(packed, charts.Release{Name: name, Namespace: "cattle-fleet-system"}, values)
			require.NoError(t, err)
			checkTags(t, name, rendered)
		})
	}
}

// packageCharts runs scripts/package-charts of a checkout and returns the folder with the archives.
func packageCharts(t *testing.T, checkout, before string, environment ...string) string {
	t.Helper()
	output := t.TempDir()
	command := exec.Command("bash", "-c", before+`; exec scripts/package-charts "$1" --tag "$2" --output "$3"`, "package-charts", chartVersion, imageTag, output)
	command.Dir = checkout
	command.Env = append(append(os.Environ(), "SOURCE_DATE_EPOCH="+epoch), environment...)
	said, err := command.CombinedOutput()
	require.NoError(t, err, string(said))
	return output
}

// sourcesOf are the files of a chart's folder.
func sourcesOf(t *testing.T, name string) []string {
	t.Helper()
	var files []string
	require.NoError(t, fs.WalkDir(charts.Files, name, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, strings.TrimPrefix(path, name+"/"))
		}
		return err
	}))
	return files
}

func filesOf(packed *chart.Chart) []string {
	var files []string
	for _, file := range packed.Raw {
		files = append(files, file.Name)
	}
	return files
}

func checkTags(t *testing.T, name string, rendered map[string]string) {
	t.Helper()
	switch name {
	case charts.Hub:
		require.Contains(t, rendered["fleet/templates/deployment.yaml"], `image: "muster-fleet/fleet:`+imageTag+`"`)
		require.Contains(t, rendered["fleet/templates/configmap.yaml"], `"agentImage": "muster-fleet/fleet-agent:`+imageTag+`"`)
		require.Contains(t, rendered["fleet/templates/configmap.yaml"], `fleet.cattle.io/version: "`+imageTag+`"`)
	case charts.Agent:
		require.Contains(t, rendered["fleet-agent/templates/deployment.yaml"], `image: "muster-fleet/fleet-agent:`+imageTag+`"`)
	case charts.CRD:
		require.NotEmpty(t, rendered)
	}
}

func TestPackageChartsErrors(t *testing.T) {
	for want, arguments := range map[string][]string{
		"the version is missing":                        nil,
		"v1.2.3 is not a version of a chart":            {"v1.2.3"},
		"1.2 is not a version of a chart":               {"1.2"},
		"1.2.3+up1 cannot be the tag":                   {"1.2.3+up1"},
		"2.0.0: only one version can be given":          {"1.0.0", "2.0.0"},
		"--sign is unknown":                             {"1.0.0", "--sign"},
		"--tag needs a value":                           {"1.0.0", "--tag"},
		"--digest fleet=1: it must be fleet=sha256":     {"1.0.0", "--digest", "fleet=1"},
		"--registry a b: a registry has letters":        {"1.0.0", "--registry", "a b"},
		"fleet:dev cannot be the tag of an image: pass": {"1.0.0", "--tag", "fleet:dev"},
	} {
		command := exec.Command("scripts/package-charts", append(arguments, "--output", t.TempDir())...)
		if arguments != nil && arguments[len(arguments)-1] == "--tag" {
			command = exec.Command("scripts/package-charts", arguments...)
		}
		command.Dir = repository
		said, err := command.CombinedOutput()
		require.Error(t, err, want)
		require.Contains(t, string(said), want)
	}
}
