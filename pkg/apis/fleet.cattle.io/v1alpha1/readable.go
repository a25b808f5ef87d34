package v1alpha1

import "k8s.io/apimachinery/pkg/util/json"

// An API server takes more than Go's types do: a time with a small "t", a number of twenty digits, an interval of "often".
// One object with such a thing in it would keep a hub from reading any of its kind, so those kinds that agents and users of
// workspaces write leave out what they cannot read.

// UnmarshalJSON reads a Cluster without what cannot be read.
func (c *Cluster) UnmarshalJSON(data []byte) error {
	type plain Cluster
	return readable(data, (*plain)(c))
}

// UnmarshalJSON reads a Bundle without what cannot be read.
func (b *Bundle) UnmarshalJSON(data []byte) error {
	type plain Bundle
	return readable(data, (*plain)(b))
}

// UnmarshalJSON reads a BundleDeployment without what cannot be read.
func (d *BundleDeployment) UnmarshalJSON(data []byte) error {
	type plain BundleDeployment
	return readable(data, (*plain)(d))
}

// UnmarshalJSON reads a ClusterGroup without what cannot be read.
func (g *ClusterGroup) UnmarshalJSON(data []byte) error {
	type plain ClusterGroup
	return readable(data, (*plain)(g))
}

// readable decodes an object of a type without UnmarshalJSON.
func readable[T any](data []byte, into *T) error {
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
	for _, part := range []string{"spec", "status"} { // the API server sees to the rest itself
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

// prunedDepth is how deep below spec and status is looked for what cannot be read: deeper than the kinds are, and not as deep
// as somebody could nest what costs a look at each level.
const prunedDepth = 8

// prune returns as much of a value as fits, and whether that is anything. A list fits as a whole or not at all: one that lacks
// an element says something else.
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
