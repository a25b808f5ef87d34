package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/retry"

	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	// CopyLabel is on a Secret or ConfigMap that an agent copied from the hub, and holds the name of its BundleDeployment. Fleet's own agents set
	// and read it as well.
	CopyLabel = "fleet.cattle.io/bundledeployment"
	// copyAnnotation begins the annotations of a copy: one for each BundleDeployment that needs it, which ends with the name of that.
	copyAnnotation = "copies." + labelPrefix
)

// copiedKinds are the kinds that can be copied.
var copiedKinds = []string{"Secret", "ConfigMap"}

// copiedResource returns the resource of one of copiedKinds.
func copiedResource(kind string) schema.GroupVersionResource {
	resource := secrets
	if kind != "Secret" {
		resource.Resource = "configmaps"
	}
	return resource
}

// writeCopies writes the copies of a request into the namespace of the release. It does not change an object that is not a copy. It
// reads with the client's own identity, because a tenant may lack the right to read Secrets, and writes with the identity of the operation.
func (o *helmAction) writeCopies(ctx context.Context, r Request) error {
	if len(r.Copies) == 0 {
		return nil
	}
	config, err := o.config.RESTClientGetter.ToRESTConfig()
	if err != nil {
		return err
	}
	member, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	owner := r.Labels[DeploymentLabel]
	for _, object := range r.Copies {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return err
		}
		source := &unstructured.Unstructured{Object: fields}
		desired := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": copiedKinds[1]}}
		if secret, isSecret := object.(*corev1.Secret); isSecret {
			if !registration.IsCopiedType(string(secret.Type)) {
				return invalid("downstreamResources names Secret %s of type %s, which is not copied to a member", secret.Name, secret.Type)
			}
			desired.SetKind(copiedKinds[0])
		}
		for _, field := range []string{"data", "binaryData", "type", "immutable"} {
			if value, found := fields[field]; found {
				desired.Object[field] = value
			}
		}
		desired.SetNamespace(r.Namespace)
		desired.SetName(source.GetName())
		desired.SetLabels(labels.Merge(source.GetLabels(), map[string]string{CopyLabel: owner}))
		desired.SetAnnotations(labels.Merge(source.GetAnnotations(), map[string]string{copyAnnotation + owner: labelTrue}))
		resource := copiedResource(desired.GetKind())
		reader, writer := o.client.dynamic.Resource(resource).Namespace(r.Namespace), member.Resource(resource).Namespace(r.Namespace)
		if err := writeCopy(ctx, reader, writer, desired); err != nil {
			return fmt.Errorf("copying %s %s from the hub into namespace %s: %w", desired.GetKind(), desired.GetName(), r.Namespace, err)
		}
	}
	return nil
}

func writeCopy(ctx context.Context, reader, writer dynamic.ResourceInterface, desired *unstructured.Unstructured) error {
	create := metav1.CreateOptions{FieldManager: registration.FieldManager}
	live, err := reader.Get(ctx, desired.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = writer.Create(ctx, desired, create)
		return err
	}
	if err != nil {
		return err
	}
	if live.GetLabels()[CopyLabel] == "" {
		return errors.New("it exists and is not a copy; delete it, or rename the one on the hub")
	}
	annotations := desired.GetAnnotations()
	for _, other := range copyOwners(live) { // other BundleDeployments need it as well
		annotations[copyAnnotation+other] = labelTrue
	}
	desired.SetAnnotations(annotations)
	desired.SetResourceVersion(live.GetResourceVersion())
	same := true
	for _, field := range []string{"data", "binaryData", "type", "immutable"} {
		same = same && equality.Semantic.DeepEqual(live.Object[field], desired.Object[field])
	}
	if same && maps.Equal(live.GetLabels(), desired.GetLabels()) && maps.Equal(live.GetAnnotations(), annotations) {
		return nil
	}
	_, err = writer.Update(ctx, desired, metav1.UpdateOptions{FieldManager: registration.FieldManager})
	if !apierrors.IsInvalid(err) {
		return err
	}
	// The type of a Secret cannot change, nor can any field of an immutable object.
	uid := live.GetUID()
	if err := writer.Delete(ctx, live.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); err != nil {
		return err
	}
	desired.SetResourceVersion("")
	_, err = writer.Create(ctx, desired, create)
	return err
}

// copyOwners returns the BundleDeployments that need a copy. A copy that Fleet's own agent made has only the label.
func copyOwners(o metav1.Object) (owners []string) {
	for key := range o.GetAnnotations() {
		if owner, ok := strings.CutPrefix(key, copyAnnotation); ok {
			owners = append(owners, owner)
		}
	}
	if owner := o.GetLabels()[CopyLabel]; owner != "" && !slices.Contains(owners, owner) {
		owners = append(owners, owner)
	}
	slices.Sort(owners)
	return owners
}

// HasRevisions reports whether a namespace has a revision, of whatever agent, that may need copies with the mark of a BundleDeployment; owner is its name as
// in DeploymentLabel. That is a revision with the same label or, because Fleet's own agent sets no labels, one of the release that has none.
func (c *Client) HasRevisions(ctx context.Context, namespace, release, owner string) (bool, error) {
	for _, selector := range []string{DeploymentLabel + "=" + owner, helmNameLabel + "=" + release + ",!" + DeploymentLabel} {
		list, err := c.meta.Resource(secrets).Namespace(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: helmOwnerLabel + "=helm," + selector, Limit: 1,
		})
		if err != nil {
			return false, fmt.Errorf("listing Helm releases in namespace %s: %w", namespace, err)
		}
		if len(list.Items) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// DeleteCopies deletes the copies of a BundleDeployment in a namespace; owner is its name as in DeploymentLabel. A copy that another BundleDeployment
// needs is assigned to that one.
func (c *Client) DeleteCopies(ctx context.Context, namespace, owner string) error {
	for _, kind := range copiedKinds {
		client := c.meta.Resource(copiedResource(kind)).Namespace(namespace)
		err := eachObject(ctx, client, CopyLabel, func(o *metav1.PartialObjectMetadata) error {
			err := deleteCopy(ctx, client, o, owner)
			if apierrors.IsConflict(err) { // another removal, or a deployment, has changed the owners
				err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
					current, err := client.Get(ctx, o.Name, metav1.GetOptions{})
					if err != nil {
						return err
					}
					return deleteCopy(ctx, client, current, owner)
				})
			}
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("deleting the copies of kind %s in namespace %s: %w", kind, namespace, err)
		}
	}
	return nil
}

// deleteCopy deletes one copy, or assigns it to another owner.
func deleteCopy(ctx context.Context, client metadata.ResourceInterface, o *metav1.PartialObjectMetadata, owner string) error {
	others := copyOwners(o)
	at := slices.Index(others, owner)
	if at < 0 {
		return nil
	}
	if others = slices.Delete(others, at, at+1); len(others) == 0 {
		return client.Delete(ctx, o.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion}})
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": o.ResourceVersion, "labels": map[string]any{CopyLabel: others[0]}, "annotations": map[string]any{copyAnnotation + owner: nil},
	}})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: registration.FieldManager})
	return err
}
