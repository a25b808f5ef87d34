package agentmanifest

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/internal/fuzz"
)

func TestDecode_errors(t *testing.T) {
	tests := map[string]string{
		"not YAML":     "a: [",
		"no kind":      "apiVersion: v1",
		"unknown kind": "apiVersion: example.com/v1\nkind: Mystery",
	}
	for title, manifest := range tests {
		t.Run(title, func(t *testing.T) {
			objects, err := decode(map[string]string{"chart/templates/odd.yaml": manifest})
			assert.ErrorContains(t, err, "chart/templates/odd.yaml")
			assert.Nil(t, objects)
		})
	}
}

func TestDecode_order(t *testing.T) {
	objects, err := decode(map[string]string{
		"a.yaml": "apiVersion: v1\nkind: ConfigMap\n---\n\n---\napiVersion: apps/v1\nkind: Deployment\n",
		"b.yaml": "apiVersion: v1\nkind: ServiceAccount\n",
	})
	require.NoError(t, err)
	var kinds []string
	for _, object := range objects {
		kinds = append(kinds, object.GetObjectKind().GroupVersionKind().Kind)
	}
	assert.Equal(t, []string{"ServiceAccount", "Deployment", "ConfigMap"}, kinds)
}

func TestImage(t *testing.T) {
	tests := map[string]struct{ reference, systemDefault, private, want string }{
		"no registries":                     {"fleet/agent:v1", "", "", "fleet/agent:v1"},
		"default only":                      {"reg.io/fleet/agent:v1", "reg.io", "", "reg.io/fleet/agent:v1"},
		"private only":                      {"fleet/agent:v1", "", "private.io", "private.io/fleet/agent:v1"},
		"private replaces default":          {"reg.io/fleet/agent:v1", "reg.io", "private.io", "private.io/fleet/agent:v1"},
		"default written with slash":        {"reg.io/fleet/agent:v1", "reg.io/", "private.io", "private.io/fleet/agent:v1"},
		"private written with slash":        {"fleet/agent:v1", "", "private.io/", "private.io/fleet/agent:v1"},
		"private written as URL":            {"fleet/agent:v1", "", "https://private.io", "private.io/fleet/agent:v1"},
		"private with port and path":        {"fleet/agent:v1", "", "private.io:5000/a/b", "private.io:5000/a/b/fleet/agent:v1"},
		"already from the private one":      {"private.io/fleet/agent:v1", "", "private.io", "private.io/fleet/agent:v1"},
		"both are the same":                 {"reg.io/fleet/agent:v1", "reg.io", "reg.io", "reg.io/fleet/agent:v1"},
		"private below default":             {"reg.io/fleet/agent:v1", "reg.io", "reg.io/mirror", "reg.io/mirror/fleet/agent:v1"},
		"default not in the image":          {"fleet/agent:v1", "reg.io", "private.io", "private.io/fleet/agent:v1"},
		"default is the start of a name":    {"registry/agent:v1", "reg", "private.io", "private.io/registry/agent:v1"},
		"private is the start of a name":    {"private.iota/agent:v1", "", "private.io", "private.io/private.iota/agent:v1"},
		"digest":                            {"fleet/agent@sha256:abc", "", "private.io", "private.io/fleet/agent@sha256:abc"},
		"image of another registry is kept": {"other.io/fleet/agent:v1", "reg.io", "private.io", "private.io/other.io/fleet/agent:v1"},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			assert.Equal(t, tt.want, image(tt.reference, tt.systemDefault, tt.private))
		})
	}
}

func TestSortedTolerations(t *testing.T) {
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

// Management servers list taints in any order, and a changed order must not restart an agent.
func FuzzSortedTolerations(f *testing.F) {
	fuzz.AddSeeds(f)
	f.Fuzz(func(t *testing.T, seed []byte) {
		var tolerations []corev1.Toleration
		fuzz.From(seed, "a", "b", "Exists", "NoSchedule").Fill(&tolerations)
		sorted := sortedTolerations(tolerations)
		assert.ElementsMatch(t, tolerations, sorted)
		assert.Equal(t, sorted, sortedTolerations(fuzz.Shuffled(seed, tolerations)))
		assert.Equal(t, sorted, sortedTolerations(sorted))
	})
}

func FuzzDecode(f *testing.F) {
	for _, manifest := range []string{
		"", "---\n---\n", "kind: ConfigMap\napiVersion: v1\n", "kind: Nothing\napiVersion: v1\n", "a: [", "{}", "apiVersion: v1\nkind: List\nitems: [null]\n", "\x00",
	} {
		f.Add(manifest)
	}
	f.Fuzz(func(t *testing.T, manifest string) {
		objects, err := decode(map[string]string{"a.yaml": manifest})
		if err != nil {
			return
		}
		for _, object := range objects {
			assert.False(t, object.GetObjectKind().GroupVersionKind().Empty())
		}
	})
}
