package clustergroup

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// TestSum computes the recorded groups of Fleet's own hub from its recorded Clusters.
func TestSum(t *testing.T) {
	data, err := os.ReadFile("../internal/rollup/testdata/23-cluster-status.yaml")
	require.NoError(t, err)
	data = regexp.MustCompile(`\bTIME-\d+\b`).ReplaceAll(data, []byte("2026-01-02T12:00:00Z"))
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		var stage struct {
			Stage         string
			Clusters      []*fleet.Cluster
			ClusterGroups []fleet.ClusterGroup
		}
		require.NoError(t, yaml.Unmarshal(document, &stage))
		for _, group := range stage.ClusterGroups {
			t.Run(stage.Stage, func(t *testing.T) {
				selector, err := metav1.LabelSelectorAsSelector(group.Spec.Selector)
				require.NoError(t, err)
				var selected []*fleet.Cluster
				for _, cluster := range stage.Clusters {
					if selector.Matches(labels.Set(cluster.Labels)) {
						selected = append(selected, cluster)
					}
				}
				got := fleet.ClusterGroupStatus{Conditions: group.Status.Conditions}
				ready := sum(&got, selected)
				assert.Equal(t, group.Status, got)
				for _, c := range group.Status.Conditions {
					if c.Type == fleet.ConditionReady {
						assert.Equal(t, c.Status, ready.Status())
						assert.Equal(t, c.Message, ready.Message)
					}
				}
			})
		}
	}
}
