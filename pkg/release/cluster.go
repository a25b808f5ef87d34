package release

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/kube"
	helm "helm.sh/helm/v4/pkg/release/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/client-go/util/retry"

	"github.com/muster-fleet/muster/pkg/registration"
)

// Helm's marks on the objects of a release.
const (
	// ManagedByLabel with the value ManagedByHelm is on all objects of all releases.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedByHelm  = "Helm"
	// NameAnnotation and NamespaceAnnotation name the release of an object.
	NameAnnotation      = "meta.helm.sh/release-name"
	NamespaceAnnotation = registration.HelmNamespaceAnnotation
)

// cluster is Helm's client of the cluster, adapted to an agent, which no person watches.
type cluster struct {
	*kube.Client
	schema *schemaCache
	// removing is the name of the release whose objects are being removed; "" if none are.
	removing string
	// onlyMarked, if set, is the name of the release. Only objects with its annotations, and with the SetHashLabel setHash, are then removed; if setHash
	// is "", with the same label as in the manifest.
	onlyMarked, setHash string
	// keepsLive keeps objects that have Helm's annotation to keep them, as onlyMarked does. Otherwise the annotation in the manifest decides: in those of
	// failed attempts and of revisions that are not signed, it may be missing.
	keepsLive bool
	// keepsUnmarked keeps objects without the marks of a release during a removal. A later revision, which is gone, may have dropped them, and a person may
	// have created objects with their names since.
	keepsUnmarked bool
	// keepCRDs keeps CustomResourceDefinitions: deleting one deletes all objects of its kind, whoever created them.
	keepCRDs bool
	// replace deletes objects that cannot be patched and hold no data, so that they are created again: see replaceableKinds.
	replace bool
	// manager is the field manager of the action; with inherits it takes over the fields of other field managers that agents used before.
	manager  string
	inherits bool
	// removeError is the last error of Delete, and of Build during a removal, which Helm's uninstall action does not pass on.
	removeError error
	// createdKinds are the kinds whose CustomResourceDefinitions the action has created.
	createdKinds []string
}

// Limits of the wait for a new kind: an API server serves it a moment after it has created its CustomResourceDefinition.
const (
	servedPoll    = 100 * time.Millisecond
	servedTimeout = 10 * time.Second
)

// IsReachable sends no request: the first request of the action shows whether the cluster answers.
func (c *cluster) IsReachable() error { return nil }

// Build reads the kinds of the cluster again if a kind is unknown: another release may just have installed it. It waits for the kinds that
// the action itself has installed: Helm does so only if it waits for all objects. During a removal it skips unknown kinds: their
// objects were deleted with the definition, and must not prevent the removal of the rest.
func (c *cluster) Build(reader io.Reader, validate bool) (kube.ResourceList, error) {
	manifest, err := io.ReadAll(reader)
	if err != nil {
		return nil, err
	}
	infos, err := c.Client.Build(bytes.NewReader(manifest), validate)
	if isUnknownKind(err) {
		// The transport of the client ends each request with the context of the action (endingWith). The error of the poll is a timeout, and err
		// says which kind is missing.
		_ = wait.PollUntilContextTimeout(context.Background(), servedPoll, servedTimeout, true, func(context.Context) (bool, error) {
			c.schema.mapper.Reset()
			infos, err = c.Client.Build(bytes.NewReader(manifest), validate)
			return !c.hasCreatedKind(err), nil
		})
	}
	if failed := c.schema.failure(); failed != nil && err != nil {
		err = failed
	}
	if c.removing != "" {
		c.removeError = utilerrors.FilterOut(err, isUnknownKind)
		return infos, c.removeError
	}
	return infos, err
}

// isUnknownKind checks the text as well, because the library that reads manifests does not wrap the cause.
func isUnknownKind(err error) bool {
	return meta.IsNoMatchError(err) || err != nil && strings.Contains(err.Error(), "no matches for kind ")
}

// hasCreatedKind reports whether the unknown kind of the error is one that the action has created.
func (c *cluster) hasCreatedKind(err error) bool {
	return isUnknownKind(err) && slices.ContainsFunc(c.createdKinds, func(kind string) bool {
		return strings.Contains(err.Error(), fmt.Sprintf("no matches for kind %q ", kind))
	})
}

// Create notes the kinds that it has created.
func (c *cluster) Create(resources kube.ResourceList, options ...kube.ClientCreateOption) (*kube.Result, error) {
	created, err := c.Client.Create(resources, options...)
	if err != nil {
		return created, err
	}
	for _, info := range resources.Filter(isCRD) {
		if definition, ok := info.Object.(*unstructured.Unstructured); ok {
			kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
			c.createdKinds = append(c.createdKinds, kind)
		}
	}
	return created, nil
}

// Delete skips objects that another release has adopted. Helm would delete them, because it deletes what the stored manifest names.
func (c *cluster) Delete(resources kube.ResourceList, policy metav1.DeletionPropagation) (*kube.Result, []error) {
	// Outside of a removal, Helm's choice counts. During a removal, an object without marks is deleted too, unless only marked ones may be. Hooks have
	// no marks.
	ours, err := c.deletable(resources, c.removing, func(desired runtime.Object, name string) bool {
		return c.removing == "" || name == "" && c.onlyMarked == "" && (!c.keepsUnmarked || isHook(desired))
	})
	if err != nil {
		c.removeError = err
		return nil, []error{err}
	}
	if len(ours) == 0 {
		return &kube.Result{}, nil
	}
	errs := c.deleteAll(ours, policy)
	c.removeError = errors.Join(errs...)
	if len(errs) > 0 {
		return nil, errs
	}
	return &kube.Result{Deleted: ours}, nil
}

// deleteAtOnce is how many objects deleteAll deletes at the same time.
const deleteAtOnce = 10

// deleteAll deletes objects. Helm would delete all that follow each other and have the same kind at the same time.
func (c *cluster) deleteAll(resources kube.ResourceList, policy metav1.DeletionPropagation) (errs []error) {
	for batch := range slices.Chunk(resources, deleteAtOnce) {
		_, more := c.Client.Delete(batch, policy)
		for _, err := range more {
			errs = append(errs, shortened(err))
		}
	}
	return errs
}

// deleteMarked deletes the objects that have the marks of the release.
func (c *cluster) deleteMarked(resources kube.ResourceList, release string) error {
	c.removing, c.keepsLive = release, true
	marked, err := c.deletable(resources, release, func(runtime.Object, string) bool { return false })
	if err != nil || len(marked) == 0 {
		return err
	}
	return errors.Join(c.deleteAll(marked, metav1.DeletePropagationBackground)...)
}

// deletable reads the objects and returns those that may be deleted: they exist, and either have the marks of the release or are accepted by the
// function, which gets the object of the manifest, and the name of the release in the marks of the one that exists. It keeps none of the objects that
// it has read: they are as large as the cluster likes.
func (c *cluster) deletable(
	resources kube.ResourceList, release string, accept func(desired runtime.Object, name string) bool,
) (found kube.ResourceList, err error) {
	for _, info := range resources {
		desired := info.Object
		if err := info.Get(); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		live := info.Object
		info.Object = desired
		if c.onlyMarked != "" && objectSetHash(live) != cmp.Or(c.setHash, objectSetHash(desired)) {
			continue
		}
		if c.keepCRDs && isCRD(info) || (c.keepsLive || c.onlyMarked != "") && isKept(live) {
			continue
		}
		name, namespace := marksOf(live)
		if name == release && namespace == c.Namespace || accept(desired, name) {
			found = append(found, info)
		}
	}
	return found, nil
}

// objectSetHash returns the SetHashLabel of an object; "" if it has none.
func objectSetHash(object runtime.Object) string {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return ""
	}
	return accessor.GetLabels()[SetHashLabel]
}

// isHook reports whether an object of a manifest is a hook of Helm's.
func isHook(object runtime.Object) bool {
	accessor, err := meta.Accessor(object)
	return err == nil && accessor.GetAnnotations()[helm.HookAnnotation] != ""
}

// isKept reports whether an object has Helm's annotation to keep it.
func isKept(object runtime.Object) bool {
	accessor, err := meta.Accessor(object)
	return err == nil && accessor.GetAnnotations()[kube.ResourcePolicyAnno] == kube.KeepPolicy
}

// marksOf returns the release that an object is marked with; "" if it has no mark.
func marksOf(object runtime.Object) (name, namespace string) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", ""
	}
	annotations := accessor.GetAnnotations()
	return annotations[NameAnnotation], annotations[NamespaceAnnotation]
}

// Update first takes over the fields of other field managers, with inherits, and then, with replace, deletes objects that cannot be patched.
// With keepCRDs it keeps CustomResourceDefinitions that the target no longer contains. With onlyMarked, it deletes only marked objects that the
// target no longer contains. It never moves the fields that a client-side update owns to server-side apply: Helm would look for the fields of
// the field manager in its package variable, see fieldManager.
func (c *cluster) Update(original, target kube.ResourceList, options ...kube.ClientUpdateOption) (*kube.Result, error) {
	if c.inherits {
		if err := c.inheritFields(target); err != nil {
			return &kube.Result{}, err
		}
	}
	if c.replace {
		if err := c.deleteUnpatchable(target); err != nil {
			return &kube.Result{}, err
		}
	}
	if c.keepCRDs {
		original = original.Filter(func(info *resource.Info) bool { return !isCRD(info) || target.Get(info) != nil })
	}
	if c.onlyMarked != "" {
		removed := original.Filter(func(info *resource.Info) bool { return target.Get(info) == nil })
		marked, err := c.deletable(removed, c.onlyMarked, func(runtime.Object, string) bool { return false })
		if err != nil {
			return &kube.Result{}, err
		}
		original = append(original.Filter(func(info *resource.Info) bool { return target.Get(info) != nil }), marked...)
	}
	return c.Client.Update(original, target, append(options, kube.ClientUpdateOptionUpgradeClientSideFieldManager(false))...)
}

// inheritFields gives the fields that other field managers of agents own to the field manager of the action, on the objects that exist. The API
// server removes a field that the target no longer has only if no other manager owns it.
func (c *cluster) inheritFields(target kube.ResourceList) error {
	dynamicClient, err := c.Factory.DynamicClient()
	if err != nil {
		return err
	}
	for _, info := range target {
		client := dynamicClient.Resource(info.Mapping.Resource).Namespace(info.Namespace)
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			// The transport of the client ends each request with the context of the action (endingWith).
			live, err := client.Get(context.Background(), info.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			fields, inherited := live.GetManagedFields(), sets.New[string]()
			for i, f := range fields {
				isAgent := f.Manager == objectManager || f.Manager == registration.FieldManager && f.Operation == metav1.ManagedFieldsOperationApply
				if isAgent && f.Subresource == "" && (f.Manager != c.manager || f.Operation != metav1.ManagedFieldsOperationApply) {
					fields[i].Manager, fields[i].Operation = fmt.Sprint("inherited-", i), metav1.ManagedFieldsOperationUpdate
					inherited.Insert(fields[i].Manager)
				}
			}
			live.SetManagedFields(fields)
			patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, inherited, c.manager)
			if err != nil || patch == nil {
				return err
			}
			_, err = client.Patch(context.Background(), info.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
			return err
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("taking over the fields of %s: %w", info.ObjectName(), err)
		}
	}
	return nil
}

// replaceableKinds are the kinds whose objects hold no data: from the same manifest, their controllers make the same Pods again. A StatefulSet is not
// among them, because its deletion may delete the PersistentVolumeClaims of its Pods.
var replaceableKinds = []schema.GroupKind{
	{Group: appsv1.GroupName, Kind: "Deployment"},
	{Group: appsv1.GroupName, Kind: "DaemonSet"},
	{Group: appsv1.GroupName, Kind: "ReplicaSet"},
	{Group: batchv1.GroupName, Kind: "CronJob"},
	{Group: batchv1.GroupName, Kind: "Job"},
}

// deleteUnpatchable deletes the objects of replaceableKinds that the API server refuses to change into the target, but would create: they have
// another value in an immutable field. It keeps an object whose target is invalid, and an object that Helm would keep, because of its annotation
// helm.sh/resource-policy: the update then returns the error.
func (c *cluster) deleteUnpatchable(target kube.ResourceList) error {
	client, err := c.Factory.DynamicClient()
	if err != nil {
		return err
	}
	var unpatchable kube.ResourceList
	for _, info := range target {
		object, ok := info.Object.(*unstructured.Unstructured)
		if !ok || !slices.Contains(replaceableKinds, info.Mapping.GroupVersionKind.GroupKind()) || isKept(object) {
			continue
		}
		objects := client.Resource(info.Mapping.Resource).Namespace(info.Namespace)
		// The transport of the client ends each request with the context of the action (endingWith).
		_, err := applyDryRun(context.Background(), client, Object{Desired: object, Manager: c.manager, Resource: info.Mapping.Resource})
		if !apierrors.IsInvalid(err) {
			continue
		}
		if live, err := objects.Get(context.Background(), info.Name, metav1.GetOptions{}); err != nil || isKept(live) {
			continue
		}
		renamed := object.DeepCopy() // the name is taken
		renamed.SetName("")
		renamed.SetGenerateName("replacement-")
		_, err = objects.Create(context.Background(), renamed, metav1.CreateOptions{FieldManager: c.manager, DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			unpatchable = append(unpatchable, info)
		}
	}
	if len(unpatchable) == 0 {
		return nil
	}
	if err := errors.Join(c.deleteAll(unpatchable, metav1.DeletePropagationBackground)...); err != nil {
		return fmt.Errorf("replacing objects that cannot be patched: %w", err)
	}
	return nil
}

func isCRD(info *resource.Info) bool { return info.Mapping.GroupVersionKind.GroupKind() == crdKind }

var crdKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition").GroupKind()
