package v1alpha1

import "k8s.io/apimachinery/pkg/util/json"

// GenericMap is an object of any shape, such as the values of a chart. Whole numbers are decoded as int64, so that large
// ones keep their digits.
//
// +kubebuilder:validation:Type=object
// +kubebuilder:pruning:PreserveUnknownFields
type GenericMap struct {
	// Data is the decoded object: maps, slices, strings, numbers, booleans and nil.
	Data map[string]any `json:"-"`
}

// MarshalJSON encodes the map itself, without a field around it. A nil map is an empty object, because null would mean
// that the field was removed.
func (m GenericMap) MarshalJSON() ([]byte, error) {
	if m.Data == nil {
		return []byte("{}"), nil
	}
	return json.Marshal(m.Data)
}

// UnmarshalJSON decodes any JSON object.
func (m *GenericMap) UnmarshalJSON(data []byte) error {
	m.Data = nil
	return json.Unmarshal(data, &m.Data)
}

// DeepCopyInto copies all maps and slices of the decoded object.
func (m *GenericMap) DeepCopyInto(out *GenericMap) {
	out.Data, _ = copyJSON(m.Data).(map[string]any)
}

// DeepCopy returns a copy that shares nothing with m, or nil for nil.
func (m *GenericMap) DeepCopy() *GenericMap {
	if m == nil {
		return nil
	}
	out := new(GenericMap)
	m.DeepCopyInto(out)
	return out
}

// copyJSON copies containers and keeps scalars. runtime.DeepCopyJSON would panic on the int a caller may well put in.
func copyJSON(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if v == nil {
			return v
		}
		out := make(map[string]any, len(v))
		for key, value := range v {
			out[key] = copyJSON(value)
		}
		return out
	case []any:
		if v == nil {
			return v
		}
		out := make([]any, len(v))
		for i, value := range v {
			out[i] = copyJSON(value)
		}
		return out
	default:
		return v
	}
}
