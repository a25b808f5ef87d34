package agentmanifest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/internal/fuzz"
)

// Management servers list taints in any order, and a changed order must not restart an agent.
func FuzzTolerationsAreSortedWhateverTheOrder(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed []byte) {
		var tolerations []corev1.Toleration
		fuzz.From(seed, "a", "b", "Exists", "NoSchedule").Fill(&tolerations)
		sorted := sortedTolerations(tolerations)
		assert.ElementsMatch(t, tolerations, sorted)
		assert.Equal(t, sorted, sortedTolerations(fuzz.Shuffled(seed, tolerations)))
		assert.Equal(t, sorted, sortedTolerations(sorted))
	})
}

func FuzzAManifestIsDecodedOrRefused(f *testing.F) {
	for _, manifest := range []string{
		"", "---\n---\n", "kind: ConfigMap\napiVersion: v1\n", "kind: Nothing\napiVersion: v1\n", "a: [", "{}", "apiVersion: v1\nkind: List\nitems: [null]\n", "\x00",
	} {
		f.Add(manifest)
	}
	f.Fuzz(func(t *testing.T, manifest string) {
		objects, err := decodeFile(manifest)
		if err != nil {
			return
		}
		for _, object := range objects {
			assert.NotNil(t, object)
			assert.False(t, object.GetObjectKind().GroupVersionKind().Empty())
		}
	})
}
