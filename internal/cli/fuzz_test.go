package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation"
)

func FuzzLabelsOnTheCommandLine(f *testing.F) {
	f.Add("env=prod", "a/b=c")
	f.Add("", "=")
	f.Add("a=b=c", "a")
	f.Fuzz(func(t *testing.T, one, two string) {
		labels, err := parseLabels([]string{one, two})
		for key, value := range labels {
			assert.Empty(t, validation.IsQualifiedName(key))
			assert.Empty(t, validation.IsValidLabelValue(value))
			assert.Contains(t, []string{one, two}, key+"="+value)
		}
		if err == nil {
			assert.NotEmpty(t, labels)
		}
	})
}
