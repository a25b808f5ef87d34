package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
)

const (
	// pollInterval is the interval at which a cache is compared with the list.
	pollInterval = 20 * time.Millisecond
	// pollsPerList is the number of comparisons after which the objects are listed again: a missing object may have been deleted.
	pollsPerList = 50
)

// catchUp waits until the caches contain what another replica of the hub wrote before this one acquired the Lease. Who holds an identity, and
// which request was counted, is decided from the caches. With a cache that lags behind, this replica could grant an identity that the
// previous one has just granted to another agent, or delete a BundleDeployment because it does not know the Bundle.
type catchUp struct {
	*app.Context
	kinds []awaitedVersions
}

// awaitedVersions lists the objects of one kind on the API server and finds their versions in the cache.
type awaitedVersions struct {
	list    metadata.ResourceInterface
	options metav1.ListOptions
	cache   cacheVersions
}

// cacheVersions are the versions of the objects in a cache.
type cacheVersions interface {
	of(key string) (version string, found bool)
	// latest is the version up to which the cache has received events.
	latest() string
}

// newCatchUp returns the kinds to wait for: kinds of which a missing object changes a decision. For other kinds a cache that lags is harmless,
// because each write names the version that it is based on, and fails.
func newCatchUp(c *app.Context) *catchUp {
	resource := func(name string) metadata.ResourceInterface {
		return c.Metadata.Resource(fleet.SchemeGroupVersion.WithResource(name))
	}
	secrets := c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(c.RegistrationNamespace())
	accounts := c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("serviceaccounts"))
	all, managed := metav1.ListOptions{}, metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue}
	return &catchUp{Context: c, kinds: []awaitedVersions{
		{resource("clusterregistrations"), all, informer{c.Fleet.ClusterRegistration().Informer()}},
		{resource("clusterregistrationtokens"), all, informer{c.Fleet.ClusterRegistrationToken().Informer()}},
		{resource("clusters"), all, informer{c.Fleet.Cluster().Informer()}},
		{resource("clustergroups"), all, informer{c.Fleet.ClusterGroup().Informer()}},
		{resource("bundles"), all, informer{c.Fleet.Bundle().Informer()}},
		{resource("bundledeployments"), all, informer{c.Fleet.BundleDeployment().Informer()}},
		{secrets, managed, informer{c.Core.Secret().Informer()}},
		{accounts, managed, informer{c.Core.ServiceAccount().Informer()}},
	}}
}

type informer struct{ cache.SharedIndexInformer }

func (i informer) of(key string) (string, bool) {
	object, found, err := i.GetStore().GetByKey(key)
	if m, ok := object.(metav1.Object); err == nil && found && ok {
		return m.GetResourceVersion(), true
	}
	return "", false
}

func (i informer) latest() string { return i.LastSyncResourceVersion() }

// await lists the metadata of all objects of the kinds, and waits until the caches contain these versions.
func (c *catchUp) await(ctx context.Context) error {
	for _, kind := range c.kinds {
		if err := c.awaitKind(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

func (c *catchUp) awaitKind(ctx context.Context, kind awaitedVersions) error {
	for {
		latest := kind.cache.latest()
		all, err := kind.list.List(ctx, kind.options)
		if err != nil {
			return err
		}
		// A watch that continues from a later version than the API server has gets no event until the API server has passed that version. If the
		// API server has passed it, or the restore has raised the version, the version of an object is still lower than the one that the cache
		// received before the list. The cache may then show a deletion, for example, that the backup does not contain.
		if isLater(latest, all.ResourceVersion) {
			return fmt.Errorf("the cache is at version %s, and the API server at version %s: %w", latest, all.ResourceVersion, errRestored)
		}
		for _, object := range all.Items {
			if version, _ := kind.cache.of(keyOf(object)); isLater(version, object.ResourceVersion) && !isLater(version, latest) {
				return fmt.Errorf("the cache has version %s of %s, and the API server has version %s: %w",
					version, keyOf(object), object.ResourceVersion, errRestored)
			}
		}
		missing := kind.missing(all.Items)
		for poll := 0; len(missing) > 0 && poll < pollsPerList; poll++ {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-c.Clock.After(pollInterval):
			}
			missing = kind.missing(missing)
		}
		if len(missing) == 0 {
			return nil
		}
	}
}

var errRestored = errors.New("was etcd restored? The hub has to start with empty caches")

// missing returns the listed objects that the cache does not contain in this or a newer version.
func (k awaitedVersions) missing(listed []metav1.PartialObjectMetadata) (missing []metav1.PartialObjectMetadata) {
	for _, object := range listed {
		if version, found := k.cache.of(keyOf(object)); !found || isLater(object.ResourceVersion, version) {
			missing = append(missing, object)
		}
	}
	return missing
}

func keyOf(object metav1.PartialObjectMetadata) string { return object.Namespace + "/" + object.Name }

func isLater(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order > 0
}
