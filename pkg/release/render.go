package release

import (
	"bytes"
	"fmt"
	"slices"

	"helm.sh/helm/v4/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/resource"
)

// renderedManifests changes what a chart rendered, before Helm writes anything.
type renderedManifests struct {
	request Request
	source  chartSource
	cluster *cluster
	// deployed are the objects that the release has already; nil before its installation.
	deployed kube.ResourceList
	// adopts is true if an object that belongs to no release becomes an object of this release.
	adopts bool
}

// Run adds the plain manifests, runs kustomize, marks the objects and moves them to the target namespace. It returns an error for objects
// that the release may not adopt. It then notes in the chart that the deployment has written nothing: the templates do not see that, but Helm stores it
// with the revision before it writes an object.
func (p renderedManifests) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	objects, err := p.source.complete(rendered.Bytes())
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if err := p.change(o); err != nil {
			return nil, err
		}
	}
	if p.cluster.outdated != "" {
		if err := p.checkKinds(objects); err != nil {
			return nil, err
		}
	}
	manifests, err := encodeObjects(objects)
	if err == nil && (p.adopts || len(p.request.Predecessors) > 0) && !p.request.helm().TakeOwnership {
		err = p.checkObjectOwners(manifests.Bytes())
	}
	if l := p.cluster.ledger; l != nil { // the deployment does not only compare
		l.annotations[adoptedAnnotation] = nothingWritten
	}
	return manifests, err
}

// checkKinds refuses objects of unknown kinds. Helm builds them again, and Build skips unknown kinds if they are the same as in the last revision.
func (p renderedManifests) checkKinds(objects []*unstructured.Unstructured) error {
	manifest, err := encodeObjects(slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return isHook(o) }))
	if err != nil {
		return err
	}
	_, err = p.cluster.Build(manifest, false)
	return err
}

// change marks an object with its BundleDeployment and puts it into the target namespace, if there is one. A CustomResourceDefinition gets
// Helm's annotation "keep" unless the options allow its deletion.
func (p renderedManifests) change(o *unstructured.Unstructured) error {
	if p.request.BundleDeployment != "" {
		markObject(o, p.request.BundleDeployment, p.request.Scope)
	}
	kind := o.GroupVersionKind()
	if kind.GroupKind() == crdKind && !p.request.Options.DeleteCRDResources {
		o.SetAnnotations(labels.Merge(o.GetAnnotations(), map[string]string{kube.ResourcePolicyAnno: kube.KeepPolicy}))
	}
	if p.request.Options.TargetNamespace == "" {
		return nil
	}
	mapping, err := p.cluster.schema.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if isUnknownKind(err) {
		p.cluster.schema.mapper.Reset()
		mapping, err = p.cluster.schema.mapper.RESTMapping(kind.GroupKind(), kind.Version)
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

// checkObjectOwners refuses objects that this release does not have yet, but that exist and belong to another release, or to none unless they are adopted. It accepts objects of
// this release and of the releases that it replaces. Helm itself adopts all existing objects or none. Fleet's own agent adopts all of them
// on an upgrade; then two releases have the object, and the removal of either of them deletes it. Hooks have no marks; their annotations
// define whether they are replaced.
func (p renderedManifests) checkObjectOwners(manifests []byte) error {
	infos, err := p.cluster.Build(bytes.NewReader(manifests), false)
	if err != nil {
		return err
	}
	return infos.Visit(func(info *resource.Info, err error) error {
		if err != nil {
			return err
		}
		if p.deployed.Contains(info) {
			return nil
		}
		if isHook(info.Object) {
			return nil
		}
		if err := info.Get(); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		name, namespace := marksOf(info.Object)
		if p.request.owns(name, namespace) || p.adopts && name == "" {
			return nil
		}
		owner := "no release"
		if name != "" {
			owner = fmt.Sprintf("Helm release %s/%s", namespace, name)
		}
		return fmt.Errorf("%s exists and cannot be imported into the current release: it belongs to %s; remove it there, or set helm.takeOwnership to take it over",
			info.ObjectName(), owner)
	})
}
