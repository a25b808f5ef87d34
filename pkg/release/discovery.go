package release

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// schemaCache holds the kinds that the cluster serves. It is read once, and again when a kind is unknown.
type schemaCache struct {
	discovery discovery.CachedDiscoveryInterface
	mapper    meta.ResettableRESTMapper
	limited   *limitedDiscovery // nil if the client has no DiscoveryLimits
}

func newSchemaCache(d discovery.DiscoveryInterface) *schemaCache {
	cached := memory.NewMemCacheClient(d)
	return &schemaCache{discovery: cached, mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached)}
}

// refusal returns the DiscoveryError of the cluster, nil if there is none. The library that reads manifests does not wrap it.
func (s *schemaCache) refusal() error {
	if s.limited == nil {
		return nil
	}
	if refused := s.limited.refused.Load(); refused != nil {
		return refused
	}
	return nil
}

// DiscoveryLimits limit the kinds of a cluster that a client reads. Each of them, and each version of a group, takes some kilobytes.
type DiscoveryLimits struct {
	GroupVersions int // versions of groups, and groups
	Kinds         int // resources, in all versions
}

// DiscoveryError means that the API server serves more than the limits.
type DiscoveryError struct{ Limits DiscoveryLimits }

func (e *DiscoveryError) Error() string {
	return fmt.Sprintf("the API server serves more than %d versions of API groups or %d kinds", e.Limits.GroupVersions, e.Limits.Kinds)
}

// LimitDiscovery returns a client that returns a DiscoveryError instead of more kinds than the limits. It sends the requests for them one after
// another, and they end with ctx: client-go sends one for each version of a group, all at the same time, if the API server does not aggregate them.
func (c *Client) LimitDiscovery(ctx context.Context, limits DiscoveryLimits) (*Client, error) {
	config := rest.CopyConfig(c.config)
	config.Wrap(until(ctx).Wrap)
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	limited := *c
	kinds := &limitedDiscovery{AggregatedDiscoveryInterface: client, limits: limits}
	limited.schema = newSchemaCache(kinds)
	limited.schema.limited = kinds
	return &limited, nil
}

// limitedDiscovery applies DiscoveryLimits.
type limitedDiscovery struct {
	discovery.AggregatedDiscoveryInterface
	limits  DiscoveryLimits
	refused atomic.Pointer[DiscoveryError]
}

// GroupsAndMaybeResources returns the resources even if the API server does not aggregate them. Otherwise the cache of client-go would read them.
func (d *limitedDiscovery) GroupsAndMaybeResources() (
	*metav1.APIGroupList, map[schema.GroupVersion]*metav1.APIResourceList, map[schema.GroupVersion]error, error,
) {
	if refused := d.refused.Load(); refused != nil { // the mapper asks again for each object
		return nil, nil, nil, refused
	}
	groups, resources, failed, err := d.AggregatedDiscoveryInterface.GroupsAndMaybeResources()
	if err != nil {
		return nil, nil, nil, err
	}
	if versions := versionsOf(groups); max(len(groups.Groups), len(versions)) > d.limits.GroupVersions {
		return nil, nil, nil, d.refuse()
	} else if resources == nil {
		resources, failed = d.readResources(versions)
	}
	kinds := 0
	for _, list := range resources {
		list.APIResources = slices.Clone(slices.DeleteFunc(list.APIResources, isSubresource))
		kinds += len(list.APIResources)
	}
	if kinds > d.limits.Kinds {
		return nil, nil, nil, d.refuse()
	}
	return groups, resources, failed, nil
}

func (d *limitedDiscovery) refuse() error {
	d.refused.Store(&DiscoveryError{Limits: d.limits})
	return d.refused.Load()
}

func versionsOf(groups *metav1.APIGroupList) (versions []string) {
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			versions = append(versions, version.GroupVersion)
		}
	}
	return versions
}

// readResources reads the resources of each version, until they are more than the limit. It keeps only what the mapper needs of them.
func (d *limitedDiscovery) readResources(versions []string) (map[schema.GroupVersion]*metav1.APIResourceList, map[schema.GroupVersion]error) {
	found, failed, kinds := map[schema.GroupVersion]*metav1.APIResourceList{}, map[schema.GroupVersion]error{}, 0
	for _, name := range versions {
		version, err := schema.ParseGroupVersion(name)
		if err != nil {
			continue
		}
		list, err := d.ServerResourcesForGroupVersion(name)
		if err != nil {
			failed[version] = shortened(err)
			continue
		}
		needed := &metav1.APIResourceList{GroupVersion: name}
		for _, r := range list.APIResources {
			if len(r.Name)+len(r.SingularName)+len(r.Kind) <= kindNamesMax && !isSubresource(r) {
				needed.APIResources = append(needed.APIResources, metav1.APIResource{
					Name: r.Name, SingularName: r.SingularName, Namespaced: r.Namespaced, Kind: r.Kind,
				})
			}
		}
		found[version] = needed
		if kinds += len(needed.APIResources); kinds > d.limits.Kinds {
			break
		}
	}
	return found, failed
}

// isSubresource reports whether a resource is a part of another one, such as deployments/scale, which no manifest has.
func isSubresource(r metav1.APIResource) bool { return strings.Contains(r.Name, "/") }

// kindNamesMax is more than the names of a resource and its kind have together. Other names than those of an API server would only take memory.
const kindNamesMax = 512
