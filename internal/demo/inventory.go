package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// thing is one object of a cluster, whatever its kind.
type thing struct{ kind, namespace, name string }

func (t thing) String() string {
	return t.kind + " " + strings.TrimPrefix(t.namespace+"/"+t.name, "/")
}

// inventory is everything on a cluster, each object with its JSON.
type inventory map[thing]string

// passing are kinds that come and go by themselves and say nothing about what was left behind.
var passing = map[string]bool{"Event": true, "Lease": true, "EndpointSlice": true, "Endpoints": true, "ComponentStatus": true, "APIService": true}

// takeInventory lists all objects of all kinds.
func takeInventory(ctx context.Context, config *rest.Config) (inventory, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	kinds, err := client.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	found := inventory{}
	for _, kind := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, kinds) {
		if err := found.add(ctx, objects, kind); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (i inventory) add(ctx context.Context, objects dynamic.Interface, group *metav1.APIResourceList) error {
	version, err := schema.ParseGroupVersion(group.GroupVersion)
	if err != nil {
		return err
	}
	for _, kind := range group.APIResources {
		if passing[kind.Kind] {
			continue
		}
		list, err := objects.Resource(version.WithResource(kind.Name)).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.Name, err)
		}
		if err := i.addAll(kind.Kind, list.Items); err != nil {
			return err
		}
	}
	return nil
}

func (i inventory) addAll(kind string, objects []unstructured.Unstructured) error {
	for _, o := range objects {
		text, err := json.Marshal(o.Object)
		if err != nil {
			return err
		}
		i[thing{kind, o.GetNamespace(), o.GetName()}] = string(text)
	}
	return nil
}

// mentioning are the objects in which one of the words stands.
func (i inventory) mentioning(words ...string) (found []thing) {
	for t, text := range i {
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) }) {
			found = append(found, t)
		}
	}
	return sorted(found)
}

// since are the objects that were not there before.
func (i inventory) since(before inventory) (found []thing) {
	for t := range i {
		if _, old := before[t]; !old {
			found = append(found, t)
		}
	}
	return sorted(found)
}

func sorted(things []thing) []thing {
	slices.SortFunc(things, func(a, b thing) int { return strings.Compare(a.String(), b.String()) })
	return things
}

// counted is "1 Cluster, 3 Secret, ...".
func counted(things []thing) string {
	counts := map[string]int{}
	for _, t := range things {
		counts[t.kind]++
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	return strings.Join(parts, ", ")
}
