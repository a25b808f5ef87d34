package charts_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

const (
	patience = 2 * time.Minute
	poll     = 100 * time.Millisecond
)

// passing are kinds that come and go by themselves and say nothing about what was left behind.
var passing = []string{"Event", "Lease", "EndpointSlice", "Endpoints", "ComponentStatus", "APIService", "IPAddress"}

// inventory lists all objects of all kinds, with the UID of each.
func inventory(t *testing.T, config *rest.Config) map[string]string {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)
	objects, err := metadata.NewForConfig(config)
	require.NoError(t, err)
	kinds, err := client.ServerPreferredResources()
	require.NoError(t, err)
	found := map[string]string{}
	for _, group := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, kinds) {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		require.NoError(t, err)
		for _, kind := range group.APIResources {
			if slices.Contains(passing, kind.Kind) {
				continue
			}
			list, err := objects.Resource(version.WithResource(kind.Name)).List(context.Background(), metav1.ListOptions{})
			require.NoError(t, err, kind.Name)
			for _, object := range list.Items {
				found[fmt.Sprintf("%s.%s %s/%s", kind.Name, version.Group, object.Namespace, object.Name)] = string(object.UID)
			}
		}
	}
	return found
}

// difference is what one inventory has and another has not, or has made anew.
func difference(these, those map[string]string) []string {
	var missing []string
	for object, uid := range these {
		if those[object] != uid {
			missing = append(missing, object)
		}
	}
	slices.Sort(missing)
	return missing
}

// eventuallyAsBefore: what belongs to a deleted object is collected after it. Kinds that may stay are given by how they begin.
func eventuallyAsBefore(t *testing.T, config *rest.Config, before map[string]string, stays ...string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		now := inventory(t, config)
		rubbish, lost := slices.DeleteFunc(difference(now, before), beginsWithOneOf(stays)), difference(before, now)
		if len(rubbish) == 0 && len(lost) == 0 {
			return
		}
		require.True(t, time.Now().Before(deadline), "left behind: %v; lost: %v", rubbish, lost)
		<-ticker.C
	}
}

func beginsWithOneOf(beginnings []string) func(string) bool {
	return func(object string) bool {
		return slices.ContainsFunc(beginnings, func(beginning string) bool { return strings.HasPrefix(object, beginning) })
	}
}
