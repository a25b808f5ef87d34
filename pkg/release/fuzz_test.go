package release

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/muster-fleet/muster/internal/fuzz"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Values come from Bundles and from ConfigMaps and Secrets of the cluster.
func FuzzValues(f *testing.F) {
	for _, pair := range [][2]string{
		{"", ""},
		{"a: 1", "a: {b: 2}"},
		{"a: {b: 1, c: null}", "a: {b: null}"},
		{"[]", "null"},
		{"a: [1]", "a: [2]"},
		{"? {}\n: x", "1: 2"},
		{"&a {x: *a}", "<<: {a: 1}"},
		{"a: 0x10", "a: 1e400"},
		{"\x00", "\xff"},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	f.Fuzz(func(t *testing.T, under, over []byte) {
		read := func() []map[string]any {
			var layers []map[string]any
			for _, data := range [][]byte{under, over} {
				values, err := parseValues(data, "Secret ns/values")
				if err != nil {
					assert.Contains(t, err.Error(), "Secret ns/values")
					continue
				}
				layers = append(layers, values)
			}
			return layers
		}
		merged := mergeValues(read())
		require.NotNil(t, merged)
		assert.Equal(t, merged, mergeValues(read()))
		if layers := read(); len(layers) == 2 {
			assertOver(t, layers[1], merged)
		}
		_, err := json.Marshal(merged)
		assert.NoError(t, err, "Helm stores them")
	})
}

// assertOver: the later ones win, wherever they say something.
func assertOver(t *testing.T, over, merged map[string]any) {
	t.Helper()
	for key, value := range over {
		if _, isTable := value.(map[string]any); !isTable && value != nil {
			assert.Equal(t, value, merged[key], key)
		}
	}
}

// What a Bundle wants left out of the comparison is applied to whatever is on the cluster.
func FuzzApplyComparePatch(f *testing.F) {
	const document = `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"v"},"list":[1,{"x":2}]}`
	for _, path := range []string{"", "/", "/data/k", "/data/none/deep", "/list/0", "/list/-", "/list/99", "/list/1/x", "/~2", "data", "/metadata/name"} {
		for _, op := range []string{"remove", "add", "replace", "test", "copy", "ignore", ""} {
			f.Add(document, op, path, `{"y":1}`)
		}
	}
	f.Fuzz(func(t *testing.T, document, op, path, value string) {
		var object map[string]any
		if json.Unmarshal([]byte(document), &object) != nil || object == nil {
			return
		}
		before, err := json.Marshal(object)
		require.NoError(t, err)
		patches := []fleet.ComparePatch{{JSONPointers: []string{path}, Operations: []fleet.Operation{{Op: op, Path: path, Value: value}}}}
		ignoresObject(&unstructured.Unstructured{Object: object}, patches)
		changed, err := applyComparePatch(object, patches[0])
		after, _ := json.Marshal(object)
		assert.JSONEq(t, string(before), string(after), "the object is somebody else's")
		again, errAgain := applyComparePatch(object, patches[0])
		assert.Equal(t, err == nil, errAgain == nil)
		assert.Equal(t, changed, again)
	})
}

func FuzzOwnerLabels(f *testing.F) {
	for _, seed := range fuzz.Seeds() {
		f.Add(seed, "fleet-agent-x", "s-1:2")
	}
	f.Fuzz(func(t *testing.T, seed []byte, deployment, id string) {
		var owner Owner
		var options fleet.BundleDeploymentOptions
		fuzz.From(seed, "ns", "cluster.with.dots").Fill(&options)
		owner.Namespace, owner.ClusterName, owner.ClusterNamespace = "agent", "cluster", "ns"
		if len(validation.IsDNS1123Subdomain(deployment)) > 0 {
			return
		}
		for key, value := range owner.LabelsFor(deployment, id) {
			assert.Empty(t, validation.IsQualifiedName(key))
			assert.Empty(t, validation.IsValidLabelValue(value), key)
		}
		back := OptionsFrom(optionLabels(options))
		assert.Equal(t, options.KeepResources, back.KeepResources)
		assert.Equal(t, options.DeleteNamespace, back.DeleteNamespace)
		assert.Equal(t, options.DeleteCRDResources, back.DeleteCRDs)
	})
}
