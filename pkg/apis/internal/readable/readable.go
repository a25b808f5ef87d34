// Package readable decodes objects that the API server accepts and Go's types do not: for example with a time with a small "t", a number of
// twenty digits, or the interval "often". One such object would prevent a hub from listing its kind. So the kinds that agents and users of
// workspaces write omit values that they cannot decode.
package readable

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"
)

// Unmarshal decodes an object of a type without UnmarshalJSON, and omits the values of its spec and status that the type cannot hold. It
// returns the fields of spec and status with omitted values, such as spec.ttl, or the whole part if that is no object. quantities are the paths
// of the type's fields of type resource.Quantity, such as "status.capacity.*", where "*" stands for each key of a map or, except at the end, each element
// of a list: of these it also omits, without returning them, those that would take minutes and gigabytes to decode.
func Unmarshal[T any](data []byte, into *T, quantities ...string) (omitted []string, err error) {
	cause := errUnbounded
	hasUnbounded := len(quantities) > 0 && hasUnboundedText(data)
	if !hasUnbounded {
		if cause = json.Unmarshal(data, into); cause == nil {
			return nil, nil
		}
	}
	var object map[string]any
	if json.Unmarshal(data, &object) != nil {
		return nil, cause
	}
	if hasUnbounded {
		for _, path := range quantities {
			omitUnbounded(object, strings.Split(path, "."))
		}
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

// unbounded matches a number with more than two digits of exponent, or more than 40 before it. The CustomResourceDefinition of Fleet admits
// such a text as a quantity.
var unbounded = regexp.MustCompile(`^\s*[+-]?(?:[0-9.]{41}|[0-9.]+[eE][+-]?[0-9]{3})`)

var errUnbounded = errors.New("the object may have a quantity that is too large to decode")

// hasUnboundedText reports whether a text in a JSON document begins with such a number. It matches only texts that begin like a number: matching
// all texts would take as long as decoding the object.
func hasUnboundedText(data []byte) bool {
	for {
		quote := bytes.IndexByte(data, '"')
		if quote < 0 || quote+1 == len(data) {
			return false
		}
		data = data[quote+1:]
		if bytes.IndexByte([]byte(" +-.0123456789"), data[0]) >= 0 && unbounded.Match(data) {
			return true
		}
	}
}

// omitUnbounded deletes the values at the end of the path that unbounded matches.
func omitUnbounded(value any, path []string) {
	switch inner := value.(type) {
	case []any:
		for i := range inner {
			if path[0] == "*" && len(path) > 1 {
				omitUnbounded(inner[i], path[1:])
			}
		}
	case map[string]any:
		for name, v := range inner {
			switch text, isText := v.(string); {
			case path[0] != "*" && path[0] != name:
			case len(path) > 1:
				omitUnbounded(v, path[1:])
			case isText && unbounded.MatchString(text):
				delete(inner, name)
			}
		}
	}
}
