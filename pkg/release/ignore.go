package release

import (
	"encoding/json"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// opIgnore is the operation that keeps a whole object from being compared. JSON patch does not know it.
const opIgnore = "ignore"

// concerns: what a ComparePatch does not name, it does not ask for.
func concerns(p fleet.ComparePatch, o *unstructured.Unstructured) bool {
	matches := func(asked, is string) bool { return asked == "" || asked == is }
	return matches(p.Kind, o.GetKind()) && matches(p.APIVersion, o.GetAPIVersion()) &&
		matches(p.Namespace, o.GetNamespace()) && matches(p.Name, o.GetName())
}

func ignoresAll(o *unstructured.Unstructured, patches []fleet.ComparePatch) bool {
	for _, p := range patches {
		for _, operation := range p.Operations {
			if operation.Op == opIgnore && concerns(p, o) {
				return true
			}
		}
	}
	return false
}

// ignore takes out of an object what is not compared.
func ignore(o *unstructured.Unstructured, patches []fleet.ComparePatch) (map[string]any, error) {
	for _, p := range patches {
		if !concerns(p, o) {
			continue
		}
		changed, err := change(o.Object, operations(p))
		if err != nil {
			return nil, invalid("diff.comparePatches of %s %s: %v", o.GetKind(), o.GetName(), err)
		}
		o.Object = changed
	}
	return o.Object, nil
}

// operations are the ones of a JSON patch.
func operations(p fleet.ComparePatch) (all []map[string]any) {
	for _, pointer := range p.JSONPointers {
		all = append(all, map[string]any{"op": "remove", "path": pointer})
	}
	for _, o := range p.Operations {
		operation := map[string]any{"op": o.Op, "path": o.Path}
		if o.Op != "remove" {
			operation["value"] = value(o.Value)
		}
		all = append(all, operation)
	}
	return all
}

// value is JSON, or else the text itself.
func value(text string) any {
	var parsed any
	if json.Unmarshal([]byte(text), &parsed) != nil {
		return text
	}
	return parsed
}

func change(object map[string]any, operations []map[string]any) (map[string]any, error) {
	document, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	for _, operation := range operations {
		data, err := json.Marshal([]map[string]any{operation})
		if err != nil {
			return nil, err
		}
		patch, err := jsonpatch.DecodePatch(data)
		if err != nil {
			return nil, err
		}
		options := jsonpatch.NewApplyOptions()
		options.AllowMissingPathOnRemove, options.EnsurePathExistsOnAdd = true, true
		document, err = patch.ApplyWithOptions(document, options)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", operation["op"], operation["path"], err)
		}
	}
	changed := map[string]any{}
	return changed, json.Unmarshal(document, &changed)
}
