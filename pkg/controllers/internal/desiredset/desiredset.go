// Package desiredset applies the objects a controller wants to exist for an owner, and removes them with it. It is
// wrangler's apply with the settings that fit a hub, and it never adopts what somebody else made.
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

// appliesPerSecond bounds how often one owner's set is applied. wrangler's default of 1 would block a worker for a
// second each time an owner changes twice.
const appliesPerSecond = 50

// Sets applies desired sets of the kinds it was made for.
type Sets struct {
	base     apply.Apply
	client   kubernetes.Interface
	kinds    []schema.GroupVersionKind
	indexers []cache.Indexer
}

// New returns Sets for the given kinds, which are read from their caches and pruned there. Call it while controllers are
// registered, for it adds an index to each cache.
func New(base apply.Apply, client kubernetes.Interface, kinds ...apply.InformerGetter) Sets {
	s := Sets{client: client, base: base.WithCacheTypes(kinds...).WithSetOwnerReference(false, false).WithRateLimiting(appliesPerSecond)}
	for _, kind := range kinds {
		s.kinds = append(s.kinds, kind.GroupVersionKind())
		s.indexers = append(s.indexers, kind.Informer().GetIndexer())
	}
	return s
}

// ForeignError says that a name the hub needs belongs to an object of somebody else. It is a refusal, not a retry:
// overwriting, say, a Role of that name would change the rights of whoever is bound to it.
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

// Ensure makes the objects exist as given, and removes what the owner's set had before and has no more. Objects in the
// owner's namespace get an owner reference. The order of the objects is the order of their creation, kind by kind.
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

// apply has wrangler find out what is missing, wrong or not wanted any more.
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

// Remove deletes everything of an owner's set; the owner need not exist any more.
func (s Sets) Remove(ctx context.Context, setID, ownerKey string, ownerKind schema.GroupVersionKind) error {
	return exceptGone(s.base.WithContext(ctx).WithSetID(setID).WithOwnerKey(ownerKey, ownerKind).ApplyObjects())
}

// exceptGone drops what says only that something is gone already: what goes with its namespace is in the caches for a moment
// more.
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

// refuseForeign is called before an existing object is patched. wrangler patches whatever has the name; only an object
// that says it was made for the same owner is ours.
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

// madeFor compares owners, and set IDs only where there is no owner: another release may have named the set otherwise.
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

// remembered is as much of a value as wrangler's record of an applied object keeps.
func remembered(value string) string {
	const kept = 64
	return value[:min(len(value), kept)]
}
