package rollup

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// TestFleetMessage compares with condition Ready of recorded Clusters of Fleet's own hub.
func TestFleetMessage(t *testing.T) {
	data, err := os.ReadFile("testdata/23-cluster-status.yaml")
	require.NoError(t, err)
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		var stage struct {
			Stage    string
			Clusters []struct {
				Status struct {
					Conditions fleetstatus.Conditions
					Summary    fleet.BundleSummary
					Display    fleet.ClusterDisplay
				}
			}
		}
		require.NoError(t, yaml.Unmarshal(document, &stage))
		for _, cluster := range stage.Clusters {
			t.Run(stage.Stage, func(t *testing.T) {
				status := cluster.Status
				assert.Equal(t, fleetstatus.Condition(status.Conditions, fleet.ConditionReady).Message, FleetMessage("Bundle", status.Summary))
				assert.Equal(t, status.Display.ReadyBundles, Fraction(status.Summary))
				if status.Display.State != "WaitCheckIn" { // which precedes the states of BundleDeployments
					assert.Equal(t, status.Display.State, string(Worst(status.Summary)))
				}
			})
		}
	}
}

func TestWorst(t *testing.T) {
	for _, row := range []struct {
		name     string
		states   map[fleet.BundleState]int
		worst    fleet.BundleState
		fraction string
	}{
		{"nothing", nil, "", "0/0"},
		{"all ready", map[fleet.BundleState]int{fleet.Ready: 2}, "", "2/2"},
		{"a count of zero", map[fleet.BundleState]int{fleet.Ready: 1, fleet.ErrApplied: 0}, "", "1/1"},
		{"not ready", map[fleet.BundleState]int{fleet.Ready: 1, fleet.NotReady: 1}, fleet.NotReady, "1/2"},
		{"pending is worse", map[fleet.BundleState]int{fleet.NotReady: 1, fleet.Pending: 1}, fleet.Pending, "0/2"},
		{"out of sync is worse", map[fleet.BundleState]int{fleet.Pending: 1, fleet.OutOfSync: 1}, fleet.OutOfSync, "0/2"},
		{"modified is worse", map[fleet.BundleState]int{fleet.OutOfSync: 1, fleet.Modified: 1}, fleet.Modified, "0/2"},
		{"waiting is worse", map[fleet.BundleState]int{fleet.Modified: 1, fleet.WaitApplied: 1}, fleet.WaitApplied, "0/2"},
		{"a failure is the worst", map[fleet.BundleState]int{fleet.WaitApplied: 9, fleet.ErrApplied: 1, fleet.Ready: 9}, fleet.ErrApplied, "9/19"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var s fleet.BundleSummary
			for state, n := range row.states {
				Count(&s, state, n)
			}
			assert.Equal(t, row.worst, Worst(s))
			assert.Equal(t, row.fraction, Fraction(s))
		})
	}
}
