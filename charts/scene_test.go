package charts_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/inventory"
)

const (
	patience = 2 * time.Minute
	poll     = 100 * time.Millisecond
)

var (
	clustersResource = schema.GroupVersionResource{Group: "fleet.cattle.io", Version: "v1alpha1", Resource: "clusters"}
	crdsResource     = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// scene is a cluster without anything else, so that a test can find what it left behind.
type scene struct {
	helm
	*testing.T
	core    kubernetes.Interface
	dynamic dynamic.Interface
}

// newScene uses the cluster that the tests share. They keep the kinds: an API server takes minutes until it serves a kind that was
// deleted and created again.
func newScene(t *testing.T) *scene {
	t.Helper()
	return sceneOn(t, controlplane.Shared(t, "member"))
}

// freshScene uses a cluster of its own, without the kinds.
func freshScene(t *testing.T) *scene {
	t.Helper()
	return sceneOn(t, controlplane.Borrow(t, "member"))
}

func sceneOn(t *testing.T, plane *controlplane.ControlPlane) *scene {
	t.Helper()
	ensureNamespace(t, plane.RESTConfig())
	s := &scene{helm: helmOn(plane.RESTConfig()), T: t}
	var err error
	s.core, err = kubernetes.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	s.dynamic, err = dynamic.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	// An API server creates its own Service a moment after it begins to answer, and the controller manager gives a new namespace
	// its ServiceAccount and ConfigMap a moment later.
	require.Eventually(t, func() bool {
		_, errService := s.core.CoreV1().Services("default").Get(context.Background(), "kubernetes", metav1.GetOptions{})
		_, errAccount := s.core.CoreV1().ServiceAccounts(systemNamespace).Get(context.Background(), "default", metav1.GetOptions{})
		_, errCA := s.core.CoreV1().ConfigMaps(systemNamespace).Get(context.Background(), "kube-root-ca.crt", metav1.GetOptions{})
		return errService == nil && errAccount == nil && errCA == nil
	}, patience, poll)
	return s
}

// awaitInInventory waits until discovery, which an inventory uses, lists the kind of the Cluster.
func (s *scene) awaitInInventory(cluster *unstructured.Unstructured) {
	s.Helper()
	require.Eventually(s, func() bool {
		_, there := s.inventory()[inventory.Thing{Kind: "Cluster", Namespace: "default", Name: cluster.GetName()}]
		return there
	}, patience, poll)
}

func (s *scene) removeKinds() {
	s.Helper()
	require.NoError(s, s.dynamic.Resource(crdsResource).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	require.Eventually(s, func() bool {
		left, err := s.dynamic.Resource(crdsResource).List(context.Background(), metav1.ListOptions{})
		return err == nil && len(left.Items) == 0
	}, patience, poll)
}

// register creates a Cluster in Namespace default.
func (s *scene) register(name string) *unstructured.Unstructured {
	s.Helper()
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"clientID": "hard-to-guess"},
	}}
	var made *unstructured.Unstructured
	require.Eventually(s, func() bool { // a kind is served a moment after its creation
		var err error
		made, err = s.dynamic.Resource(clustersResource).Namespace("default").Create(context.Background(), cluster, metav1.CreateOptions{})
		return err == nil
	}, patience, poll)
	return made
}

func (s *scene) requireStillThere(cluster *unstructured.Unstructured) {
	s.Helper()
	now, err := s.dynamic.Resource(clustersResource).Namespace("default").Get(context.Background(), cluster.GetName(), metav1.GetOptions{})
	require.NoError(s, err)
	require.Equal(s, cluster.GetUID(), now.GetUID())
	require.Nil(s, now.GetDeletionTimestamp())
}

func (s *scene) inventory() inventory.Inventory {
	s.Helper()
	all, err := inventory.Take(context.Background(), s.config)
	require.NoError(s, err)
	return all
}

// requireAsBefore waits until the cluster has the same objects as before, and perhaps some of the kinds that may stay. Kubernetes
// deletes dependents some time after their owner.
func (s *scene) requireAsBefore(before inventory.Inventory, mayStay ...string) {
	s.Helper()
	require.EventuallyWithT(s, func(c *assert.CollectT) {
		now := s.inventory()
		left := slices.DeleteFunc(now.Since(before), func(t inventory.Thing) bool { return slices.Contains(mayStay, t.Kind) })
		assert.Empty(c, left, "left behind")
		assert.Empty(c, before.Since(now), "lost")
	}, patience, poll)
}

// requireOnlyKindsSince waits until nothing is new but the kinds and the Clusters.
func (s *scene) requireOnlyKindsSince(before inventory.Inventory) {
	s.Helper()
	s.requireAsBefore(before, "CustomResourceDefinition", "Cluster")
}

func (s *scene) crd(name string) *unstructured.Unstructured {
	s.Helper()
	crd, err := s.dynamic.Resource(crdsResource).Get(context.Background(), name+".fleet.cattle.io", metav1.GetOptions{})
	require.NoError(s, err)
	return crd
}
