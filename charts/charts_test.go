package charts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-fleet/muster/charts"
)

func TestUnknownChart(t *testing.T) {
	_, err := charts.Load("fleet-nothing")
	assert.ErrorContains(t, err, "fleet-nothing")
	_, err = charts.Render("fleet-nothing", charts.Release{}, nil)
	assert.ErrorContains(t, err, "fleet-nothing")
	_, err = charts.Notes("fleet-nothing", charts.Release{}, nil)
	assert.ErrorContains(t, err, "fleet-nothing")
}

func TestRenderChartDoesNotChangeTheChart(t *testing.T) {
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
