package metrics

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	selector     = regexp.MustCompile(`\b(muster_\w+)\{([^}]*)\}`)
	labelMatcher = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*")`)
	plainChoices = regexp.MustCompile(`^\w+(\|\w+)*$`)
)

// An alert that selects a label value that no series has never fires.
func TestMonitoredLabelValuesAreExported(t *testing.T) {
	exported := labelValues(t, allMetrics())
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		content, err := os.ReadFile("../../../charts/fleet/files/" + file)
		require.NoError(t, err)
		text := string(content)
		if strings.HasSuffix(file, ".json") {
			text = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(text)
		}
		checked := 0
		for _, selected := range selector.FindAllStringSubmatch(text, -1) {
			for _, matcher := range labelMatcher.FindAllStringSubmatch(selected[2], -1) {
				value, err := strconv.Unquote(matcher[3])
				require.NoError(t, err, selected[0])
				if strings.HasPrefix(value, "$") { // a variable of the dashboard, for a label that Prometheus adds
					continue
				}
				checked++
				assert.True(t, selects(exported[selected[1]][matcher[1]], matcher[2], value), "%s: %s: the hub exports no such value of label %s", file, selected[0], matcher[1])
			}
		}
		assert.Greater(t, checked, 4, file)
	}
}

func TestSelects(t *testing.T) {
	values := []string{"Connected", "Ready", "5"}
	for _, row := range []struct {
		operator, value string
		want            bool
	}{
		{"=", "Ready", true},
		{"=", "ReleasesManaged", false},
		{"!=", "Ready", true},
		{"!=", "Superseded", false},
		{"=~", "Connected|Ready", true},
		{"=~", "Connected|Imported", false},
		{"=~", `5|5\.0`, true},
		{"=~", `6|6\.0`, false},
	} {
		assert.Equal(t, row.want, selects(values, row.operator, row.value), row)
	}
}

// selects reports whether a matcher distinguishes series that exist. Each word of a choice between words must exist; of any other regular
// expression, at least one value must.
func selects(values []string, operator, value string) bool {
	alternatives := []string{regexp.QuoteMeta(value)}
	if strings.HasSuffix(operator, "~") {
		alternatives = []string{value}
		if plainChoices.MatchString(value) {
			alternatives = strings.Split(value, "|")
		}
	}
	for _, alternative := range alternatives {
		pattern := regexp.MustCompile("^(?:" + alternative + ")$")
		found := false
		for _, exists := range values {
			found = found || pattern.MatchString(exists)
		}
		if !found {
			return false
		}
	}
	return true
}

// labelValues returns the values of each label of each metric.
func labelValues(t *testing.T, registry prometheus.Gatherer) map[string]map[string][]string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]map[string][]string{}
	add := func(name, label, value string) {
		if values[name] == nil {
			values[name] = map[string][]string{}
		}
		values[name][label] = append(values[name][label], value)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, suffix := range []string{"", "_bucket", "_count", "_sum"} {
				for _, label := range metric.GetLabel() {
					add(family.GetName()+suffix, label.GetName(), label.GetValue())
				}
			}
			for _, bucket := range metric.GetHistogram().GetBucket() {
				add(family.GetName()+"_bucket", "le", strconv.FormatFloat(bucket.GetUpperBound(), 'g', -1, 64))
			}
		}
	}
	return values
}
