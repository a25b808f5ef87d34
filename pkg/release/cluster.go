package release

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
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
	// release is the name of the release, and Namespace its namespace.
	release string
	// history has the revisions of the release.
	history *historySecrets
	// owns reports whether the marks are those of the release, or of one that it replaces; nil if the action only removes. With takesOwnership, Update also
	// changes the objects of other releases.
	owns           func(name, namespace string) bool
	takesOwnership bool
	// removing is whether the objects of the release are being removed.
	removing bool
	// onlyMarked is whether the manifest is not trusted: it may name objects that its author may not delete. Only objects with the SetHashLabel setHash are then deleted; if
	// setHash is "", with the same label as in the manifest. A removal then deletes no hooks.
	onlyMarked bool
	setHash    string
	// keepsLive makes a removal keep objects that have Helm's annotation to keep them, as onlyMarked does. Otherwise the annotation in the manifest decides:
	// in those of failed attempts and of revisions that are not signed, it may be missing.
	keepsLive bool
	// ledger says which objects belong to the release: no others are deleted. If it is nil, the manifest and the marks decide.
	ledger *ledger
	// kept describes objects of the manifest that were not deleted because they do not have the marks of the release, or because the deployment
	// may not read them, at most maxKept.
	kept   []string
	keptMu sync.Mutex
	// deleted are the objects that Delete has deleted, so that Helm may wait until they are gone.
	deleted kube.ResourceList
	// replaced are the objects of the failed revision that an installation replaces. Update treats them as those of the revision that an upgrade starts from.
	replaced kube.ResourceList
	// keepCRDs keeps CustomResourceDefinitions: deleting one deletes all objects of its kind, whoever created them.
	keepCRDs bool
	// replace deletes objects that cannot be patched and hold no data, so that they are created again: see replaceableKinds.
	replace bool
	// manager is the field manager of the action; with inherits it takes over the fields of other field managers that agents used before.
	manager  string
	inherits bool
	// removeError is the last error of Delete, and of Build during a removal, which Helm's uninstall action does not pass on.
	removeError error
	// outdated is the manifest of the revision that an upgrade starts from if the cluster no longer serves one of its kinds; "" otherwise.
	outdated string
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

// Build builds the objects of a manifest. During a removal, and in the outdated manifest, it builds what buildServed builds.
func (c *cluster) Build(reader io.Reader, validate bool) (kube.ResourceList, error) {
	manifest, err := io.ReadAll(reader)
	if err != nil {
		return nil, err
	}
	infos, err := c.build(manifest, validate)
	if isUnknownKind(err) && (c.removing || string(manifest) == c.outdated) {
		infos, err = c.buildServed(manifest, unknownKinds(err))
	}
	if c.removing {
		c.removeError = err
	}
	return infos, err
}

// build reads the kinds of the cluster again if a kind is unknown: another release may just have installed it. It waits for the kinds that
// the action itself has installed: Helm does so only if it waits for all objects.
func (c *cluster) build(manifest []byte, validate bool) (kube.ResourceList, error) {
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
	return infos, err
}

// buildEarlier builds the objects of an earlier revision, and reports whether the cluster no longer serves one of its kinds.
func (c *cluster) buildEarlier(manifest string) (infos kube.ResourceList, isOutdated bool, err error) {
	infos, err = c.build([]byte(manifest), false)
	if isOutdated = isUnknownKind(err); isOutdated {
		infos, err = c.buildServed([]byte(manifest), unknownKinds(err))
	}
	return infos, isOutdated, err
}

// buildServed builds the objects of an earlier manifest. Objects of the unknown kinds get a version that the cluster serves. If it serves none, it skips
// them: they were deleted with the definition, and must not prevent the removal or the upgrade of the rest.
func (c *cluster) buildServed(manifest []byte, unknown []schema.GroupVersionKind) (kube.ResourceList, error) {
	versions := map[schema.GroupKind]string{}
	for _, kind := range unknown {
		if _, isAsked := versions[kind.GroupKind()]; isAsked {
			continue
		}
		version, err := c.servedVersion(kind)
		if err != nil {
			return nil, err
		}
		versions[kind.GroupKind()] = version
	}
	objects, err := decodeObjects(manifest)
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		kind := o.GroupVersionKind().GroupKind()
		version, isUnknown := versions[kind]
		if version != "" {
			o.SetGroupVersionKind(kind.WithVersion(version))
		}
		return isUnknown && version == ""
	})
	served, err := encodeObjects(objects)
	if err != nil {
		return nil, err
	}
	return c.Client.Build(served, false)
}

// servedVersion returns another version in which the cluster serves a kind; "" if it serves none.
func (c *cluster) servedVersion(kind schema.GroupVersionKind) (string, error) {
	client, err := c.Factory.KubernetesClientSet()
	if err != nil {
		return "", err
	}
	version, err := servedVersion(client.Discovery(), kind.GroupKind())
	if err == nil && version == kind.Version { // its API server did not answer before
		err = apierrors.NewServiceUnavailable(fmt.Sprintf("kind %s of %s was unavailable", kind.Kind, kind.GroupVersion()))
	}
	return version, err
}

// hasCreatedKind reports whether one of the unknown kinds of the error is one that the action has created.
func (c *cluster) hasCreatedKind(err error) bool {
	return slices.ContainsFunc(unknownKinds(err), func(kind schema.GroupVersionKind) bool { return slices.Contains(c.createdKinds, kind.Kind) })
}

// Create leaves CustomResourceDefinitions of the folder crds of a chart as they are if they exist, as Helm does without server-side apply: several charts
// may bring the same one in different versions. It refuses a hook that has the name of an object of another release: all releases have one field manager, so
// it would change that object, and the end of the hook delete it. A removal goes on without that hook. It notes the kinds that it has created.
func (c *cluster) Create(resources kube.ResourceList, options ...kube.ClientCreateOption) (*kube.Result, error) {
	var missing kube.ResourceList
	for _, info := range resources {
		if c.isDeploying() && !isHook(info.Object) { // Helm has found no object of the release that exists
			if len(c.replaced) > 0 { // none of the new objects exists, but those of the failed revision may have to be deleted
				return c.Update(nil, resources, kube.ClientUpdateOptionServerSideApply(true, true))
			}
			if err := c.ledger.note(resources, map[string]string{}); err != nil {
				return nil, err
			}
			missing = resources
			break
		}
		live := *info
		err := live.Get()
		name, namespace := marksOf(live.Object)
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err) && isHook(info.Object): // an apply needs other rights
			missing = append(missing, info)
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", info.ObjectName(), err)
		case isHook(info.Object) && c.isOfOther(name, namespace) && !c.isReplaced(name, namespace):
			if c.removing {
				c.noteKept(info, fmt.Sprintf("which has the name of a hook and belongs to Helm release %s/%s", namespace, name))
				continue
			}
			return nil, fmt.Errorf("hook %s has the name of an object of Helm release %s/%s: rename the hook, or move the release to another namespace",
				info.ObjectName(), namespace, name)
		case isHook(info.Object):
			missing = append(missing, info)
		}
	}
	created := &kube.Result{}
	if len(missing) > 0 {
		var err error
		if created, err = c.Client.Create(missing, options...); err != nil {
			return created, err
		}
	}
	for _, info := range resources.Filter(isCRD) {
		if definition, ok := info.Object.(*unstructured.Unstructured); ok {
			kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
			c.createdKinds = append(c.createdKinds, kind)
		}
	}
	return created, nil
}

// Delete deletes what remove deletes. Helm would delete whatever has the names of the manifest.
func (c *cluster) Delete(resources kube.ResourceList, policy metav1.DeletionPropagation) (*kube.Result, []error) {
	deleted, errs := c.remove(resources, policy)
	c.deleted, c.removeError = append(c.deleted, deleted...), errors.Join(errs...)
	if len(errs) > 0 {
		return nil, errs
	}
	return &kube.Result{Deleted: deleted}, nil
}

// GetWaiterWithOptions returns a waiter that waits for the deletion of the objects that Delete has deleted. Helm's would wait for all objects of the
// manifest, and an uninstallation would wait until its timeout for those that stay.
func (c *cluster) GetWaiterWithOptions(strategy kube.WaitStrategy, options ...kube.WaitOption) (kube.Waiter, error) {
	all, err := c.Client.GetWaiterWithOptions(strategy, options...)
	return deletionWaiter{all, c}, err
}

// GetWaiter is GetWaiterWithOptions without options.
func (c *cluster) GetWaiter(strategy kube.WaitStrategy) (kube.Waiter, error) {
	return c.GetWaiterWithOptions(strategy)
}

type deletionWaiter struct {
	kube.Waiter
	cluster *cluster
}

// WaitForDelete waits for those of the objects that Delete has deleted.
func (w deletionWaiter) WaitForDelete(resources kube.ResourceList, timeout time.Duration) error {
	return w.Waiter.WaitForDelete(resources.Intersect(w.cluster.deleted), timeout)
}

// deleteMarked deletes the objects that have the marks of the release.
func (c *cluster) deleteMarked(resources kube.ResourceList) error {
	c.removing, c.keepsLive = true, true
	_, errs := c.remove(resources, metav1.DeletePropagationBackground)
	return errors.Join(errs...)
}

// removable is an object of a manifest that may be deleted, and what identifies its state when that was decided.
type removable struct {
	*resource.Info
	uid     types.UID
	version string
	// marks are the marks that the object gets back instead, as in ledger.adopted; "" if it is deleted.
	marks string
}

// remove deletes those of the objects that may be deleted, see read, and returns them. Before it changes the first one, it has read all.
func (c *cluster) remove(resources kube.ResourceList, policy metav1.DeletionPropagation) (deleted kube.ResourceList, errs []error) {
	var ours []removable
	for _, info := range resources {
		switch o, err := c.read(info); {
		case err != nil:
			return nil, []error{err}
		case o != nil:
			ours = append(ours, *o)
			if o.marks == "" {
				deleted = append(deleted, info)
			}
		}
	}
	return deleted, c.deleteAll(ours, policy)
}

// deleteAtOnce is how many objects deleteAll deletes at the same time.
const deleteAtOnce = 10

// deleteAll deletes objects. As with Helm, those of one kind are gone before those of the next kind are deleted.
func (c *cluster) deleteAll(objects []removable, policy metav1.DeletionPropagation) (errs []error) {
	for len(objects) > 0 {
		n := 1
		for n < min(len(objects), deleteAtOnce) && objects[n].Mapping.GroupVersionKind == objects[0].Mapping.GroupVersionKind {
			n++
		}
		failures := make([]error, n)
		var running sync.WaitGroup
		for i, o := range objects[:n] {
			running.Go(func() { failures[i] = c.delete(o, policy) })
		}
		running.Wait()
		for _, err := range failures {
			if err != nil {
				errs = append(errs, shortened(err))
			}
		}
		objects = objects[n:]
	}
	return errs
}

// delete deletes an object as it was read, or restores its marks. If it has changed since, another release may have adopted it, or a person may have created another one with
// its name: it is then read again.
func (c *cluster) delete(o removable, policy metav1.DeletionPropagation) error {
	current := &o
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if current == nil {
			if current, err = c.read(o.Info); err != nil || current == nil {
				return err
			}
		}
		read := current
		current = nil
		if read.marks != "" {
			return c.restoreMarks(read)
		}
		_, err = resource.NewHelper(o.Client, o.Mapping).DeleteWithOptions(o.Namespace, o.Name, &metav1.DeleteOptions{
			PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &read.uid, ResourceVersion: &read.version},
		})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// read reads an object and returns it if it may be deleted: it has the marks of the release. An object of another release stays, because that one has
// adopted it. An object without marks stays, because a person may have created it since: it may have been missing, or a later revision, which is gone,
// may have dropped it. Hooks get no marks: their annotations define whether what has their names is deleted. The result does not contain
// the object that was read, which is as large as the cluster likes.
func (c *cluster) read(info *resource.Info) (*removable, error) {
	desired := info.Object
	err := info.Get()
	if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) { // of the kind, not of the object
		kind := info.Mapping.GroupVersionKind
		version, err := c.servedVersion(kind)
		if err == nil && version != "" {
			c.schema.mapper.Reset() // the next attempt builds objects of another version
			err = apierrors.NewServiceUnavailable(fmt.Sprintf("kind %s is no longer served in version %s", kind.Kind, kind.GroupVersion()))
		}
		return nil, err
	}
	live := info.Object
	info.Object = desired
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case !c.removing && apierrors.IsForbidden(err): // an upgrade leaves it, as with Helm
		c.noteKept(info, "which the deployment may not read")
		return nil, nil
	case err != nil:
		return nil, err
	}
	accessor, err := meta.Accessor(live)
	if err != nil {
		return nil, err
	}
	name, namespace := marksOf(live)
	respectsLive := c.keepsLive || c.onlyMarked || !c.removing && !isHook(desired)
	isOwned := c.ledger == nil || c.ledger.owns(info) || isHook(desired)
	found := &removable{Info: info, uid: accessor.GetUID(), version: accessor.GetResourceVersion()}
	switch {
	case isOwned && (c.keepCRDs && isCRD(info) || respectsLive && isKept(live)):
		return nil, nil
	case name == "" && (!isHook(desired) || c.removing && c.onlyMarked):
		c.noteKept(info, "which belongs to no Helm release")
		return nil, nil
	case c.isOfOther(name, namespace):
		c.noteKept(info, fmt.Sprintf("which belongs to Helm release %s/%s", namespace, name))
		return nil, nil
	case c.onlyMarked && objectSetHash(live) != cmp.Or(c.setHash, objectSetHash(desired)):
		c.noteKept(info, "which does not belong to the BundleDeployment")
		return nil, nil
	case !isOwned:
		c.noteKept(info, "which existed, or may have existed, before a failed deployment")
		found.marks = c.ledger.adopted[objectKey(info)]
		if found.marks == "" || found.marks == namespace+"/"+name {
			return nil, nil
		}
	}
	return found, nil
}

// restoreMarks gives an object that a failed deployment has adopted the marks that it had before. With those of this release, the release that it was taken
// from would leave it as it is. If the cluster refuses that, for example by a policy, the object keeps these marks: the same request would fail each time,
// and the action would never end.
func (c *cluster) restoreMarks(o *removable) error {
	annotations := map[string]any{NameAnnotation: nil, NamespaceAnnotation: nil}
	if namespace, name, _ := strings.Cut(o.marks, "/"); name != "" {
		annotations = map[string]any{NameAnnotation: name, NamespaceAnnotation: namespace}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.uid, "resourceVersion": o.version, "annotations": annotations}})
	if err != nil {
		return err
	}
	_, err = resource.NewHelper(o.Client, o.Mapping).WithFieldManager(objectManager).Patch(o.Namespace, o.Name, types.MergePatchType, patch, nil)
	if isRefused(err) || apierrors.IsForbidden(err) {
		return nil
	}
	return err
}

// maxKept is how many objects noteKept describes.
const maxKept = 20

func (c *cluster) noteKept(info *resource.Info, why string) {
	c.keptMu.Lock()
	defer c.keptMu.Unlock()
	object := fmt.Sprintf("%s %s, ", info.Mapping.GroupVersionKind.Kind, cache.NewObjectName(info.Namespace, info.Name))
	isNoted := slices.ContainsFunc(c.kept, func(kept string) bool { return strings.HasPrefix(kept, object) }) // of another revision
	if len(c.kept) < maxKept && !isNoted {
		c.kept = append(c.kept, object+why)
	}
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

// isOfOther reports whether the marks of an object name another release.
func (c *cluster) isOfOther(name, namespace string) bool {
	return name != "" && (name != c.release || namespace != c.Namespace)
}

// isReplaced reports whether the marks of an object name a release that this one replaces.
func (c *cluster) isReplaced(name, namespace string) bool {
	return c.isOfOther(name, namespace) && c.owns != nil && c.owns(name, namespace)
}

// isDeploying reports whether Helm writes the objects of the revision that the action deploys. It stores that revision after the definitions of the folder
// crds of the chart, and before the objects; a rollback stores another one.
func (c *cluster) isDeploying() bool {
	return c.ledger != nil && c.ledger.annotations != nil && c.history.created == 1
}

// Update leaves objects that another release has adopted as they are, without takeOwnership. Of the others, it first takes over the fields of other
// field managers, with inherits, ends rolling updates where the target has another strategy, and then, with replace, deletes objects that cannot be patched.
// Of the objects that the target no longer contains, it deletes at the end what remove deletes. Helm would delete all of them, also those that another
// release has adopted. It never moves the fields that a client-side update owns to server-side apply: Helm would look for the fields of
// the field manager in its package variable, see fieldManager.
func (c *cluster) Update(original, target kube.ResourceList, options ...kube.ClientUpdateOption) (*kube.Result, error) {
	if c.isDeploying() {
		original = append(slices.Clone(original), c.replaced.Difference(original)...)
	}
	all := target
	target, err := c.claim(original, all)
	if err != nil {
		return &kube.Result{}, err
	}
	if c.inherits {
		if err := c.inheritFields(target); err != nil {
			return &kube.Result{}, err
		}
	}
	if err := c.endRollingUpdates(target); err != nil {
		return &kube.Result{}, err
	}
	if c.replace {
		if err := c.deleteUnpatchable(target); err != nil {
			return &kube.Result{}, err
		}
	}
	result, err := c.Client.Update(original.Intersect(target), target, append(options, kube.ClientUpdateOptionUpgradeClientSideFieldManager(false))...)
	if err != nil {
		return result, err
	}
	deleted, errs := c.remove(original.Difference(all), metav1.DeletePropagationBackground)
	result.Deleted = deleted
	return result, errors.Join(errs...)
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
			return c.moveFields(client, live, inherited)
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("taking over the fields of %s: %w", info.ObjectName(), err)
		}
	}
	return nil
}

// endRollingUpdates changes the live Deployments and StatefulSets whose target has a strategy without rolling updates. The API server has set defaults
// for rolling updates on them, which no field manager owns and which server-side apply therefore keeps. With another strategy they are invalid.
func (c *cluster) endRollingUpdates(target kube.ResourceList) error {
	dynamicClient, err := c.Factory.DynamicClient()
	if err != nil {
		return err
	}
	for _, info := range target {
		field := map[schema.GroupKind]string{
			{Group: appsv1.GroupName, Kind: "Deployment"}:  "strategy",
			{Group: appsv1.GroupName, Kind: "StatefulSet"}: "updateStrategy",
		}[info.Mapping.GroupVersionKind.GroupKind()]
		object, ok := info.Object.(*unstructured.Unstructured)
		if field == "" || !ok {
			continue
		}
		strategy, found, err := unstructured.NestedString(object.Object, "spec", field, "type")
		if !found || err != nil || strategy == string(appsv1.RollingUpdateDeploymentStrategyType) {
			continue // the API server explains what is invalid
		}
		change, err := json.Marshal(map[string]any{"spec": map[string]any{field: map[string]any{"type": strategy, "rollingUpdate": nil}}})
		if err != nil {
			return err
		}
		client := dynamicClient.Resource(info.Mapping.Resource).Namespace(info.Namespace)
		// The transport of the client ends each request with the context of the action (endingWith).
		ctx := context.Background()
		err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
			live, err := client.Get(ctx, info.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if _, rolling, _ := unstructured.NestedFieldNoCopy(live.Object, "spec", field, "rollingUpdate"); rolling {
				if live, err = client.Patch(ctx, info.Name, types.MergePatchType, change, metav1.PatchOptions{FieldManager: c.manager}); err != nil {
					return err
				}
			}
			// Without this, the field manager would also own the strategy by an update, so that a later target without a strategy would not remove it.
			return c.moveFields(client, live, sets.New(c.manager))
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("changing the strategy of %s: %w", info.ObjectName(), err)
		}
	}
	return nil
}

// moveFields gives the fields that updates of these managers own to the field manager of the action, as if it had applied them. It sends nothing if they
// own none.
func (c *cluster) moveFields(client dynamic.ResourceInterface, live *unstructured.Unstructured, managers sets.Set[string]) error {
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(live, managers, c.manager)
	if err != nil || patch == nil {
		return err
	}
	_, err = client.Patch(context.Background(), live.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{})
	return err
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
	var unpatchable []removable
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
		live, err := objects.Get(context.Background(), info.Name, metav1.GetOptions{})
		if err != nil || isKept(live) {
			continue
		}
		renamed := object.DeepCopy() // the name is taken
		renamed.SetName("")
		renamed.SetGenerateName("replacement-")
		_, err = objects.Create(context.Background(), renamed, metav1.CreateOptions{FieldManager: c.manager, DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			unpatchable = append(unpatchable, removable{Info: info, uid: live.GetUID(), version: live.GetResourceVersion()})
		}
	}
	if err := errors.Join(c.deleteAll(unpatchable, metav1.DeletePropagationBackground)...); err != nil {
		return fmt.Errorf("replacing objects that cannot be patched: %w", err)
	}
	return nil
}

func isCRD(info *resource.Info) bool { return info.Mapping.GroupVersionKind.GroupKind() == crdKind }

var crdKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition").GroupKind()
