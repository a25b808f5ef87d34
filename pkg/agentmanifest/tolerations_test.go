package agentmanifest

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

func TestTolerationsHaveOneOrder(t *testing.T) {
	one, two := int64(1), int64(2)
	sorted := []corev1.Toleration{
		{},
		{Key: "a", Operator: "Equal"},
		{Key: "a", Operator: "Exists"},
		{Key: "a", Value: "x", Operator: "Equal", Effect: "NoExecute"},
		{Key: "a", Value: "x", Operator: "Equal", Effect: "NoExecute", TolerationSeconds: &one},
		{Key: "a", Value: "x", Operator: "Equal", Effect: "NoExecute", TolerationSeconds: &two},
		{Key: "a", Value: "x", Operator: "Equal", Effect: "NoSchedule"},
		{Key: "a", Value: "y"},
		{Key: "b"},
	}
	random := rand.New(rand.NewSource(1))
	for range 50 {
		shuffled := slices.Clone(sorted)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		before := slices.Clone(shuffled)
		assert.Equal(t, sorted, sortedTolerations(shuffled))
		assert.Equal(t, before, shuffled, "the caller's slice keeps its order")
	}
	assert.Empty(t, sortedTolerations(nil))
}
