package v1alpha1_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
