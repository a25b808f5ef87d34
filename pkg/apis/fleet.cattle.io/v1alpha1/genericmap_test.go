package v1alpha1_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestGenericMap_roundTrip(t *testing.T) {
	const text = `{"big":9007199254740993,"list":[1,"two",null],"nested":{"half":0.5}}`
	var m v1alpha1.GenericMap
	require.NoError(t, json.Unmarshal([]byte(text), &m))
	assert.Equal(t, int64(9007199254740993), m.Data["big"], "a float64 would lose the last digit")

	data, err := json.Marshal(m)
	require.NoError(t, err)
	assert.JSONEq(t, text, string(data))
}

func TestGenericMap_MarshalJSON_empty(t *testing.T) {
	data, err := json.Marshal(v1alpha1.ClusterSpec{TemplateValues: &v1alpha1.GenericMap{}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"templateValues":{}}`, string(data))
}

func TestGenericMap_UnmarshalJSON_null(t *testing.T) {
	var spec v1alpha1.ClusterSpec
	require.NoError(t, json.Unmarshal([]byte(`{"templateValues":null}`), &spec))
	assert.Nil(t, spec.TemplateValues)
}

func TestGenericMap_UnmarshalJSON_errors(t *testing.T) {
	for _, text := range []string{`[]`, `"text"`, `1`, `true`} {
		assert.Error(t, json.Unmarshal([]byte(text), new(v1alpha1.GenericMap)), text)
	}
}

func TestGenericMap_UnmarshalJSON_replaces(t *testing.T) {
	m := v1alpha1.GenericMap{Data: map[string]any{"old": true}}
	require.NoError(t, json.Unmarshal([]byte(`{"new":true}`), &m))
	assert.Equal(t, map[string]any{"new": true}, m.Data)
}

func TestGenericMap_DeepCopy(t *testing.T) {
	m := &v1alpha1.GenericMap{Data: map[string]any{
		"map": map[string]any{"key": "value"}, "list": []any{map[string]any{"key": "value"}}, "int": 1,
		"nil map": map[string]any(nil), "nil list": []any(nil), "nil": nil,
	}}
	deep := m.DeepCopy()
	require.Equal(t, m, deep)

	deep.Data["map"].(map[string]any)["key"] = "changed"
	deep.Data["list"].([]any)[0].(map[string]any)["key"] = "changed"
	assert.Equal(t, "value", m.Data["map"].(map[string]any)["key"])
	assert.Equal(t, "value", m.Data["list"].([]any)[0].(map[string]any)["key"])
}

func TestGenericMap_DeepCopy_nil(t *testing.T) {
	assert.Nil(t, (*v1alpha1.GenericMap)(nil).DeepCopy())
	assert.Nil(t, new(v1alpha1.GenericMap).DeepCopy().Data)
}

// random is a text that gzip would not shorten much below three quarters.
func random(size int) string {
	data := make([]byte, size*3/4)
	_, _ = rand.Read(data)
	return base64.StdEncoding.EncodeToString(data)
}

func TestGenericMap_Pack(t *testing.T) {
	const repeated = `"image":{"tag":"v1"},"replicas":3,`
	lines := `"lines":["` + strings.Repeat(`<a & b>","`, 1000) + `"]`
	for name, row := range map[string]struct {
		text   string
		factor int // by which the JSON is larger; 0 if it is not packed
	}{
		"many fields":             {`{` + repeated + lines + `}`, 50},
		"numbers":                 {`{"big":9007199254740993,"half":0.5,"small":1e-30,` + lines + `}`, 50},
		"other values":            {`{"t":true,"none":null,"empty":{},"list":[],"text":"\u2028\u0000<\ud800é",` + lines + `}`, 50},
		"random text":             {`{"a":"` + random(8000) + `"}`, 1},
		"few fields":              {`{` + repeated + `"a":"` + strings.Repeat("x", 1900) + `"}`, 0},
		"a whole number as float": {`{"a":1.0,` + lines + `}`, 0},
		"large numbers":           {`{"a":[{"b":1e20}],` + lines + `}`, 0},
		"none":                    {`{}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var decoded v1alpha1.GenericMap
			require.NoError(t, json.Unmarshal([]byte(row.text), &decoded))
			written, err := json.Marshal(decoded)
			require.NoError(t, err)
			m := decoded.DeepCopy()
			m.Pack()
			assert.Equal(t, row.factor > 0, m.PackedSize() > 0)
			assert.Equal(t, row.factor == 0, m.Data != nil)
			assert.Less(t, m.PackedSize()*row.factor, len(written))

			copied := m.DeepCopy()
			copied.Pack()
			assert.Equal(t, m, copied)
			assert.Equal(t, decoded.Data, copied.Map())
			again, err := json.Marshal(copied)
			require.NoError(t, err)
			assert.Equal(t, string(written), string(again))
			assert.True(t, equality.Semantic.DeepEqual(&decoded, copied))
			assert.True(t, equality.Semantic.DeepEqual(m, copied))
			other := decoded.DeepCopy()
			other.Data["other"] = true
			assert.False(t, equality.Semantic.DeepEqual(other, copied))
			other.Pack()
			assert.False(t, equality.Semantic.DeepEqual(other, copied))

			require.NoError(t, json.Unmarshal([]byte(`{"new":true}`), copied))
			assert.Equal(t, &v1alpha1.GenericMap{Data: map[string]any{"new": true}}, copied)
		})
	}
	assert.Nil(t, (*v1alpha1.GenericMap)(nil).Map())
	assert.Zero(t, (*v1alpha1.GenericMap)(nil).PackedSize())
}
