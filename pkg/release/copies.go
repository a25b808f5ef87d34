package release

import (
	"context"
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
	"k8s.io/client-go/dynamic"

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

// copiesIn returns a client for Secrets or ConfigMaps.
func copiesIn(client dynamic.Interface, kind, namespace string) dynamic.ResourceInterface {
	resource := secrets
	if kind != "Secret" {
		resource.Resource = "configmaps"
	}
	return client.Resource(resource).Namespace(namespace)
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
		reader, writer := copiesIn(o.client.dynamic, desired.GetKind(), r.Namespace), copiesIn(member, desired.GetKind(), r.Namespace)
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
func copyOwners(o *unstructured.Unstructured) (owners []string) {
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
		client := copiesIn(c.dynamic, kind, namespace)
		list, err := client.List(ctx, metav1.ListOptions{LabelSelector: CopyLabel})
		if err != nil {
			return fmt.Errorf("listing copies in namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			others := copyOwners(o)
			at := slices.Index(others, owner)
			if at < 0 {
				continue
			}
			if others = slices.Delete(others, at, at+1); len(others) == 0 {
				uid := o.GetUID()
				err = client.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
			} else {
				annotations := o.GetAnnotations()
				delete(annotations, copyAnnotation+owner)
				o.SetAnnotations(annotations)
				o.SetLabels(labels.Merge(o.GetLabels(), map[string]string{CopyLabel: others[0]}))
				_, err = client.Update(ctx, o, metav1.UpdateOptions{FieldManager: registration.FieldManager})
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("deleting the copy %s %s/%s: %w", kind, namespace, o.GetName(), err)
			}
		}
	}
	return nil
}
