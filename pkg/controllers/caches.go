package controllers

import (
	"time"

	"github.com/rancher/lasso/pkg/cache"
	"github.com/rancher/lasso/pkg/client"
	"github.com/rancher/lasso/pkg/controller"
	"github.com/rancher/wrangler/v3/pkg/ratelimit"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/version"
)

// hubConfig is the configuration for all clients of the hub.
func hubConfig(given *rest.Config) *rest.Config {
	cfg := rest.CopyConfig(given)
	cfg.RateLimiter = ratelimit.None
	cfg.UserAgent = "fleetcontroller/" + version.Version
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.AcceptContentTypes == "" {
		// Most of what a registration makes is of Kubernetes' own kinds, of which an API server has the binary form ready, and
		// which are read from it several times as fast. Custom resources have none: they come as JSON.
		cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	return cfg
}

// builtIn is the configuration for a client of Kubernetes' own kinds only.
func builtIn(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	if cfg.ContentType == "" {
		cfg.ContentType = runtime.ContentTypeProtobuf
	}
	return cfg
}

// managedOnly are the kinds of which a hub may have very many that are none of ours, so that only those with our label are
// kept in memory.
var managedOnly = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("Namespace"),
	corev1.SchemeGroupVersion.WithKind("Secret"),
	corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	rbacv1.SchemeGroupVersion.WithKind("Role"),
	rbacv1.SchemeGroupVersion.WithKind("RoleBinding"),
	rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
	rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"),
}

var configMapKind = corev1.SchemeGroupVersion.WithKind("ConfigMap")

// cacheOptions bound what the hub keeps in memory.
func cacheOptions(systemNamespace string) *cache.SharedCacheFactoryOptions {
	tweaks := map[schema.GroupVersionKind]cache.TweakListOptionsFunc{
		configMapKind: func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", registration.HubConfigMap).String()
		},
	}
	for _, kind := range managedOnly {
		tweaks[kind] = func(o *metav1.ListOptions) { o.LabelSelector = fleet.ManagedLabel + "=" + fleet.ManagedValue }
	}
	return &cache.SharedCacheFactoryOptions{
		KindTweakList: tweaks,
		KindNamespace: map[schema.GroupVersionKind]string{configMapKind: systemNamespace},
	}
}

const (
	retryFirst = 5 * time.Millisecond
	retryMax   = 30 * time.Second
)

// rateLimiters give each kind a limiter of its own: a shared one counts the failures of one kind against another's object
// of the same name.
func rateLimiters(kinds ...schema.GroupVersionKind) map[schema.GroupVersionKind]workqueue.RateLimiter { //nolint:staticcheck // lasso's options take this type
	limiters := map[schema.GroupVersionKind]workqueue.RateLimiter{} //nolint:staticcheck // as above
	for _, kind := range kinds {
		limiters[kind] = workqueue.NewItemExponentialFailureRateLimiter(retryFirst, retryMax) //nolint:staticcheck // as above
	}
	return limiters
}

// newFactory makes the factory of all the hub's caches and queues.
func newFactory(cfg *rest.Config, systemNamespace string) (controller.SharedControllerFactory, error) {
	clients, err := client.NewSharedClientFactory(cfg, nil)
	if err != nil {
		return nil, err
	}
	kinds := append([]schema.GroupVersionKind{configMapKind}, managedOnly...)
	for _, kind := range []string{"Cluster", "ClusterGroup", "ClusterRegistration", "ClusterRegistrationToken", "Bundle", "BundleDeployment"} {
		kinds = append(kinds, fleet.SchemeGroupVersion.WithKind(kind))
	}
	return controller.NewSharedControllerFactory(
		cache.NewSharedCachedFactory(clients, cacheOptions(systemNamespace)),
		&controller.SharedControllerFactoryOptions{
			KindRateLimiter:        rateLimiters(kinds...),
			SyncOnlyChangedObjects: true,
		}), nil
}
