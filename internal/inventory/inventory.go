// Package inventory lists everything there is on a cluster, so that a test or the demo can tell what was left behind.
package inventory

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Thing is one object, whatever its kind.
type Thing struct{ Kind, Namespace, Name string }

func (t Thing) String() string {
	return t.Kind + " " + strings.TrimPrefix(t.Namespace+"/"+t.Name, "/")
}

// Inventory is everything on a cluster, each object with its JSON.
type Inventory map[Thing]string

// passing are kinds that come and go by themselves, or are read off others, and say nothing about what was left behind.
var passing = []string{"Event", "Lease", "EndpointSlice", "Endpoints", "ComponentStatus", "APIService", "NodeMetrics", "PodMetrics"}

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
	for _, group := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, groups) {
		if err := found.addGroup(ctx, objects, group); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (i Inventory) addGroup(ctx context.Context, objects dynamic.Interface, group *metav1.APIResourceList) error {
	version, err := schema.ParseGroupVersion(group.GroupVersion)
	if err != nil {
		return err
	}
	for _, kind := range group.APIResources {
		if slices.Contains(passing, kind.Kind) {
			continue
		}
		list, err := objects.Resource(version.WithResource(kind.Name)).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue // its definition was deleted a moment ago
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.Name, err)
		}
		if err := i.add(kind.Kind, list.Items); err != nil {
			return err
		}
	}
	return nil
}

func (i Inventory) add(kind string, objects []unstructured.Unstructured) error {
	for _, o := range objects {
		text, err := json.Marshal(o.Object)
		if err != nil {
			return err
		}
		i[Thing{kind, o.GetNamespace(), o.GetName()}] = string(text)
	}
	return nil
}

// Mentioning are the objects in which one of the words stands.
func (i Inventory) Mentioning(words ...string) (found []Thing) {
	for t, text := range i {
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) }) {
			found = append(found, t)
		}
	}
	return sorted(found)
}

// Since are the objects that were not there before.
func (i Inventory) Since(before Inventory) (found []Thing) {
	for t := range i {
		if _, old := before[t]; !old {
			found = append(found, t)
		}
	}
	return sorted(found)
}

// OfNamespace are a namespace and what Kubernetes itself puts into each.
func OfNamespace(t Thing) bool {
	return t.Kind == "Namespace" ||
		t.Kind == "ConfigMap" && t.Name == "kube-root-ca.crt" ||
		t.Kind == "ServiceAccount" && t.Name == "default"
}

// List is the names of things, for a message.
func List(things []Thing) string {
	names := make([]string, 0, len(things))
	for _, t := range things {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// Counted is "1 Cluster, 3 Secret, ...".
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
