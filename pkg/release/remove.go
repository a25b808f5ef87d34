package release

import (
	"context"
	"errors"
	"fmt"

	"helm.sh/helm/v4/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// removeMarked removes those of the objects that carry the marks of the release.
func (o *operation) removeMarked(objects kube.ResourceList, release string) error {
	o.cluster.release = release
	var marked kube.ResourceList
	for _, info := range objects {
		err := info.Get()
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		accessor, err := meta.Accessor(info.Object)
		if err == nil && accessor.GetAnnotations()[NameAnnotation] != "" && o.cluster.ours(info.Object) {
			marked = append(marked, info)
		}
	}
	if len(marked) == 0 {
		return nil
	}
	_, errs := o.cluster.Client.Delete(marked, metav1.DeletePropagationBackground)
	return errors.Join(errs...)
}

// clear deletes the objects that the API server would refuse to change into what they should be.
func (c *cluster) clear(target kube.ResourceList) error {
	client, err := c.Factory.DynamicClient()
	if err != nil {
		return err
	}
	var stubborn kube.ResourceList
	for _, info := range target {
		object, ok := info.Object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		// The wire ends it, see operation.
		_, err := dryRun(context.Background(), client, Object{Desired: object, Resource: info.Mapping.Resource})
		if apierrors.IsInvalid(err) {
			stubborn = append(stubborn, info)
		}
	}
	if len(stubborn) == 0 {
		return nil
	}
	_, errs := c.Client.Delete(stubborn, metav1.DeletePropagationBackground)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("replacing what cannot be patched: %w", err)
	}
	return nil
}
