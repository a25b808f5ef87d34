package charts_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/controlplane"
)

var (
	clustersResource = schema.GroupVersionResource{Group: "fleet.cattle.io", Version: "v1alpha1", Resource: "clusters"}
	crdsResource     = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// scene is a cluster on which nothing else happens: what a test leaves behind is what it looks for.
type scene struct {
	helm
	*testing.T
	core    kubernetes.Interface
	dynamic dynamic.Interface
}

// newScene is on the cluster that the tests share. They leave the kinds where they are: one that is deleted and made again
// takes an API server minutes.
func newScene(t *testing.T) *scene {
	t.Helper()
	s := sceneOn(t, controlplane.Shared(t, "charts"))
	// The controller manager gives a new namespace its ServiceAccount and ConfigMap a moment later.
	require.Eventually(t, func() bool {
		_, errAccount := s.core.CoreV1().ServiceAccounts(systemNamespace).Get(context.Background(), "default", metav1.GetOptions{})
		_, errCA := s.core.CoreV1().ConfigMaps(systemNamespace).Get(context.Background(), "kube-root-ca.crt", metav1.GetOptions{})
		return errAccount == nil && errCA == nil
	}, patience, poll)
	return s
}

// freshScene is on a cluster of its own, which has never seen the kinds.
func freshScene(t *testing.T) *scene {
	t.Helper()
	plane, err := controlplane.Start(context.Background(), controlplane.Options{Name: "fresh"})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, plane.Stop()) })
	return sceneOn(t, plane)
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
	// An API server makes a Service for itself a moment after it began to answer.
	require.Eventually(t, func() bool {
		_, err := s.core.CoreV1().Services("default").Get(context.Background(), "kubernetes", metav1.GetOptions{})
		return err == nil
	}, patience, poll)
	return s
}

// awaitInInventory waits until an inventory has a Cluster: it lists what the server says it serves, which comes later.
func (s *scene) awaitInInventory(cluster *unstructured.Unstructured) {
	s.Helper()
	require.Eventually(s, func() bool {
		return inventory(s.T, s.config)["clusters.fleet.cattle.io default/"+cluster.GetName()] == string(cluster.GetUID())
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

// register makes a Cluster, in a namespace that every cluster has.
func (s *scene) register(name string) *unstructured.Unstructured {
	s.Helper()
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "Cluster", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"clientID": "hard-to-guess"},
	}}
	var made *unstructured.Unstructured
	require.Eventually(s, func() bool { // a kind is served a moment after it is there
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

// requireOnlyKindsSince waits until nothing has come since but the kinds, and what is in them.
func (s *scene) requireOnlyKindsSince(before map[string]string) {
	s.Helper()
	eventuallyAsBefore(s.T, s.config, before, "customresourcedefinitions.", "clusters.fleet.cattle.io")
}

func (s *scene) crd(name string) *unstructured.Unstructured {
	s.Helper()
	crd, err := s.dynamic.Resource(crdsResource).Get(context.Background(), name+".fleet.cattle.io", metav1.GetOptions{})
	require.NoError(s, err)
	return crd
}
