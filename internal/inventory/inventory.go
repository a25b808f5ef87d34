// Package inventory lists all objects of a cluster, so that tests and the demo find leftovers.
package inventory

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Thing identifies an object of any kind.
type Thing struct{ Kind, Namespace, Name string }

func (t Thing) String() string {
	return t.Kind + " " + strings.TrimPrefix(t.Namespace+"/"+t.Name, "/")
}

// Inventory has the JSON of all objects of a cluster.
type Inventory map[Thing]string

// ignored are kinds that Kubernetes creates and deletes itself, or computes from other objects.
var ignored = []string{"Event", "Lease", "EndpointSlice", "Endpoints", "ComponentStatus", "APIService", "IPAddress", "NodeMetrics", "PodMetrics"}

// Take lists all objects of all kinds.
func Take(ctx context.Context, config *rest.Config) (Inventory, error) {
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return take(ctx, kinds, objects)
}

func take(ctx context.Context, kinds discovery.DiscoveryInterface, objects dynamic.Interface) (Inventory, error) {
	groups, err := discovery.ServerPreferredResources(kinds)
	if err != nil {
		return nil, err
	}
	found := Inventory{}
	var mutex sync.Mutex
	var lists errgroup.Group // at the same time, because an API server takes a second for its first list of a custom resource
	for _, group := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, groups) {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, kind := range group.APIResources {
			if slices.Contains(ignored, kind.Kind) {
				continue
			}
			lists.Go(func() error {
				list, err := objects.Resource(version.WithResource(kind.Name)).List(ctx, metav1.ListOptions{})
				if apierrors.IsNotFound(err) {
					return nil // its definition was deleted in the meantime
				}
				if err != nil {
					return fmt.Errorf("list %s: %w", kind.Name, err)
				}
				mutex.Lock()
				defer mutex.Unlock()
				for _, o := range list.Items {
					text, err := json.Marshal(o.Object)
					if err != nil {
						return err
					}
					found[Thing{kind.Kind, o.GetNamespace(), o.GetName()}] = string(text)
				}
				return nil
			})
		}
	}
	return found, lists.Wait()
}

// Mentioning are the objects whose JSON contains one of the words.
func (i Inventory) Mentioning(words ...string) (found []Thing) {
	for t, text := range i {
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) }) {
			found = append(found, t)
		}
	}
	return sorted(found)
}

// Since are the objects that did not exist before.
func (i Inventory) Since(before Inventory) (found []Thing) {
	for t := range i {
		if _, old := before[t]; !old {
			found = append(found, t)
		}
	}
	return sorted(found)
}

// OfNamespace reports whether an object is a Namespace, or an object that Kubernetes creates in every Namespace.
func OfNamespace(t Thing) bool {
	return t.Kind == "Namespace" ||
		t.Kind == "ConfigMap" && t.Name == "kube-root-ca.crt" ||
		t.Kind == "ServiceAccount" && t.Name == "default"
}

// List has the names of objects, for messages.
func List(things []Thing) string {
	names := make([]string, 0, len(things))
	for _, t := range things {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// Counted has the number of objects by kind, such as "1 Cluster, 3 Secret".
func Counted(things []Thing) string {
	counts := map[string]int{}
	for _, t := range things {
		counts[t.Kind]++
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	return strings.Join(parts, ", ")
}

func sorted(things []Thing) []Thing {
	slices.SortFunc(things, func(a, b Thing) int { return strings.Compare(a.String(), b.String()) })
	return things
}
