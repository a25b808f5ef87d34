package release

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// targeted puts all objects into one namespace, and refuses those that cannot be in one.
type targeted struct {
	namespace string
	mapper    meta.ResettableRESTMapper
}

// Run is called by Helm with all that was rendered.
func (t targeted) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	moved := &bytes.Buffer{}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(rendered, 4096); ; {
		object := map[string]any{}
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return moved, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object) == 0 {
			continue
		}
		if err := t.move(&unstructured.Unstructured{Object: object}); err != nil {
			return nil, err
		}
		document, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(moved, "---\n%s", document)
	}
}

func (t targeted) move(o *unstructured.Unstructured) error {
	if o.IsList() {
		return o.EachListItem(func(item runtime.Object) error { return t.move(item.(*unstructured.Unstructured)) })
	}
	kind := o.GroupVersionKind()
	mapping, err := t.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if unknownKind(err) {
		t.mapper.Reset()
		mapping, err = t.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind.Kind, o.GetName(), err)
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return invalid("%s %s is in no namespace, and the option namespace puts everything into %s; take it out of the Bundle, or use defaultNamespace",
			kind.Kind, o.GetName(), t.namespace)
	}
	o.SetNamespace(t.namespace)
	return nil
}
