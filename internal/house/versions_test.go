package house

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// role is whether a version of Kubernetes is supported for hubs and for members.
type role struct{ hub, member bool }

// TestKubernetesVersions compares the versions that the tests build with the documentation and the charts.
func TestKubernetesVersions(t *testing.T) {
	tested := map[int]role{}
	for line := range strings.Lines(read(t, "../../hack/kube/versions")) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		tested[minorOf(t, fields[0])] = role{hub: slices.Contains(fields, "hub"), member: slices.Contains(fields, "member")}
	}
	minors := slices.Sorted(maps.Keys(tested))
	require.NotEmpty(t, minors)
	oldest, newest := minors[0], minors[len(minors)-1]
	oldestHub := minors[slices.IndexFunc(minors, func(minor int) bool { return tested[minor].hub })]

	t.Run("documentation", func(t *testing.T) {
		documented := map[int]role{}
		for _, row := range regexp.MustCompile(`(?m)^\| (1\.[0-9., ]+) \| ([^|]+) \| ([^|]+) \|`).FindAllStringSubmatch(read(t, "../../docs/versions.md"), -1) {
			if row[2] == "not tested" {
				continue
			}
			for version := range strings.SplitSeq(row[1], ", ") {
				documented[minorOf(t, version)] = role{hub: row[2] == "yes", member: row[3] == "yes"}
			}
		}
		assert.Equal(t, tested, documented)
	})
	t.Run("charts", func(t *testing.T) {
		for chart, least := range map[string]int{"fleet-crd": oldestHub, "fleet": oldestHub, "fleet-agent": oldest} {
			var metadata struct {
				KubeVersion string
				Annotations map[string]string
			}
			require.NoError(t, yaml.Unmarshal([]byte(read(t, "../../charts/"+chart+"/Chart.yaml")), &metadata))
			assert.Equal(t, ">= 1."+strconv.Itoa(oldest)+".0-0", metadata.KubeVersion, chart)
			want := ">= 1." + strconv.Itoa(least) + ".0-0 < 1." + strconv.Itoa(newest+1) + ".0-0"
			assert.Equal(t, want, metadata.Annotations["catalog.cattle.io/kube-version"], chart)
		}
	})
	t.Run("the version for which charts are rendered is the newest", func(t *testing.T) {
		rendered := regexp.MustCompile(`KubeVersion\{Version: "v([^"]+)", Major: "1", Minor: "(\d+)"\}`).FindStringSubmatch(read(t, "../../charts/charts.go"))
		require.NotNil(t, rendered)
		assert.Equal(t, newest, minorOf(t, rendered[1]))
		assert.Equal(t, strconv.Itoa(newest), rendered[2])
	})
	t.Run("the libraries are those of the newest", func(t *testing.T) {
		libraries := regexp.MustCompile(`(?m)^\tk8s\.io/(?:api|apiextensions-apiserver|apimachinery|cli-runtime|client-go|code-generator) v(\S+)`).
			FindAllStringSubmatch(read(t, "../../go.mod"), -1)
		require.Len(t, libraries, 6)
		for _, library := range libraries {
			assert.Equal(t, newest, minorOf(t, library[1]), library[0])
		}
	})
	t.Run("the default of the tests is the newest", func(t *testing.T) {
		built := regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes v(\S+)`).FindStringSubmatch(read(t, "../../hack/kube/go.mod"))
		require.NotNil(t, built)
		assert.Equal(t, newest, minorOf(t, built[1]))
	})
}

// minorOf is 30 for 1.30 and 1.30.14.
func minorOf(t *testing.T, version string) int {
	t.Helper()
	minor, err := strconv.Atoi(strings.Split(version, ".")[1])
	require.NoError(t, err)
	return minor
}
