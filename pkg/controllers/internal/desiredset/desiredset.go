// Package desiredset creates, corrects and prunes the objects that a controller wants for an owner: ServiceAccounts and their Leases, Roles
// and bindings. It never adopts an object of another owner.
//
// The objects of a set have the label and the annotations of wrangler's apply, like the objects of Fleet's own controllers, so a hub finds
// the objects that Fleet's hub created. wrangler's apply itself would cost more in a burst of registrations: it encodes each object five times,
// stores a packed copy of each in an annotation, sends JSON, and creates one object after another. Most passes find in the caches that
// the set is as wanted, and send nothing.
package desiredset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/gvk"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/guard"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/controllers/rightsdigest"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// Sets manages sets of ServiceAccounts, Leases, Roles, RoleBindings and ClusterRoleBindings.
type Sets struct {
	kinds []kindManager // in the order of creation: a Role exists before its binding
}

// New returns Sets over these caches. It adds an index to each, so it is called while controllers are registered.
func New(client kubernetes.Interface, accounts, leases, roles, bindings, clusterBindings cache.SharedIndexInformer) Sets {
	return Sets{kinds: []kindManager{
		objects[*corev1.ServiceAccount]{
			kind: "ServiceAccount", cached: indexed(accounts),
			client: func(namespace string) typedClient[*corev1.ServiceAccount] {
				return client.CoreV1().ServiceAccounts(namespace)
			},
			overwrite: func(_, _ *corev1.ServiceAccount) {},
		},
		objects[*coordinationv1.Lease]{
			kind: "Lease", cached: indexed(leases),
			client: func(namespace string) typedClient[*coordinationv1.Lease] {
				return client.CoordinationV1().Leases(namespace)
			},
			// The agent writes the spec. A finalizer that it adds would block the deletion of the Lease and of its namespace.
			overwrite: func(to, _ *coordinationv1.Lease) { to.Finalizers = nil },
		},
		objects[*rbacv1.Role]{
			kind: "Role", cached: indexed(roles),
			client: func(namespace string) typedClient[*rbacv1.Role] { return client.RbacV1().Roles(namespace) },
			overwrite: func(to, from *rbacv1.Role) {
				if !rightsdigest.Equal(to, from) {
					to.Rules = from.Rules
				}
			},
		},
		objects[*rbacv1.RoleBinding]{
			kind: "RoleBinding", cached: indexed(bindings),
			client: func(namespace string) typedClient[*rbacv1.RoleBinding] {
				return client.RbacV1().RoleBindings(namespace)
			},
			overwrite: func(to, from *rbacv1.RoleBinding) {
				if !rightsdigest.Equal(to, from) {
					to.RoleRef, to.Subjects = from.RoleRef, from.Subjects
				}
			},
		},
		objects[*rbacv1.ClusterRoleBinding]{
			kind: "ClusterRoleBinding", cached: indexed(clusterBindings),
			client: func(string) typedClient[*rbacv1.ClusterRoleBinding] { return client.RbacV1().ClusterRoleBindings() },
			overwrite: func(to, from *rbacv1.ClusterRoleBinding) {
				if !rightsdigest.Equal(to, from) {
					to.RoleRef, to.Subjects = from.RoleRef, from.Subjects
				}
			},
		},
	}}
}

// Managed returns the metadata of an object that the hub creates. The label keeps the object in the caches of the hub.
func Managed(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue}}
}

// ForeignError means that an object of another owner has a name that the hub needs. It is not retried: overwriting a Role, for example, would
// change the rights of all its subjects.
type ForeignError struct {
	Kind      string
	Namespace string
	Name      string
}

// Error names the object and what to do about it.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s %s exists and was not created for this object; rename or delete it",
		e.Kind, strings.TrimPrefix(e.Namespace+"/"+e.Name, "/"))
}

// Ensure creates or corrects the objects, and deletes others of the owner's set. Objects in the namespace of the owner get an owner
// reference.
func (s Sets) Ensure(ctx context.Context, setID string, owner apiObject, wanted ...runtime.Object) error {
	set, err := marksOf(setID, owner)
	if err != nil {
		return err
	}
	for _, kind := range s.kinds {
		if err = kind.ensure(ctx, set, wanted); err != nil {
			break // a binding to a Role that does not exist would be refused
		}
	}
	return errors.Join(err, s.prune(ctx, set, wanted)) // after an error, rights that are no longer wanted are deleted all the same
}

// Add creates the objects, or corrects those that exist, and leaves the others of the owner's set. It does not read the caches, which may still have
// an object that Ensure has just deleted.
func (s Sets) Add(ctx context.Context, setID string, owner apiObject, wanted ...runtime.Object) error {
	set, err := marksOf(setID, owner)
	if err != nil {
		return err
	}
	for _, kind := range s.kinds {
		if err := kind.add(ctx, set, wanted); err != nil {
			return err
		}
	}
	return nil
}

// Remove deletes all objects of an owner's set. The owner need not exist.
func (s Sets) Remove(ctx context.Context, setID, ownerKey string, ownerKind schema.GroupVersionKind) error {
	owner := &metav1.PartialObjectMetadata{}
	owner.SetGroupVersionKind(ownerKind)
	var err error
	if owner.Namespace, owner.Name, err = cache.SplitMetaNamespaceKey(ownerKey); err != nil {
		return err
	}
	set, err := marksOf(setID, owner)
	if err != nil {
		return err
	}
	return s.prune(ctx, set, nil)
}

// prune deletes the objects of a set that are not wanted, bindings first.
func (s Sets) prune(ctx context.Context, set marks, wanted []runtime.Object) error {
	var all []error
	for _, kind := range slices.Backward(s.kinds) {
		all = append(all, kind.prune(ctx, set, wanted))
	}
	return errors.Join(all...)
}

// marks are the labels and annotations that the objects of a set have in common.
type marks struct {
	labels, annotations map[string]string
	namespace           string // of the owner
	reference           metav1.OwnerReference
}

func marksOf(setID string, owner apiObject) (m marks, err error) {
	if m.labels, m.annotations, err = apply.GetLabelsAndAnnotations(setID, owner); err != nil {
		return m, err
	}
	kind, err := gvk.Get(owner)
	if err != nil {
		return m, err
	}
	m.namespace = owner.GetNamespace()
	m.reference = metav1.OwnerReference{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: owner.GetName(), UID: owner.GetUID(),
		Controller: ptr.To(false), BlockOwnerDeletion: ptr.To(false),
	}
	return m, nil
}

// mark adds the labels, annotations and owner reference of the set.
func (m marks) mark(object metav1.Object) {
	object.SetLabels(labels.Merge(object.GetLabels(), m.labels))
	object.SetAnnotations(labels.Merge(object.GetAnnotations(), m.annotations))
	if object.GetNamespace() == m.namespace {
		object.SetOwnerReferences([]metav1.OwnerReference{m.reference})
	}
}

// isOwn reports whether an object was created for the owner of the set. Fleet's hub uses another set ID.
func (m marks) isOwn(object metav1.Object) bool {
	has := object.GetAnnotations()
	for _, key := range []string{apply.LabelGVK, apply.LabelNamespace, apply.LabelName} {
		if has[key] != m.annotations[key] {
			return false
		}
	}
	return true
}

// kindManager ensures and prunes the objects of one kind.
type kindManager interface {
	ensure(ctx context.Context, set marks, wanted []runtime.Object) error
	add(ctx context.Context, set marks, wanted []runtime.Object) error
	prune(ctx context.Context, set marks, wanted []runtime.Object) error
}

// apiObject is implemented by all kinds.
type apiObject interface {
	metav1.Object
	runtime.Object
}

// typedClient has the methods of client-go's client for one kind in one namespace.
type typedClient[T apiObject] interface {
	Create(ctx context.Context, object T, o metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, subresources ...string) (T, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// objects implements kindManager.
type objects[T apiObject] struct {
	kind   string
	cached cache.Indexer
	client func(namespace string) typedClient[T]
	// overwrite sets the fields of to that the hub owns, except labels and annotations, to those of the wanted object. An object from a cache may have a
	// digest instead of a field, see package rightsdigest.
	overwrite func(to, wanted T)
}

// byHash is the index of objects by the bucket of the label of their set.
const byHash = "muster.fleet.cattle.io/by-object-set"

func indexed(informer cache.SharedIndexInformer) cache.Indexer {
	indexer := informer.GetIndexer()
	if _, found := indexer.GetIndexers()[byHash]; !found { // controllers share caches
		_ = indexer.AddIndexers(cache.Indexers{byHash: func(object any) ([]string, error) { // fails only for a name that is taken
			m, err := meta.Accessor(object)
			if err != nil || m.GetLabels()[apply.LabelHash] == "" {
				return nil, err
			}
			return []string{index.Bucket(m.GetLabels()[apply.LabelHash])}, nil
		}})
	}
	return indexer
}

// ensure handles the objects of this kind in parallel: a registration waits only for the slowest of them.
func (k objects[T]) ensure(ctx context.Context, set marks, wanted []runtime.Object) error {
	existing, err := k.inSet(set)
	if err != nil {
		return err
	}
	return k.ensureAll(ctx, set, existing, wanted)
}

func (k objects[T]) add(ctx context.Context, set marks, wanted []runtime.Object) error {
	return k.ensureAll(ctx, set, nil, wanted)
}

func (k objects[T]) ensureAll(ctx context.Context, set marks, existing []T, wanted []runtime.Object) error {
	var all errgroup.Group
	for _, object := range typed[T](wanted) {
		all.Go(func() error { return k.ensureOne(ctx, set, existing, object) })
	}
	return all.Wait()
}

// ensureOne creates the object, or corrects what differs in the existing one. Labels and annotations of others stay.
func (k objects[T]) ensureOne(ctx context.Context, set marks, existing []T, wanted T) (err error) {
	defer guard.Recover(guard.Pass, wanted, &err)
	wanted = wanted.DeepCopyObject().(T)
	set.mark(wanted)
	client := k.client(wanted.GetNamespace())
	var current T
	if at := slices.IndexFunc(existing, isNamed(wanted)); at >= 0 {
		current = existing[at]
	} else {
		_, err := client.Create(ctx, wanted, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		// The cache lacks the object of an earlier pass, or the object belongs to another set of the owner or to another owner.
		if current, err = client.Get(ctx, wanted.GetName(), metav1.GetOptions{}); err != nil {
			return err
		}
	}
	if !set.isOwn(current) {
		return &ForeignError{Kind: k.kind, Namespace: wanted.GetNamespace(), Name: wanted.GetName()}
	}

	corrected := current.DeepCopyObject().(T)
	corrected.SetLabels(labels.Merge(current.GetLabels(), wanted.GetLabels()))
	corrected.SetAnnotations(labels.Merge(current.GetAnnotations(), wanted.GetAnnotations()))
	set.mark(corrected)
	k.overwrite(corrected, wanted)
	if equality.Semantic.DeepEqual(current, corrected) {
		return nil
	}
	current = current.DeepCopyObject().(T)
	current.SetUID("") // so that the patch contains UID and version, and changes no other object and no later version
	current.SetResourceVersion("")
	patch, err := fleetstatus.MergePatch(current, corrected)
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, wanted.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// prune deletes the objects of the set that are not wanted. The label alone does not make an object part of the set: a user who may change the
// labels of a Role, but not delete it, could otherwise make the hub delete it.
func (k objects[T]) prune(ctx context.Context, set marks, wanted []runtime.Object) error {
	existing, err := k.inSet(set)
	if err != nil {
		return err
	}
	var all []error
	var mu sync.Mutex
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, err)
	}
	var group errgroup.Group
	group.SetLimit(parallelDeletes)
	for _, object := range existing {
		if !set.isOwn(object) || slices.ContainsFunc(typed[T](wanted), isNamed(object)) {
			continue
		}
		group.Go(func() (err error) {
			defer guard.Recover(guard.Pass, object, &err)
			if err := k.removeFinalizers(ctx, object); err != nil {
				failed(err)
			}
			if object.GetDeletionTimestamp() != nil {
				// It waits for its finalizers. Users of other namespaces can create thousands of such objects with the marks of the set, and a
				// deletion of each in every pass would take longer than a pass may.
				return nil
			}
			err = k.client(object.GetNamespace()).Delete(ctx, object.GetName(), writes.IfUID(object))
			if err != nil && !apierrors.IsNotFound(err) { // an object that was deleted with its namespace is in the cache for a moment longer
				failed(err)
			}
			return nil
		})
	}
	err = group.Wait()
	return errors.Join(append(all, err)...)
}

// parallelDeletes is how many objects are deleted at the same time. A set has few, but a user of another namespace can create thousands with
// its marks. One deletion after the other would take longer than a pass may, and than it takes to create them again.
const parallelDeletes = 16

// removeFinalizers removes the finalizers that an agent may have added to its Lease, because they would block the deletion. The hub adds none.
func (k objects[T]) removeFinalizers(ctx context.Context, object T) error {
	if _, isLease := any(object).(*coordinationv1.Lease); !isLease || len(object.GetFinalizers()) == 0 {
		return nil
	}
	_, err := k.client(object.GetNamespace()).Patch(ctx, object.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// inSet returns the cached objects of a set.
func (k objects[T]) inSet(set marks) ([]T, error) {
	hash := set.labels[apply.LabelHash]
	found, err := k.cached.ByIndex(byHash, index.Bucket(hash))
	return slices.DeleteFunc(typed[T](found), func(object T) bool { return object.GetLabels()[apply.LabelHash] != hash }), err
}

func typed[T, U any](all []U) (some []T) {
	for _, object := range all {
		if t, ok := any(object).(T); ok {
			some = append(some, t)
		}
	}
	return some
}

func isNamed[T apiObject](wanted T) func(T) bool {
	return func(other T) bool {
		return other.GetName() == wanted.GetName() && other.GetNamespace() == wanted.GetNamespace()
	}
}
