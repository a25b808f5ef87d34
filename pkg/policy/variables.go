package policy

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// variablesOf converts the objects to the form that kubectl shows.
func variablesOf(c RuleInput) (map[string]any, error) {
	request, err := object(c.Request, c.Request == nil)
	if err != nil {
		return nil, err
	}
	token, err := object(c.Token, c.Token == nil)
	if err != nil {
		return nil, err
	}
	cluster, err := object(c.Cluster, c.Cluster == nil)
	if err != nil {
		return nil, err
	}
	complete(request, "spec", "clusterLabels")
	if spec, ok := request["spec"].(map[string]any); ok {
		delete(spec, "clientRandom") // the name of the answer Secret can be computed from it, and an error's message might repeat it
	}
	complete(token, "spec", "labels")
	complete(cluster, "spec")
	return map[string]any{
		variableRequest: orNull(request), variableToken: orNull(token), variableCluster: orNull(cluster),
	}, nil
}

func object(o any, absent bool) (map[string]any, error) {
	if absent {
		return nil, nil
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(o)
}

// complete adds empty maps for absent ones, so that "key" in request.metadata.labels needs no has() before it.
func complete(o map[string]any, path ...string) {
	if o == nil {
		return
	}
	for _, p := range [][]string{{"metadata", "labels"}, {"metadata", "annotations"}, {"spec"}, {"status"}, path} {
		ensure(o, p)
	}
}

func ensure(o map[string]any, path []string) {
	for _, key := range path {
		inner, ok := o[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			o[key] = inner
		}
		o = inner
	}
}

// orNull returns an untyped nil for a nil map, because CEL treats a nil map as empty and not as null.
func orNull(o map[string]any) any {
	if o == nil {
		return nil
	}
	return o
}
