//go:build !race

// The race detector needs memory of its own for each object, so its build measures something else.

package clusterimport

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/internal/testenv/heap"
)

// A workspace may have fifty passes at the same time, each with the kubeconfig of another Cluster.
func TestParseKubeconfig_memory(t *testing.T) {
	for name, text := range map[string]string{
		"elements of a list": "a: &x [" + strings.Repeat("1,", maxKubeconfig/2-10) + "]",
		"maps":               "a: &x [" + strings.Repeat("{},", maxKubeconfig/3-10) + "]",
		"lines":              "a: &x\n" + strings.Repeat("-\n", maxKubeconfig/2-10),
		"without an anchor":  "a: [" + strings.Repeat("{},", maxKubeconfig/3-10) + "]",
		"extensions":         "preferences: {extensions: [" + strings.Repeat("{},", maxKubeconfig/3-20) + "]}",
	} {
		var err error
		allocated := heap.Allocated(func() {
			_, err = parseKubeconfig(&corev1.Secret{Data: map[string][]byte{"value": []byte(text)}})
		})
		t.Logf("%s: %d MiB: %v", name, allocated>>20, err)
		assert.Less(t, allocated, 10<<20, name)
	}
}
