package controllers

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/controllers/app"

	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

const (
	// barrierPause is how long the caches are given between two looks at them.
	barrierPause = 20 * time.Millisecond
	// barrierLooks is after how many looks the API server is asked anew: an object that never comes may be gone by now.
	barrierLooks = 50
)

// barrier waits until the caches have what another hub wrote before it gave shards away. Who holds an identity, and which
// request was counted, is judged from the caches: one that is behind would grant what that hub has just granted to another.
// Each write of a hub alone is noted by the hub itself; of those of others only the API server knows.
type barrier struct {
	*app.Context
	kinds []barred
}

// barred is a kind that is waited for.
type barred struct {
	list    metadata.ResourceInterface
	options metav1.ListOptions
	seen    func(key string) (version string, found bool)
}

// newBarrier is for Clusters, requests and credential Secrets: the rest is written with the version it is based on.
func newBarrier(c *app.Context) *barrier {
	resource := func(name string) schema.GroupVersionResource { return fleet.SchemeGroupVersion.WithResource(name) }
	secrets := c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(c.RegistrationNamespace())
	return &barrier{Context: c, kinds: []barred{
		{c.Metadata.Resource(resource("clusterregistrations")), metav1.ListOptions{}, versions(c.Fleet.ClusterRegistration().Informer())},
		{c.Metadata.Resource(resource("clusters")), metav1.ListOptions{}, versions(c.Fleet.Cluster().Informer())},
		{secrets, metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue}, versions(c.Core.Secret().Informer())},
	}}
}

func versions(informer cache.SharedIndexInformer) func(key string) (string, bool) {
	return func(key string) (string, bool) {
		object, found, err := informer.GetStore().GetByKey(key)
		if m, ok := object.(metav1.Object); err == nil && found && ok {
			return m.GetResourceVersion(), true
		}
		return "", false
	}
}

// await asks for all objects of the kinds, without what is in them, and waits until the caches have them.
func (b *barrier) await(ctx context.Context) error {
	for _, kind := range b.kinds {
		if err := b.awaitKind(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

func (b *barrier) awaitKind(ctx context.Context, kind barred) error {
	for {
		all, err := kind.list.List(ctx, kind.options)
		if err != nil {
			return err
		}
		missing := kind.missing(all.Items)
		for look := 0; len(missing) > 0 && look < barrierLooks; look++ {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-b.Clock.After(barrierPause):
			}
			missing = kind.missing(missing)
		}
		if len(missing) == 0 {
			return nil
		}
	}
}

// missing are those that the cache does not have, or not as new.
func (k barred) missing(listed []metav1.PartialObjectMetadata) (missing []metav1.PartialObjectMetadata) {
	for _, object := range listed {
		version, found := k.seen(object.Namespace + "/" + object.Name)
		order, err := resourceversion.CompareResourceVersion(version, object.ResourceVersion)
		if !found || err == nil && order < 0 {
			missing = append(missing, object)
		}
	}
	return missing
}
