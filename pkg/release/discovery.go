package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// schemaCache holds the kinds that the cluster serves. It is read once, and again when a kind is unknown.
type schemaCache struct {
	discovery discovery.CachedDiscoveryInterface
	mapper    meta.ResettableRESTMapper
	lookup    *kindLookup // the mapper, if the client looks up kinds; nil otherwise
}

func newSchemaCache(d discovery.DiscoveryInterface) *schemaCache {
	cached := memory.NewMemCacheClient(d)
	return &schemaCache{discovery: cached, mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached)}
}

// failure returns one of the errors of reading the kinds, nil if there is none. The library that reads manifests does not wrap it.
func (s *schemaCache) failure() error {
	if s.lookup == nil {
		return nil
	}
	s.lookup.mu.Lock()
	defer s.lookup.mu.Unlock()
	for _, err := range s.lookup.failed {
		return err
	}
	return nil
}

// servedVersion returns a version in which the API server serves a kind; "" if it serves none. Unlike a mapper, it returns an error if an aggregated API
// server does not answer: the mapper of client-go does not know the kinds of that server then, and does not say so.
func servedVersion(client discovery.DiscoveryInterface, kind schema.GroupKind) (string, error) {
	group := metav1.APIGroup{Versions: []metav1.GroupVersionForDiscovery{{GroupVersion: corev1.SchemeGroupVersion.String(), Version: corev1.SchemeGroupVersion.Version}}}
	if kind.Group != "" {
		// The transport of the client ends each request with the context of the action (endingWith).
		err := client.RESTClient().Get().AbsPath("/apis", kind.Group).Do(context.Background()).Into(&group)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("looking for the versions of API group %s: %w", kind.Group, err)
		}
	}
	for _, version := range group.Versions {
		list, err := client.ServerResourcesForGroupVersion(version.GroupVersion)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return "", fmt.Errorf("looking for the kinds of %s: %w", version.GroupVersion, err)
		case slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind.Kind && !strings.Contains(r.Name, "/") }):
			return version.Version, nil
		}
	}
	return "", nil
}

func isUnknownKind(err error) bool { return len(unknownKinds(err)) > 0 }

// unknownKinds returns the kinds that are unknown according to an error of a mapper, or of Build.
func unknownKinds(err error) (kinds []schema.GroupVersionKind) {
	var all utilerrors.Aggregate
	var unknown *meta.NoKindMatchError
	switch {
	case errors.As(err, &all):
		for _, err := range all.Errors() {
			kinds = append(kinds, unknownKinds(err)...)
		}
	case errors.As(err, &unknown):
		for _, version := range unknown.SearchedVersions {
			kinds = append(kinds, unknown.GroupKind.WithVersion(version))
		}
	}
	return kinds
}

// LookUpKinds returns a client that reads only the kinds of the versions of API groups that it needs, one version after another, and keeps only
// those that it needs. A cluster may serve any number of kinds, and each takes some kilobytes in the mapper of client-go. The requests end with ctx.
func (c *Client) LookUpKinds(ctx context.Context) (*Client, error) {
	config := rest.CopyConfig(c.config)
	config.Wrap(endingWith(ctx).Wrap)
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	lookup := &kindLookup{
		RESTMapper: meta.NewDefaultRESTMapper(nil), client: client,
		known: map[schema.GroupVersionKind]*meta.RESTMapping{}, failed: map[schema.GroupVersion]error{},
	}
	looking := *c
	looking.schema = &schemaCache{discovery: memory.NewMemCacheClient(client), mapper: lookup, lookup: lookup}
	return &looking, nil
}

// kindLookup maps the kinds in a manifest, which name a version. It maps nothing else.
type kindLookup struct {
	meta.RESTMapper // of no kinds
	client          discovery.ServerResourcesInterface

	mu      sync.Mutex
	known   map[schema.GroupVersionKind]*meta.RESTMapping // nil for a kind that the cluster does not serve
	unasked int                                           // how many of them were not asked for
	failed  map[schema.GroupVersion]error                 // until Reset: a manifest may have thousands of objects of one version
}

// Limits of the kinds that a kindLookup keeps in addition to those that it was asked for, so that it does not list the kinds of a version again: their
// number, and the length of the names of each.
const (
	unaskedMax   = 200
	kindNamesMax = 256
)

// knownKindsMax is the number of kinds above which Reset forgets them all.
const knownKindsMax = 1000

// RESTMapping returns the mapping of a kind in the first of the versions in which the cluster serves it.
func (k *kindLookup) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, version := range versions {
		wanted := kind.WithVersion(version)
		if _, isKnown := k.known[wanted]; !isKnown {
			if err := k.list(wanted); err != nil {
				return nil, err
			}
		}
		if found := k.known[wanted]; found != nil {
			return found, nil
		}
	}
	return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
}

// list reads the kinds of the version of the wanted kind.
func (k *kindLookup) list(wanted schema.GroupVersionKind) error {
	if failed := k.failed[wanted.GroupVersion()]; failed != nil {
		return failed
	}
	list, err := k.client.ServerResourcesForGroupVersion(wanted.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		k.known[wanted] = nil
		return nil
	}
	if err != nil {
		k.failed[wanted.GroupVersion()] = shortened(err)
		return k.failed[wanted.GroupVersion()]
	}
	k.known[wanted] = nil
	for _, r := range list.APIResources {
		kind := wanted.GroupVersion().WithKind(strings.Clone(r.Kind))
		isUnasked := kind != wanted && k.unasked < unaskedMax && k.known[kind] == nil
		if strings.Contains(r.Name, "/") || len(r.Name)+len(r.Kind) > kindNamesMax || kind != wanted && !isUnasked {
			continue // a subresource, such as deployments/scale, which no manifest has, or one too many
		}
		if isUnasked {
			k.unasked++
		}
		scope := meta.RESTScopeRoot
		if r.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		k.known[kind] = &meta.RESTMapping{Resource: wanted.GroupVersion().WithResource(strings.Clone(r.Name)), GroupVersionKind: kind, Scope: scope}
	}
	return nil
}

// RESTMappings returns the mapping of RESTMapping.
func (k *kindLookup) RESTMappings(kind schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	found, err := k.RESTMapping(kind, versions...)
	return []*meta.RESTMapping{found}, err
}

// Reset makes the next call look for unknown kinds again, and for those of versions that could not be read. Histories can name any number of kinds, so
// it forgets all when there are many.
func (k *kindLookup) Reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.failed)
	if len(k.known) > knownKindsMax {
		clear(k.known)
		k.unasked = 0
	}
	for kind, mapping := range k.known {
		if mapping == nil {
			delete(k.known, kind)
		}
	}
}
