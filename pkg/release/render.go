package release

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/postrenderer"
	helm "helm.sh/helm/v4/pkg/release/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/yaml"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// postRenderer returns what Helm calls with the rendered manifests before it writes anything; nil if nothing is needed.
func (o *operation) postRenderer(r Request) postrenderer.PostRenderer {
	// A template that computes its kind is not found here; cluster.keepCRDs protects its CustomResourceDefinitions all the same.
	mayHaveCRDs := !r.Options.DeleteCRDResources && slices.ContainsFunc(r.Resources, func(r fleet.BundleResource) bool {
		return strings.Contains(r.Content, "CustomResourceDefinition")
	})
	if r.Options.TargetNamespace == "" && !mayHaveCRDs && (len(r.HandOver) == 0 || r.helm().TakeOwnership) {
		return nil
	}
	return renderedManifests{r, o.cluster}
}

type renderedManifests struct {
	request Request
	cluster *cluster
}

// Run marks CustomResourceDefinitions to be kept, moves the objects to the target namespace, and refuses those that the release
// may not take over.
func (p renderedManifests) Run(manifests *bytes.Buffer) (*bytes.Buffer, error) {
	hasCRDs := !p.request.Options.DeleteCRDResources && bytes.Contains(manifests.Bytes(), []byte("CustomResourceDefinition"))
	if hasCRDs || p.request.Options.TargetNamespace != "" {
		var err error
		if manifests, err = p.changeAll(manifests); err != nil {
			return nil, err
		}
	}
	if len(p.request.HandOver) > 0 && !p.request.helm().TakeOwnership {
		return manifests, p.checkOwners(manifests.Bytes())
	}
	return manifests, nil
}

func (p renderedManifests) changeAll(manifests *bytes.Buffer) (*bytes.Buffer, error) {
	changed := &bytes.Buffer{}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(manifests, 4096); ; {
		object := map[string]any{}
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return changed, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object) == 0 {
			continue
		}
		if err := p.change(&unstructured.Unstructured{Object: object}); err != nil {
			return nil, err
		}
		document, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(changed, "---\n%s", document)
	}
}

// change marks a CustomResourceDefinition with Helm's annotation to keep it, unless the options allow its deletion, and puts the
// object into the target namespace, if there is one.
func (p renderedManifests) change(o *unstructured.Unstructured) error {
	if o.IsList() {
		return o.EachListItem(func(item runtime.Object) error { return p.change(item.(*unstructured.Unstructured)) })
	}
	kind := o.GroupVersionKind()
	if kind.Group == apiextensionsv1.GroupName && kind.Kind == "CustomResourceDefinition" && !p.request.Options.DeleteCRDResources {
		o.SetAnnotations(labels.Merge(o.GetAnnotations(), map[string]string{kube.ResourcePolicyAnno: kube.KeepPolicy}))
	}
	if p.request.Options.TargetNamespace == "" {
		return nil
	}
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
func (p renderedManifests) checkOwners(manifests []byte) error {
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
