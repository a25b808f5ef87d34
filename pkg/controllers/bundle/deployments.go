package bundle

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
)

// foreignError says that a BundleDeployment of a name the hub needs was not made from a Bundle of this namespace.
type foreignError struct{ namespace, name string }

// Error names the object and what to do about it.
func (e *foreignError) Error() string {
	return fmt.Sprintf("BundleDeployment %s/%s exists and was not made from this Bundle; delete it", e.namespace, e.name)
}

// ensure makes the BundleDeployment of a Bundle as it should be, after the Content it names, and returns it.
func (p *pass) ensure(b *fleet.Bundle, plan *plan, v variant, existing, wanted *fleet.BundleDeployment) (*fleet.BundleDeployment, error) {
	at := keyOf(wanted).String()
	switch {
	case existing != nil && !isOf(existing, p.cluster.Namespace):
		return nil, &foreignError{existing.Namespace, existing.Name}
	case existing != nil && (existing.DeletionTimestamp != nil || p.deleted.IsExpected(string(existing.UID)) || p.freshDeployments.IsStale(existing)):
		return existing, nil // its next version brings the Cluster back
	}
	if err := p.contents.ensure(plan.content, b.Spec.Resources); err != nil {
		return nil, err
	}
	switch {
	case existing != nil:
		return p.update(existing, wanted)
	case p.created.IsExpected(at):
		p.again = expectations.Timeout
		return wanted, nil
	}
	return p.create(b, v, wanted)
}

// create makes a BundleDeployment. One that exists already, but not in the cache, is read to see whose it is.
func (p *pass) create(b *fleet.Bundle, v variant, wanted *fleet.BundleDeployment) (*fleet.BundleDeployment, error) {
	made, err := p.deployments.Create(wanted)
	if apierrors.IsAlreadyExists(err) {
		existing, err := p.deployments.Get(wanted.Namespace, wanted.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading BundleDeployment %s/%s: %w", wanted.Namespace, wanted.Name, err)
		}
		if !isOf(existing, p.cluster.Namespace) {
			return nil, &foreignError{existing.Namespace, existing.Name}
		}
		return p.update(existing, desired(b, v, p.cluster, existing))
	}
	if err != nil {
		return nil, fmt.Errorf("creating BundleDeployment %s/%s: %w", wanted.Namespace, wanted.Name, err)
	}
	p.created.Expect(keyOf(made).String())
	p.count(made)
	return made, nil
}

func (p *pass) update(existing, wanted *fleet.BundleDeployment) (*fleet.BundleDeployment, error) {
	if maps.Equal(existing.Labels, wanted.Labels) && equality.Semantic.DeepEqual(existing.Spec, wanted.Spec) {
		return existing, nil // so it is in most passes, and this is far cheaper than encoding both
	}
	latest, written, err := writes.Spec(p.deployments, existing, wanted)
	if err != nil {
		return nil, fmt.Errorf("BundleDeployment: %w", err)
	}
	if written {
		p.freshDeployments.Wrote(latest)
		p.count(latest)
	}
	return latest, nil
}

// deleteOthers deletes what was made from Bundles of this namespace that are not for the Cluster any more.
func (p *pass) deleteOthers() (problems []error) {
	for _, name := range slices.Sorted(maps.Keys(p.existing)) {
		d := p.existing[name]
		if p.kept[d.Name] || !isOf(d, p.cluster.Namespace) || d.DeletionTimestamp != nil {
			continue
		}
		problems = append(problems, p.delete(d))
	}
	return problems
}

func (s *Step) delete(d *fleet.BundleDeployment) error {
	if s.deleted.IsExpected(string(d.UID)) {
		return nil
	}
	err := s.deployments.Delete(d.Namespace, d.Name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &d.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting BundleDeployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	s.deleted.Expect(string(d.UID))
	return nil
}

// dropFinalizer lets a BundleDeployment go. The hub puts no finalizer on them; an earlier fleet controller did.
func (s *Step) dropFinalizer(_ string, d *fleet.BundleDeployment) (*fleet.BundleDeployment, error) {
	if d == nil || d.DeletionTimestamp == nil || !slices.Contains(d.Finalizers, fleet.BundleDeploymentFinalizer) {
		return d, nil
	}
	return withoutFinalizer(s.deployments, d, fleet.BundleDeploymentFinalizer)
}

// withoutFinalizer takes a finalizer off an object that is being deleted.
func withoutFinalizer[T metav1.Object](client writes.Patcher[T], object T, finalizer string) (T, error) {
	left := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == finalizer })
	latest, err := writes.Merge(client, object, map[string]any{
		"metadata": map[string]any{"finalizers": left, "resourceVersion": object.GetResourceVersion()},
	})
	if apierrors.IsNotFound(err) {
		return object, nil
	}
	return latest, err
}
