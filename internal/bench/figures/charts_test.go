package figures

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestACurveGoesThroughAllSizes(t *testing.T) {
	charts := Charts([]Figure{
		{Row: "growth/1000/memory", Value: 118},
		{Row: "growth/100/memory", Value: 88},
		{Row: "storm/memory", Value: 90},
		{Row: "growth/100/cpu", Value: 8},
		{Row: "growth/many/etcd", Value: 1},
		{Row: "growth/100/etcd", Value: 1},
	})
	assert.Equal(t, []Chart{{
		Title: "Memory of the hub, at most", X: "clusters", Y: "MiB",
		Lines: []ChartLine{{Points: []ChartPoint{{X: 100, Y: 88}, {X: 1000, Y: 118}}}},
	}}, charts, "what was measured once is no curve")
	assert.Empty(t, Charts(nil))
}
