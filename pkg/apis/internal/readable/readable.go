// Package readable decodes objects that the API server accepts and Go's types do not: with a time with a small "t", a number of twenty digits,
// an interval of "often". One such object would prevent a hub from listing its kind. The kinds that agents and users of workspaces write
// therefore omit values that they cannot decode.
package readable

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/json"
)

// Unmarshal decodes an object of a type without UnmarshalJSON, and omits the values of its spec and status that the type cannot hold. It
// returns the fields of spec and status with omitted values, such as spec.ttl, or the whole part if that is no object.
func Unmarshal[T any](data []byte, into *T) (omitted []string, err error) {
	cause := json.Unmarshal(data, into)
	if cause == nil {
		return nil, nil
	}
	var object map[string]any
	if json.Unmarshal(data, &object) != nil {
		return nil, cause
	}
	fits := func(object map[string]any) bool {
		text, err := json.Marshal(object)
		return err == nil && json.Unmarshal(text, new(T)) == nil
	}
	for _, part := range []string{"spec", "status"} { // the API server validates the rest
		value := object[part]
		if fits(map[string]any{part: value}) {
			continue
		}
		fields, isObject := value.(map[string]any)
		if !isObject {
			delete(object, part)
			omitted = append(omitted, part)
			continue
		}
		for name, inner := range fields {
			fitsField := func(v any) bool { return fits(map[string]any{part: map[string]any{name: v}}) }
			if fitsField(inner) {
				continue
			}
			omitted = append(omitted, part+"."+name)
			delete(fields, name)
			if kept, some := prune(inner, prunedDepth, fitsField); some {
				fields[name] = kept
			}
		}
	}
	slices.Sort(omitted)
	text, err := json.Marshal(object)
	if err != nil {
		return nil, cause
	}
	*into = *new(T)
	return omitted, json.Unmarshal(text, into)
}

// prunedDepth is the depth below the fields of spec and status to which values are checked. The kinds are less deep; the limit bounds the
// work that a deeply nested object can cause.
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
