package clustergroup

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// groupOf returns a ClusterGroup that selects the Clusters whose label "env" has one of these values and that have ownLabels further labels.
func groupOf(ownLabels int, values ...string) *fleet.ClusterGroup {
	selector := &metav1.LabelSelector{
		MatchLabels:      map[string]string{},
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpIn, Values: values}},
	}
	for n := range ownLabels {
		selector.MatchLabels[fmt.Sprint("label-", n)] = "x"
	}
	return &fleet.ClusterGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "g", UID: "1", Generation: 1}, Spec: fleet.ClusterGroupSpec{Selector: selector},
	}
}

func manyValues(n int) (values []string) {
	for i := range n {
		values = append(values, fmt.Sprint("v", i))
	}
	return values
}

func TestCompile_size(t *testing.T) {
	for name, row := range map[string]struct {
		group *fleet.ClusterGroup
		fits  bool
	}{
		"values: as many as allowed":            {groupOf(0, manyValues(MaxSelector-1)...), true},
		"values: one more":                      {groupOf(0, manyValues(MaxSelector)...), false},
		"labels and values: as many as allowed": {groupOf(5000, manyValues(MaxSelector-5001)...), true},
		"labels and values: one more":           {groupOf(5000, manyValues(MaxSelector-5000)...), false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(row.group)
			reduced, errReduce := Reduce(row.group.DeepCopy())
			require.NoError(t, errReduce)
			kept := reduced.(*fleet.ClusterGroup)
			_, errReduced := Compile(kept)
			if row.fits {
				require.NoError(t, err)
				require.NoError(t, errReduced)
				assert.Equal(t, row.group, kept)
				return
			}
			require.ErrorContains(t, err, "spec.selector has more than 10000 labels, expressions and values")
			assert.Equal(t, err, errReduced, "what the cache keeps counts as too large")
			assert.Same(t, tooLarge, kept.Spec.Selector)
		})
	}
}

func TestSelectors(t *testing.T) {
	var s Selectors
	selects := func(group *fleet.ClusterGroup, env string) bool {
		selector, err := s.Of(group)
		require.NoError(t, err)
		return selector.Matches(labels.Set{"env": env})
	}
	group := groupOf(0, "prod")
	assert.True(t, selects(group, "prod"))

	group.Spec = groupOf(0, "dev").Spec
	assert.True(t, selects(group, "prod"), "a generation is compiled once")
	group.Generation++
	assert.True(t, selects(group, "dev"), "another generation")

	group = groupOf(0, "test")
	group.Generation, group.UID = 2, "2"
	assert.True(t, selects(group, "test"), "another group of the name")

	s.Forget("ws", "g")
	assert.Empty(t, s.byKey)
	_, err := s.Of(groupOf(0))
	require.ErrorContains(t, err, "spec.selector: ")
}

func TestSelectors_noSelector(t *testing.T) {
	var s Selectors
	selector, err := s.Of(&fleet.ClusterGroup{})
	require.NoError(t, err)
	assert.False(t, selector.Matches(labels.Set{}))
}

// Compiling a large selector takes milliseconds. The selectors of other groups can be used meanwhile.
func TestSelectors_ofOthers(t *testing.T) {
	other := groupOf(0, "prod")
	other.Name = "other"
	var s Selectors
	_, _ = s.Of(groupOf(0, "prod"))
	key := types.NamespacedName{Namespace: "ws", Name: "g"}
	compiling := s.byKey[key]
	compiling.compile = func() (labels.Selector, error) { return s.Of(other) }
	s.byKey[key] = compiling
	selector, err := s.Of(groupOf(0, "prod"))
	require.NoError(t, err)
	assert.True(t, selector.Matches(labels.Set{"env": "prod"}))
}

// A change of the labels does not change metadata.generation, and Selectors keeps a compiled selector for each generation.
func TestSelectors_metadataTooLarge(t *testing.T) {
	var s Selectors
	group := groupOf(1, "prod")
	_, err := s.Of(group)
	require.NoError(t, err)
	large := group.DeepCopy()
	large.Spec.MetadataTooLarge = true
	_, err = s.Of(large)
	require.ErrorContains(t, err, "metadata.labels takes more than 32 KiB")
	_, err = s.Of(group)
	require.NoError(t, err)
}
