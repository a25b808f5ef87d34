package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/controllers/internal/writes"
	"github.com/muster-fleet/muster/pkg/registration"
)

// finalize takes its steps in the order in which they build on each other, each of which leaves alone what is done already,
// so that it can be cut off anywhere and taken up again. The import token follows the Cluster by owner reference.
func (h *handler) finalize(ctx context.Context, cluster *fleet.Cluster) (*fleet.Cluster, error) {
	if !slices.Contains(cluster.Finalizers, fleet.ClusterFinalizer) {
		return cluster, nil
	}
	f := &farewell{handler: h, cluster: cluster}
	for _, step := range []func(context.Context) result.Result{
		f.awaitSuccessor,
		f.askAgent,
		f.cleanMember,
		f.deleteBundle,
		f.deleteRequests,
		f.deleteNamespace,
	} {
		if out := step(ctx); !out.IsDone() {
			return h.awaitFarewell(cluster, out)
		}
	}
	return f.letGo()
}

// awaitFarewell shows on the Cluster what its deletion waits for. An error is not shown: it is gone in a moment, or in the
// log.
func (h *handler) awaitFarewell(cluster *fleet.Cluster, out result.Result) (*fleet.Cluster, error) {
	if out.Err != nil {
		return cluster, out.Err
	}
	after := cluster.DeepCopy()
	transition := result.Set(&after.Status.Conditions, fleet.ConditionProcessed, out, h.Clock.Now())
	latest, written, err := writes.Status(h.clusters, cluster, after)
	switch {
	case apierrors.IsNotFound(err):
		return cluster, nil
	case err != nil:
		return cluster, err
	case written:
		h.fresh.Wrote(latest)
		transition.Record(h.Events, latest)
	}
	if out.After > 0 {
		h.clusters.EnqueueAfter(cluster.Namespace, cluster.Name, out.After)
	}
	return latest, nil
}

// farewell is one look at one Cluster that is being deleted.
type farewell struct {
	*handler
	cluster *fleet.Cluster

	nobody    bool           // there is no agent that has to leave
	agentLeft bool           // it said so
	clean     bool           // a step says that nothing is left on the member
	left      *result.Result // why something may be left
}

var gone = result.Done("", "")

// began is when the farewell began: with the deletion, or when this hub began to look after the Cluster, for while none did
// nobody could ask the agent.
func (f *farewell) began() time.Time {
	deleted, ours := f.cluster.DeletionTimestamp.Time, f.started
	if deleted.After(ours) {
		return deleted
	}
	return ours
}

// until is when the hub stops waiting for anything on the member.
func (f *farewell) until() time.Time { return f.began().Add(f.FarewellGrace) }

// cleanMember has the steps that know a way to the member take back what is there, also if the agent says that it has: it
// may have been stopped right after that.
func (f *farewell) cleanMember(ctx context.Context) result.Result {
	for _, step := range f.steps {
		parting, ok := step.(Parting)
		if f.nobody || !ok {
			continue
		}
		out := parting.Part(ctx, f.cluster, f.until())
		switch {
		case out.IsWait(), out.Err != nil:
			return out
		case out.IsDone():
			f.clean = true
		case !out.IsSkip():
			f.left = &out
		}
	}
	return gone
}

// deleteBundle removes the agent's Bundle, and never one of a person that happens to have its name. One that was made a moment
// ago, so that no cache knows it, is an orphan, and found as one.
func (f *farewell) deleteBundle(context.Context) result.Result {
	name := registration.AgentBundleName(f.cluster.Name)
	existing, err := f.bundles.Get(f.cluster.Namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return gone
	case err != nil:
		return failed(fmt.Errorf("reading Bundle %s/%s of the deleted Cluster: %w", f.cluster.Namespace, name, err))
	case !agentspec.IsBundle(existing):
		return gone
	}
	if err := f.dropBundle(existing); err != nil && !apierrors.IsNotFound(err) {
		return failed(fmt.Errorf("deleting Bundle %s/%s of the deleted Cluster: %w", f.cluster.Namespace, name, err))
	}
	return gone
}

// dropBundle does not leave the finalizer to the controller of Bundles: that waits for the BundleDeployment, which goes with the
// cluster namespace, and a hub that is uninstalled right after its last Cluster would leave a Bundle that keeps the workspace
// from ever being deleted. Where Bundles are left to others, so is their finalizer.
func (f *farewell) dropBundle(bundle *fleet.Bundle) error {
	if bundle.DeletionTimestamp == nil {
		err := f.Fleet.Bundle().Delete(bundle.Namespace, bundle.Name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &bundle.UID}})
		if err != nil {
			return err
		}
	}
	if f.DisableBundles || !slices.Contains(bundle.Finalizers, fleet.BundleFinalizer) {
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(bundle.Finalizers), func(name string) bool { return name == fleet.BundleFinalizer })
	_, err := writes.Merge(f.Fleet.Bundle(), bundle, map[string]any{"metadata": map[string]any{"finalizers": left, "uid": bundle.UID}})
	return err
}

// deleteRequests removes what the agent asked for, and with it all rights that it was given. Kubernetes would do so too, by
// owner reference, but learns only twice a minute of kinds that were installed since it started.
func (f *farewell) deleteRequests(context.Context) result.Result {
	requests, _ := f.requests.GetByIndex(index.ByClientID, index.Key(f.cluster.Namespace, f.cluster.Spec.ClientID))
	for _, r := range requests {
		ours := slices.ContainsFunc(r.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == f.cluster.UID })
		if !ours || r.DeletionTimestamp != nil {
			continue
		}
		f.Left.Add(types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
		err := f.Fleet.ClusterRegistration().Delete(r.Namespace, r.Name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return failed(fmt.Errorf("deleting ClusterRegistration %s/%s of the deleted Cluster: %w", r.Namespace, r.Name, err))
		}
	}
	return gone
}

// deleteNamespace removes the cluster namespace, with the agent's identity and the BundleDeployments in it. It computes which
// namespace it is and looks whose it is: a status that an agent could write must never decide which namespace the hub
// deletes.
func (f *farewell) deleteNamespace(ctx context.Context) result.Result {
	name := registration.ClusterNamespace(f.cluster.Namespace, f.cluster.Name)
	client := f.Kubernetes.CoreV1().Namespaces()
	existing, err := f.namespaces.Get(name)
	if apierrors.IsNotFound(err) {
		existing, err = client.Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return gone
	case err != nil:
		return failed(fmt.Errorf("reading Namespace %s of the deleted Cluster: %w", name, err))
	case !isFor(existing, f.cluster), existing.DeletionTimestamp != nil:
		return gone
	}
	err = client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &existing.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return failed(fmt.Errorf("deleting Namespace %s of the deleted Cluster: %w", name, err))
	}
	return gone
}

func failed(err error) result.Result { return result.Retry(fleet.ReasonError, err) }

// letGo removes the finalizer. It reports what may be left on the member only then, once: until then it may still go well.
func (f *farewell) letGo() (*fleet.Cluster, error) {
	left := slices.DeleteFunc(slices.Clone(f.cluster.Finalizers), func(name string) bool { return name == fleet.ClusterFinalizer })
	latest, err := writes.Merge(f.clusters, f.cluster, map[string]any{
		"metadata": map[string]any{"finalizers": left, "resourceVersion": f.cluster.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err):
		return f.cluster, nil
	case err != nil:
		return f.cluster, err
	}
	f.report()
	return latest, nil
}
