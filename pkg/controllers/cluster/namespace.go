package cluster

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/expectations"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/registration"
)

// namespaceStep makes the cluster namespace and says in the status which it is.
type namespaceStep struct {
	*handler
	made *expectations.Expectations // those the cache has not seen yet: the status that names one is often there first
}

func (namespaceStep) Condition() string { return fleet.ConditionProcessed }

func (namespaceStep) Forget(string) {}

func (s namespaceStep) Reconcile(ctx context.Context, cluster *fleet.Cluster) result.Result {
	if managedElsewhere(cluster) {
		return result.Done(fleet.ReasonManagedElsewhere, "the label "+fleet.ClusterManagementLabel+" hands this Cluster to another controller")
	}
	name := registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return result.Stalled(fleet.ReasonInvalidName, fmt.Sprintf(
			"the name of this Cluster gives the namespace name %q, which Kubernetes does not accept: %s", name, strings.Join(problems, "; ")))
	}
	out := s.ensure(ctx, cluster, name)
	if out.IsDone() {
		cluster.Status.Namespace = name
	}
	return out
}

func (s namespaceStep) ensure(ctx context.Context, cluster *fleet.Cluster, name string) result.Result {
	existing, err := s.namespaces.Get(name)
	switch {
	case !apierrors.IsNotFound(err):
		s.made.Observed(name)
	case s.made.IsExpected(name):
		return result.Done(fleet.ReasonProcessed, "").In(expectations.Timeout) // it may be gone before the cache has seen it
	default:
		existing, err = s.create(ctx, cluster, name)
	}
	if err != nil {
		return result.Retry(fleet.ReasonError, err)
	}
	switch {
	case !isFor(existing, cluster):
		return result.Stalled(fleet.ReasonNameConflict, fmt.Sprintf(
			"Namespace %s exists and is not of this Cluster; rename the Cluster or delete the Namespace", name)).In(s.RecheckDelay())
	case existing.DeletionTimestamp != nil:
		return result.Wait(fleet.ReasonNamespaceDeleting, fmt.Sprintf("waiting for the deletion of an earlier Namespace %s", name))
	}
	return result.Done(fleet.ReasonProcessed, "")
}

// create makes the Namespace. One that exists already, but not in the cache of what is ours, is read to see whose it is.
func (s namespaceStep) create(ctx context.Context, cluster *fleet.Cluster, name string) (*corev1.Namespace, error) {
	client := s.Kubernetes.CoreV1().Namespaces()
	created, err := client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   name,
		Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue},
		Annotations: map[string]string{
			fleet.ClusterAnnotation:          cluster.Name,
			fleet.ClusterNamespaceAnnotation: cluster.Namespace,
		},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return client.Get(ctx, name, metav1.GetOptions{})
	}
	if err == nil {
		s.made.Expect(name)
	}
	return created, err
}

func isFor(namespace *corev1.Namespace, cluster *fleet.Cluster) bool {
	return namespace.Annotations[fleet.ClusterAnnotation] == cluster.Name &&
		namespace.Annotations[fleet.ClusterNamespaceAnnotation] == cluster.Namespace
}
