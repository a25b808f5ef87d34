package testenv

import (
	"context"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// askedFor are the kinds by which people, agents and hubs ask a hub for something; all of them go.
var askedFor = []schema.GroupVersionResource{
	fleet.SchemeGroupVersion.WithResource("bundles"), fleet.SchemeGroupVersion.WithResource("bundledeployments"),
	fleet.SchemeGroupVersion.WithResource("contents"), fleet.SchemeGroupVersion.WithResource("clustergroups"),
	fleet.SchemeGroupVersion.WithResource("clusterregistrations"), fleet.SchemeGroupVersion.WithResource("clusterregistrationtokens"),
	fleet.SchemeGroupVersion.WithResource("clusters"),
}

// madeForIt are the kinds that a hub makes in answer; those with its label go. Namespaces are the first: what is in them goes
// along.
var madeForIt = []schema.GroupVersionResource{
	corev1.SchemeGroupVersion.WithResource("namespaces"),
	corev1.SchemeGroupVersion.WithResource("secrets"), corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
	rbacv1.SchemeGroupVersion.WithResource("roles"), rbacv1.SchemeGroupVersion.WithResource("rolebindings"),
	rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), rbacv1.SchemeGroupVersion.WithResource("clusterroles"),
}

// sweepUp removes what a test has left on a shared cluster, where no hub is running. Each hub that started there later would
// look after all of it: registrations to check, imports to try again, members to call that never answer.
func (c *Cluster) sweepUp(t testing.TB) {
	t.Helper()
	if !c.shared {
		return
	}
	client, err := dynamic.NewForConfig(c.RESTConfig())
	if err == nil {
		err = (&sweeper{client: client}).sweep(context.Background())
	}
	if err != nil {
		t.Errorf("sweeping up what the test has left on its hub: %v", err)
	}
}

type sweeper struct {
	client dynamic.Interface
	gone   []string // namespaces
}

// atOnce is how many objects are removed at a time.
const atOnce = 8

func (s *sweeper) sweep(ctx context.Context) error {
	for _, kind := range askedFor {
		if err := s.sweepKind(ctx, kind, ""); err != nil {
			return err
		}
	}
	for _, kind := range madeForIt {
		if err := s.sweepKind(ctx, kind, fleet.ManagedLabel+"="+fleet.ManagedValue); err != nil {
			return err
		}
	}
	return nil
}

func (s *sweeper) sweepKind(ctx context.Context, kind schema.GroupVersionResource, selector string) error {
	list, err := s.client.Resource(kind).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if apierrors.IsNotFound(err) { // the hub that installs the kind did not start
		return nil
	}
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, object := range list.Items {
		if kind.Resource == "namespaces" {
			s.gone = append(s.gone, object.GetName())
		}
		if !slices.Contains(s.gone, object.GetNamespace()) {
			group.Go(func() error { return s.remove(ctx, kind, object) })
		}
	}
	return group.Wait()
}

// remove takes the finalizers off an object, for nobody is there to do what they stand for, and deletes it.
func (s *sweeper) remove(ctx context.Context, kind schema.GroupVersionResource, object unstructured.Unstructured) error {
	client := s.client.Resource(kind).Namespace(object.GetNamespace())
	err := client.Delete(ctx, object.GetName(), metav1.DeleteOptions{})
	if err == nil && len(object.GetFinalizers()) > 0 {
		_, err = client.Patch(ctx, object.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
