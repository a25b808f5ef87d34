//go:build !race

// The race detector needs memory of its own for each object, so its build measures something else.

package clusterimport

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
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
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := parseKubeconfig(&corev1.Secret{Data: map[string][]byte{"value": []byte(text)}})
		runtime.ReadMemStats(&after)
		t.Logf("%s: %d MiB: %v", name, (after.TotalAlloc-before.TotalAlloc)>>20, err)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(10<<20), name)
	}
}
