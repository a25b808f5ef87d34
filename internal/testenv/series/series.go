// Package series reads metrics in tests.
package series

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Values returns the value of each series by its name and label values, separated by spaces. The value of a histogram is its number of
// observations.
func Values(t testing.TB, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := []string{family.GetName()}
			for _, label := range metric.GetLabel() {
				name = append(name, label.GetValue())
			}
			value := metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
			values[strings.Join(name, " ")] = value
		}
	}
	return values
}
