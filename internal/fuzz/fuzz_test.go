package fuzz

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type thing struct {
	name  string
	Names []string
	When  metav1.Time
	Other *thing
	Any   map[string]any
}

func TestFrom(t *testing.T) {
	different := map[string]bool{}
	for _, seed := range Seeds() {
		var a, b thing
		From(seed, "x", "y").Fill(&a)
		From(seed, "x", "y").Fill(&b)
		assert.Equal(t, a, b)
		assert.Equal(t, Shuffled(seed, a.Names), Shuffled(seed, b.Names))
		assert.ElementsMatch(t, a.Names, Shuffled(seed, a.Names))
		different[a.name] = true
	}
	assert.Subset(t, different, map[string]bool{"x": true, "y": true, "": true})
	assert.Greater(t, len(different), 4, "not only words")
}

func TestFromWithoutBytes(t *testing.T) {
	var a thing
	From(nil).Fill(&a)
	assert.Empty(t, Shuffled[string](nil, nil))
}
