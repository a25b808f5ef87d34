// Package desiredset creates, corrects and prunes the objects that a controller wants to exist for an owner, and deletes them with it. It
// never adopts an object of somebody else.
//
// wrangler's apply corrects, prunes and deletes. Two frequent cases do not need it: a set that is as wanted according to the caches is
// left alone (settled.go), and the missing objects of a set whose rest is as wanted are created with typed clients (fresh.go). In a storm
// of registrations, apply would cost more: it encodes each object five times, stores a packed copy of each in an annotation, sends JSON,
// and creates one object after another.
package desiredset

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/rancher/wrangler/v3/pkg/merr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// appliesPerSecond limits how often the set of one owner is applied. wrangler's default of 1 would block a worker for a second whenever an
// owner changes twice.
const appliesPerSecond = 50

// Sets applies desired sets of the kinds it was made for.
type Sets struct {
	base     apply.Apply
	client   kubernetes.Interface
	kinds    []schema.GroupVersionKind
	indexers []cache.Indexer
}

// New returns Sets for the given kinds. It adds an index to the cache of each, so it is called while controllers are registered.
func New(base apply.Apply, client kubernetes.Interface, kinds ...apply.InformerGetter) Sets {
	s := Sets{client: client, base: base.WithCacheTypes(kinds...).WithSetOwnerReference(false, false).WithRateLimiting(appliesPerSecond)}
	for _, kind := range kinds {
		s.kinds = append(s.kinds, kind.GroupVersionKind())
		s.indexers = append(s.indexers, kind.Informer().GetIndexer())
	}
	return s
}

// ForeignError means that an object of somebody else has a name that the hub needs. It is not retried: overwriting a Role, for example,
// would change the rights of everybody who is bound to it.
type ForeignError struct {
	Kind      string
	Namespace string
	Name      string
}

// Error names the object and what to do about it.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s %s exists and is not of this registration; rename or delete it",
		e.Kind, strings.TrimPrefix(e.Namespace+"/"+e.Name, "/"))
}

// Ensure creates or corrects the objects, and deletes others of the owner's set. Objects in the namespace of the owner get an owner
// reference. Kinds are created in the order of the objects.
func (s Sets) Ensure(ctx context.Context, setID string, owner runtime.Object, objects ...runtime.Object) error {
	set, err := marksOf(setID, owner)
	if err != nil {
		return err
	}
	if missing, rest := s.missing(set, owner, objects); rest {
		if complete, err := s.makeMissing(ctx, set, owner, missing); complete || err != nil {
			return err
		}
	}
	return s.apply(ctx, setID, owner, objects)
}

// apply lets wrangler create, correct and prune.
func (s Sets) apply(ctx context.Context, setID string, owner runtime.Object, objects []runtime.Object) error {
	guard := &guard{setID: setID, owner: owner}
	set := s.base.WithContext(ctx).WithSetID(setID).WithOwner(owner)
	for _, kind := range s.kinds {
		set = set.WithReconciler(kind, guard.refuseForeign)
	}
	err := set.ApplyObjects(objects...)
	if guard.foreign != nil {
		return guard.foreign
	}
	return err
}

// Remove deletes all objects of an owner's set. The owner need not exist.
func (s Sets) Remove(ctx context.Context, setID, ownerKey string, ownerKind schema.GroupVersionKind) error {
	return exceptGone(s.base.WithContext(ctx).WithSetID(setID).WithOwnerKey(ownerKey, ownerKind).ApplyObjects())
}

// exceptGone drops NotFound errors: objects that were deleted with their namespace are in the caches for a moment longer.
func exceptGone(err error) error {
	var several merr.Errors
	if !errors.As(err, &several) {
		several = merr.Errors{err}
	}
	return utilerrors.FilterOut(utilerrors.NewAggregate(several), apierrors.IsNotFound)
}

type guard struct {
	setID   string
	owner   runtime.Object
	foreign *ForeignError
}

// refuseForeign is called before an existing object is patched. wrangler patches any object of that name; only an object whose annotations
// name the same owner belongs to the set.
func (g *guard) refuseForeign(existing, _ runtime.Object) (bool, error) {
	made, err := g.madeFor(existing)
	if err != nil || made {
		return false, err
	}
	object, err := meta.Accessor(existing)
	if err != nil {
		return false, err
	}
	g.foreign = &ForeignError{
		Kind:      existing.GetObjectKind().GroupVersionKind().Kind,
		Namespace: object.GetNamespace(),
		Name:      object.GetName(),
	}
	return true, g.foreign
}

// madeFor compares owners, and set IDs only if there is no owner: another release may have used another set ID.
func (g *guard) madeFor(existing runtime.Object) (bool, error) {
	object, err := meta.Accessor(existing)
	if err != nil {
		return false, err
	}
	has := object.GetAnnotations()
	if g.owner == nil {
		return has[apply.LabelID] == g.setID, nil
	}
	_, wanted, err := apply.GetLabelsAndAnnotations(g.setID, g.owner)
	if err != nil {
		return false, err
	}
	for _, key := range []string{apply.LabelGVK, apply.LabelName, apply.LabelNamespace} {
		if remembered(has[key]) != remembered(wanted[key]) {
			return false, nil
		}
	}
	return true, nil
}

// remembered is the part of a value that wrangler's record of an applied object contains.
func remembered(value string) string {
	const kept = 64
	return value[:min(len(value), kept)]
}
