package bundle

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// For any Bundle the choice is repeatable, and contains only targets that select the Cluster, none that is empty and none with doNotDeploy. An
// invalid Bundle targets no Cluster.
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
		groups := []*fleet.ClusterGroup{}
		for i := range cluster.Groups {
			groups = append(groups, &cluster.Groups[i])
		}
		m := inGroups(candidate{name: cluster.Name, displayName: cluster.DisplayName, labels: labels.Set(cluster.Labels)}, groups...)
		p := planOf(&b)
		chosen, isKnown := p.choose(&b, m)
		again, _ := planOf(b.DeepCopy()).choose(&b, m)
		assert.Equal(t, chosen, again)
		assert.True(t, isKnown || len(chosen) == 0, "nothing is decided")
		if p.problem != nil {
			require.NotEmpty(t, p.problem.reason)
			assert.Empty(t, chosen, "an invalid Bundle targets no Cluster")
		}
		for _, i := range chosen {
			matches, _ := p.targets[i].match(m)
			assert.True(t, matches, "target %d does not select the Cluster", i)
			assert.False(t, p.targets[i].isEmpty(), "an empty target selects nothing")
			assert.False(t, p.targets[i].doNotDeploy)
		}
		if len(b.Spec.Targets) == 0 {
			assert.Empty(t, chosen)
		}
	})
}

// The handlers of events compute these for each object that a user of a workspace or an agent writes. A panic there would end the hub.
func FuzzEvents(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed, "1%")
	}
	f.Fuzz(func(t *testing.T, seed []byte, number string) {
		var b fleet.Bundle
		var before, after fleet.BundleDeployment
		var cluster fleet.Cluster
		filler := fuzz.From(seed, "a", "env", "In", "Exists", "AllMatches", "Secret", "ConfigMap", "s-1:2", "True", "False", "${ .ClusterName }", labelPrefix+"env")
		filler.Fill(&b)
		filler.Fill(&before)
		filler.Fill(&after)
		filler.Fill(&cluster)
		if s := b.Spec.RolloutStrategy; s != nil {
			for _, field := range []**intstr.IntOrString{&s.MaxUnavailable, &s.MaxUnavailablePartitions, &s.AutoPartitionSize} {
				if *field != nil {
					*field = ptr.To(intstr.Parse(number))
				}
			}
		}
		hasPartitionOfGroup(b.Spec.RolloutStrategy)
		targetKeys(&b)
		sourcesOfBundle(&b)
		changesStatus(&before, &after)
		lacksDisplay(&after)
		isUnprocessed(&cluster)
		contentsOf(&before)
		clusterOf(&after)
		_, _ = decodeValues(seed)
		b.Spec.ValuesHash = "" // the Secret is on an API server
		p := planOf(&b)
		m := inGroups(candidate{name: cluster.Name, labels: cluster.Labels})
		if chosen, _ := p.choose(&b, m); len(chosen) > 0 {
			_, _ = p.variant(t.Context(), chosen, &cluster)
		}
		if p.strategy != nil {
			targets := make([]*rolloutTarget, 3)
			for i := range targets {
				targets[i] = &rolloutTarget{candidate: m, state: fleetstatus.BundleState(after.Spec, after.Status)}
			}
			p.strategy.decide(targets)
		}
	})
}
