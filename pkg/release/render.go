package release

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"helm.sh/helm/v4/pkg/postrenderer"
	helm "helm.sh/helm/v4/pkg/release/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/yaml"
)

// postRenderer returns what Helm calls with the rendered manifests before it writes anything; nil if nothing is needed.
func (o *operation) postRenderer(r Request) postrenderer.PostRenderer {
	if r.Options.TargetNamespace == "" && (len(r.HandOver) == 0 || r.helm().TakeOwnership) {
		return nil
	}
	return rendered{r, o.cluster}
}

type rendered struct {
	request Request
	cluster *cluster
}

// Run moves the objects to the target namespace, and refuses those that the release may not take over.
func (p rendered) Run(manifests *bytes.Buffer) (*bytes.Buffer, error) {
	if p.request.Options.TargetNamespace != "" {
		var err error
		if manifests, err = p.moveAll(manifests); err != nil {
			return nil, err
		}
	}
	if len(p.request.HandOver) > 0 && !p.request.helm().TakeOwnership {
		return manifests, p.checkOwners(manifests.Bytes())
	}
	return manifests, nil
}

// moveAll puts all objects into the target namespace.
func (p rendered) moveAll(manifests *bytes.Buffer) (*bytes.Buffer, error) {
	moved := &bytes.Buffer{}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(manifests, 4096); ; {
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
		if err := p.move(&unstructured.Unstructured{Object: object}); err != nil {
			return nil, err
		}
		document, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(moved, "---\n%s", document)
	}
}

func (p rendered) move(o *unstructured.Unstructured) error {
	if o.IsList() {
		return o.EachListItem(func(item runtime.Object) error { return p.move(item.(*unstructured.Unstructured)) })
	}
	kind := o.GroupVersionKind()
	mapping, err := p.cluster.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if isUnknownKind(err) {
		p.cluster.mapper.Reset()
		mapping, err = p.cluster.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind.Kind, o.GetName(), err)
	}
	namespace := p.request.Options.TargetNamespace
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return invalid("%s %s is cluster-scoped, and the option namespace puts everything into namespace %s; take it out of the Bundle, or use defaultNamespace",
			kind.Kind, o.GetName(), namespace)
	}
	o.SetNamespace(namespace)
	return nil
}

// checkOwners refuses objects that exist and belong neither to this release nor to those that hand over to it. Helm itself
// adopts all existing objects or none. Hooks carry no marks; their annotations say whether they are replaced.
func (p rendered) checkOwners(manifests []byte) error {
	infos, err := p.cluster.Build(bytes.NewReader(manifests), false)
	if err != nil {
		return err
	}
	return infos.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		if accessor, err := meta.Accessor(info.Object); err == nil && accessor.GetAnnotations()[helm.HookAnnotation] != "" {
			return nil
		}
		if err := info.Get(); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		name, namespace := marksOf(info.Object)
		isOwner := func(f Found) bool { return f.Namespace == namespace && f.Name == name }
		if isOwner(Found{Namespace: p.request.Namespace, Name: p.request.Name}) || slices.ContainsFunc(p.request.HandOver, isOwner) {
			return nil
		}
		return fmt.Errorf("%s exists and cannot be imported into the current release: it does not belong to an older release of the same "+
			"BundleDeployment; set helm.takeOwnership to take it over", info.ObjectName())
	})
}
