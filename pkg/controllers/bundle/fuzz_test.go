package bundle

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Whatever a Bundle says, it targets only Clusters that a target selects.
func FuzzChoose(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var b fleet.Bundle
		var cluster struct {
			Name, DisplayName string
			Labels            map[string]string
			Groups            []fleet.ClusterGroup
		}
		filler := fuzz.From(seed, "a", "b", "env", "In", "NotIn", "Exists", "AllMatches", "FirstMatch", "fleet-agent-a")
		filler.Fill(&b.Spec.Targets)
		filler.Fill(&b.Spec.TargetRestrictions)
		filler.Fill(&b.Spec.TargetCustomizationMode)
		filler.Fill(&cluster)
		m := candidate{name: cluster.Name, displayName: cluster.DisplayName, labels: labels.Set(cluster.Labels), groups: func() (all []*fleet.ClusterGroup) {
			for i := range cluster.Groups {
				all = append(all, &cluster.Groups[i])
			}
			return all
		}}
		p := planOf(&b)
		chosen := p.choose(&b, m)
		assert.Equal(t, chosen, planOf(b.DeepCopy()).choose(&b, m))
		if p.problem != nil {
			require.NotEmpty(t, p.problem.reason)
			assert.Empty(t, chosen, "an invalid Bundle targets no Cluster")
		}
		for _, i := range chosen {
			assert.False(t, p.targets[i].isEmpty(), "an empty target selects nothing")
			assert.False(t, p.targets[i].doNotDeploy)
		}
		if len(b.Spec.Targets) == 0 {
			assert.Empty(t, chosen)
		}
	})
}
