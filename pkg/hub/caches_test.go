package hub

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/rancher/lasso/pkg/client"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestCacheOptionsLabel(t *testing.T) {
	options := cacheOptions("system")
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("Namespace"), corev1.SchemeGroupVersion.WithKind("Secret"),
		corev1.SchemeGroupVersion.WithKind("ServiceAccount"), rbacv1.SchemeGroupVersion.WithKind("Role"),
		rbacv1.SchemeGroupVersion.WithKind("RoleBinding"), rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"),
	} {
		require.Contains(t, options.KindTweakList, kind)
		var list metav1.ListOptions
		options.KindTweakList[kind](&list)
		assert.Equal(t, "fleet.cattle.io/managed=true", list.LabelSelector, kind.Kind)
	}
}

// Only a hub that serves Clusternet agents has caches and queues of their kinds.
func TestNewCaches_clusternet(t *testing.T) {
	kinds := func(clusternet bool) []schema.GroupVersionKind {
		o := Options{SystemNamespace: "system", Clock: clock.RealClock{}, Clusternet: clusternet}
		c, err := newCaches(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, o)
		require.NoError(t, err)
		return append(c.ownKinds, c.fleetKinds...)
	}
	closed := kinds(false)
	for _, kind := range closed {
		assert.NotContains(t, kind.Group, "clusternet")
	}
	assert.ElementsMatch(t, append(closed, clusternetKinds...), kinds(true))
}

func TestCacheOptionsConfigMap(t *testing.T) {
	options := cacheOptions("system")
	var list metav1.ListOptions
	options.KindTweakList[configMapKind](&list)
	assert.Equal(t, "metadata.name=fleet-controller", list.FieldSelector)
	assert.Equal(t, map[schema.GroupVersionKind]string{configMapKind: "system"}, options.KindNamespace)
}

func TestHubConfig(t *testing.T) {
	given := &rest.Config{Host: "https://hub", QPS: 5, Burst: 10}
	cfg := hubConfig(given)
	assert.Equal(t, defaultTimeout, cfg.Timeout)
	assert.Contains(t, cfg.UserAgent, "fleetcontroller/")
	for range 1000 {
		require.True(t, cfg.RateLimiter.TryAccept())
	}
	assert.Equal(t, &rest.Config{Host: "https://hub", QPS: 5, Burst: 10}, given, "the configuration is somebody else's")
	assert.Equal(t, time.Second, hubConfig(&rest.Config{Timeout: time.Second}).Timeout)
	limited := &rest.Config{RateLimiter: flowcontrol.NewTokenBucketRateLimiter(1, 1)}
	assert.NotSame(t, limited.RateLimiter, hubConfig(limited).RateLimiter)
}

func TestKeepIdentity(t *testing.T) {
	kept, err := keepIdentity(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "c", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b", fleet.ManagedLabel: "true"},
		Annotations: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{}},
	}})
	require.NoError(t, err)
	assert.Equal(t, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "c", UID: "u", ResourceVersion: "7", Labels: map[string]string{fleet.ManagedLabel: "true"},
	}}, kept)
	copied := func(namespace, version string, owners ...metav1.OwnerReference) metav1.ObjectMeta {
		kept, err := keepIdentity(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "c", Annotations: map[string]string{"a": "b", fleet.CopyAnnotation: version}, OwnerReferences: owners,
		}})
		require.NoError(t, err)
		return kept.(*metav1.PartialObjectMetadata).ObjectMeta
	}
	one, two := metav1.OwnerReference{Name: "app"}, metav1.OwnerReference{Name: "other"}
	own := copied("cluster-x", "1 u/7", one)
	assert.Equal(t, "1 u/7", own.Annotations[fleet.CopyAnnotation])
	assert.Equal(t, own, copied("cluster-x", "1 u/7", one))
	assert.NotEqual(t, own, copied("cluster-x", "1 u/7", one, two))
	assert.NotEqual(t, own, copied("cluster-x", "1 u/7"))
	// A user may create a Namespace with any name, and objects with an annotation of any size and any number of owners.
	for name, hostile := range map[string]metav1.ObjectMeta{
		"workspace":        copied("workspace", "1 u/7", one),
		"large version":    copied("cluster-x", "1 u/7"+strings.Repeat("x", 200<<10), one),
		"no version":       copied("cluster-x", strings.Repeat("x", 100), one),
		"thousands of own": copied("cluster-x", "1 u/7", make([]metav1.OwnerReference, 5000)...),
	} {
		written, err := json.Marshal(hostile)
		require.NoError(t, err)
		assert.Less(t, len(written), 300, name)
	}
	other, err := keepIdentity("no object")
	require.NoError(t, err)
	assert.Equal(t, "no object", other)
}

func TestStoppable(t *testing.T) {
	t.Run("an ended context stops the wait for a healthy API server", func(t *testing.T) {
		clients, err := client.NewSharedClientFactory(&rest.Config{Host: "https://127.0.0.1:1"}, nil)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		assert.False(t, stoppable{clients}.IsHealthy(ctx))
		stop()
		assert.True(t, stoppable{clients}.IsHealthy(ctx))
	})
}
