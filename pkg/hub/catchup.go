package hub

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
	// lookPause is the pause between two looks at a cache.
	lookPause = 20 * time.Millisecond
	// looks is the number of looks after which the API server is asked again: an object that does not appear may be deleted.
	looks = 50
)

// catchUp waits until the caches contain what another hub wrote before this one acquired the Lease. Who holds an identity, and
// which request was counted, is judged from the caches: from a cache that lags behind, the hub would grant an identity that the
// hub before it has just granted to another agent.
type catchUp struct {
	*app.Context
	kinds []awaitedVersions
}

// awaitedVersions is a kind that is waited for.
type awaitedVersions struct {
	list    metadata.ResourceInterface
	options metav1.ListOptions
	seen    func(key string) (version string, found bool)
}

// newCatchUp waits for Clusters, requests and credential Secrets. Writes to other kinds name the version that they are based on.
func newCatchUp(c *app.Context) *catchUp {
	resource := func(name string) schema.GroupVersionResource { return fleet.SchemeGroupVersion.WithResource(name) }
	secrets := c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(c.RegistrationNamespace())
	return &catchUp{Context: c, kinds: []awaitedVersions{
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

// await lists the metadata of all objects of the kinds, and waits until the caches contain these versions.
func (u *catchUp) await(ctx context.Context) error {
	for _, kind := range u.kinds {
		if err := u.awaitKind(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

func (u *catchUp) awaitKind(ctx context.Context, kind awaitedVersions) error {
	for {
		all, err := kind.list.List(ctx, kind.options)
		if err != nil {
			return err
		}
		missing := kind.missing(all.Items)
		for look := 0; len(missing) > 0 && look < looks; look++ {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-u.Clock.After(lookPause):
			}
			missing = kind.missing(missing)
		}
		if len(missing) == 0 {
			return nil
		}
	}
}

// missing returns the listed objects that the cache does not contain in this or a newer version.
func (k awaitedVersions) missing(listed []metav1.PartialObjectMetadata) (missing []metav1.PartialObjectMetadata) {
	for _, object := range listed {
		version, found := k.seen(object.Namespace + "/" + object.Name)
		order, err := resourceversion.CompareResourceVersion(version, object.ResourceVersion)
		if !found || err == nil && order < 0 {
			missing = append(missing, object)
		}
	}
	return missing
}
