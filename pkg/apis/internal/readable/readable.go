// Package readable decodes objects that the API server accepts and Go's types do not: with a time with a small "t", a number of twenty digits,
// an interval of "often". One such object would prevent a hub from listing its kind. The kinds that agents and users of workspaces write
// therefore omit values that they cannot decode.
package readable

import "k8s.io/apimachinery/pkg/util/json"

// Unmarshal decodes an object of a type without UnmarshalJSON, and omits the values of its spec and status that the type cannot hold.
func Unmarshal[T any](data []byte, into *T) error {
	cause := json.Unmarshal(data, into)
	if cause == nil {
		return nil
	}
	var object map[string]any
	if json.Unmarshal(data, &object) != nil {
		return cause
	}
	fits := func(object map[string]any) bool {
		text, err := json.Marshal(object)
		return err == nil && json.Unmarshal(text, new(T)) == nil
	}
	for _, part := range []string{"spec", "status"} { // the API server validates the rest
		if value, found := object[part]; found {
			object[part] = nil
			if kept, some := prune(value, prunedDepth, func(v any) bool { return fits(map[string]any{part: v}) }); some {
				object[part] = kept
			}
		}
	}
	text, err := json.Marshal(object)
	if err != nil {
		return cause
	}
	*into = *new(T)
	return json.Unmarshal(text, into)
}

// prunedDepth is the depth below spec and status to which values are checked. The kinds are less deep; the limit bounds the work
// that a deeply nested object can cause.
const prunedDepth = 8

// prune returns the decodable part of a value, and false if there is none. It keeps a list as a whole or not at all, because a list
// without one of its elements has another meaning.
func prune(value any, depth int, fits func(any) bool) (kept any, some bool) {
	if fits(value) {
		return value, true
	}
	fields, isObject := value.(map[string]any)
	if !isObject || depth == 0 {
		return nil, false
	}
	left := map[string]any{}
	for name, inner := range fields {
		if k, ok := prune(inner, depth-1, func(v any) bool { return fits(map[string]any{name: v}) }); ok {
			left[name] = k
		}
	}
	return left, fits(left)
}
