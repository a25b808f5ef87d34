package deploy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/muster-fleet/muster/pkg/release"
)

func TestAnOldReleaseTakesNothingAlongThatTheNewOneNeeds(t *testing.T) {
	labels := map[string]string{
		"muster.fleet.cattle.io/delete-namespace": "true", "muster.fleet.cattle.io/delete-crds": "true",
	}
	old := release.Found{Namespace: "old", Name: "app", Labels: labels}
	object := func(kind, namespace, name string) *release.Deployed {
		o := &unstructured.Unstructured{Object: map[string]any{"kind": kind}}
		o.SetNamespace(namespace)
		o.SetName(name)
		return &release.Deployed{Objects: []release.Object{{Desired: o}}}
	}
	for name, row := range map[string]struct {
		current  release.Found
		deployed *release.Deployed
		goes     bool
	}{
		"moved away":                        {release.Found{Namespace: "new", Name: "app"}, object("ConfigMap", "new", "a"), true},
		"moved away, and not read yet":      {release.Found{Namespace: "new", Name: "app"}, nil, true},
		"renamed in its namespace":          {release.Found{Namespace: "old", Name: "other"}, nil, false},
		"an object stays in the old one":    {release.Found{Namespace: "new", Name: "app"}, object("ConfigMap", "old", "a"), false},
		"the namespace itself is an object": {release.Found{Namespace: "new", Name: "app"}, object("Namespace", "", "old"), false},
	} {
		t.Run(name, func(t *testing.T) {
			options := leftover(old, row.current, &item{deployed: row.deployed})
			assert.Equal(t, row.goes, options.DeleteNamespace)
			assert.False(t, options.DeleteCRDs, "the new release has objects of these kinds")
		})
	}
	assert.True(t, old.Options().DeleteNamespace && old.Options().DeleteCRDs)
}
