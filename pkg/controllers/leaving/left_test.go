package leaving

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"
)

func TestARequestThatLeftIsTakenOnce(t *testing.T) {
	var left Left
	one, other := types.NamespacedName{Namespace: "ns", Name: "one"}, types.NamespacedName{Namespace: "ns", Name: "other"}
	left.Add(one)
	left.Add(one)
	assert.False(t, left.Take(other))
	assert.True(t, left.Take(one))
	assert.False(t, left.Take(one))
}
