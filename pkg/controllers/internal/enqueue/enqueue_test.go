package enqueue

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// source is an informer whose events a test makes.
type source struct {
	cache.SharedIndexInformer
	handlers []cache.ResourceEventHandler
}

func (s *source) Informer() cache.SharedIndexInformer { return s }

func (s *source) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	s.handlers = append(s.handlers, h)
	return nil, nil
}

// queue notes what is enqueued.
type queue struct{ added []string }

func (q *queue) EnqueueAfter(namespace, name string, delay time.Duration) {
	q.added = append(q.added, fmt.Sprintf("%s/%s in %s", namespace, name, delay))
}

func secret(version, dependents string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "s", ResourceVersion: version, Annotations: map[string]string{"for": dependents},
	}}
}

func dependents(s *corev1.Secret) (keys []types.NamespacedName) {
	for name := range strings.FieldsSeq(s.Annotations["for"]) {
		keys = append(keys, types.NamespacedName{Namespace: s.Namespace, Name: name})
	}
	return keys
}

func TestOnAnyChangeAndOnDamage(t *testing.T) {
	add := func(object any) func(cache.ResourceEventHandler) {
		return func(h cache.ResourceEventHandler) { h.OnAdd(object, false) }
	}
	update := func(before, after any) func(cache.ResourceEventHandler) {
		return func(h cache.ResourceEventHandler) { h.OnUpdate(before, after) }
	}
	gone := func(object any) func(cache.ResourceEventHandler) {
		return func(h cache.ResourceEventHandler) { h.OnDelete(object) }
	}
	for _, row := range []struct {
		name  string
		event func(cache.ResourceEventHandler)
		any   []string // what OnAnyChange enqueues
		later []string // what OnDamage enqueues
	}{
		{"it is created", add(secret("1", "a b")), []string{"a", "b"}, nil},
		{"it changes", update(secret("1", "a"), secret("2", "a")), []string{"a"}, []string{"a"}},
		{"it is listed again, unchanged", update(secret("1", "a"), secret("1", "a")), nil, nil},
		{"another object depends on it now", update(secret("1", "a"), secret("2", "b")), []string{"a", "b"}, []string{"a", "b"}},
		{"no object depends on it any longer", update(secret("1", "a"), secret("2", "")), []string{"a"}, []string{"a"}},
		{"it is deleted", gone(secret("1", "a")), []string{"a"}, []string{"a"}},
		{
			"it is deleted while the watch is interrupted",
			gone(cache.DeletedFinalStateUnknown{Key: "ns/s", Obj: secret("1", "a")}),
			[]string{"a"},
			[]string{"a"},
		},
		{"it is deleted, and its last version is not known", gone(cache.DeletedFinalStateUnknown{Key: "ns/s"}), nil, nil},
		{"it is of another kind", add(&corev1.ConfigMap{}), nil, nil},
		{"the same object is named twice", add(secret("1", "a a")), []string{"a"}, nil},
		{"nothing depends on it", add(secret("1", "")), nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, delay := range []time.Duration{0, time.Second} {
				watched, target := &source{}, &queue{}
				if delay == 0 {
					OnAnyChange(watched, target, dependents)
				} else {
					OnDamage(watched, target, delay, dependents)
				}
				for _, h := range watched.handlers {
					row.event(h)
				}
				names := row.any
				if delay > 0 {
					names = row.later
				}
				var want []string
				for _, name := range names {
					want = append(want, fmt.Sprintf("ns/%s in %s", name, delay))
				}
				assert.Equal(t, want, target.added)
			}
		})
	}
}

func TestOnTransition(t *testing.T) {
	watched, target := &source{}, &queue{}
	var seen []string
	OnTransition(watched, target, func(before, after *corev1.Secret) []types.NamespacedName {
		version := func(s *corev1.Secret) string {
			if s == nil {
				return "none"
			}
			return s.ResourceVersion
		}
		seen = append(seen, version(before)+" to "+version(after))
		if after == nil {
			return nil
		}
		return dependents(after)
	})
	for _, h := range watched.handlers {
		h.OnAdd(secret("1", "a"), false)
		h.OnUpdate(secret("1", "a"), secret("2", "b"))
		h.OnUpdate(secret("2", "b"), secret("2", "b"))
		h.OnDelete(secret("2", "b"))
		h.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/s", Obj: secret("3", "")})
		h.OnDelete(cache.DeletedFinalStateUnknown{Key: "ns/s"})
		h.OnAdd(&corev1.ConfigMap{}, false)
	}
	assert.Equal(t, []string{"none to 1", "1 to 2", "2 to none", "3 to none"}, seen)
	assert.Equal(t, []string{"ns/a in 0s", "ns/b in 0s"}, target.added)
}

func TestOwnerOf(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "fleet.cattle.io", Version: "v1alpha1", Kind: "ClusterRegistration"}
	made := func(gvk string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Annotations: map[string]string{
			apply.LabelGVK: gvk, apply.LabelNamespace: "ns", apply.LabelName: "owner",
		}}}
	}
	resolve := OwnerOf(kind)
	assert.Equal(t, []types.NamespacedName{{Namespace: "ns", Name: "owner"}}, resolve(made("fleet.cattle.io/v1alpha1, Kind=ClusterRegistration")))
	assert.Empty(t, resolve(made("fleet.cattle.io/v1alpha1, Kind=Cluster")))
	assert.Empty(t, resolve(&corev1.Secret{}))
}

// client-go ends the process if a handler panics.
func TestPanicsOfResolve(t *testing.T) {
	informer, target := &source{}, &queue{}
	poisoned := func(s *corev1.Secret) []types.NamespacedName {
		if s.Annotations["for"] == "" {
			panic("nothing depends on it")
		}
		return dependents(s)
	}
	OnAnyChange(informer, target, poisoned)
	OnDamage(informer, target, time.Second, poisoned)
	OnTransition(informer, target, func(before, after *corev1.Secret) []types.NamespacedName {
		if after == nil {
			panic("deleted")
		}
		return poisoned(after)
	})
	for _, h := range informer.handlers {
		assert.NotPanics(t, func() {
			h.OnAdd(secret("1", ""), false)
			h.OnUpdate(secret("1", ""), secret("2", "a"))
			h.OnDelete(secret("2", ""))
		})
	}
	assert.Equal(t, []string{"ns/a in 0s", "ns/a in 1s", "ns/a in 0s"}, target.added, "the objects that cause no panic count")
}

// client-go ends the process if a handler panics.
func TestEventHandler_panic(t *testing.T) {
	h := EventHandler[*corev1.Secret]{
		Added: func(*corev1.Secret, bool) { panic("added") }, Changed: func(_, _ *corev1.Secret) { panic("changed") },
		Deleted: func(*corev1.Secret) { panic("deleted") },
	}
	before, after := secret("1", ""), secret("2", "")
	assert.NotPanics(t, func() {
		h.OnAdd(before, false)
		h.OnUpdate(before, after)
		h.OnDelete(cache.DeletedFinalStateUnknown{Obj: after})
	})
}

func TestChanges(t *testing.T) {
	target := &queue{}
	c := Changes[[]string]{Queue: target, MarkAll: func(changes *[]string) { *changes = []string{"all"} }}
	note := func(workspace, change string) {
		c.Note(workspace, func(changes *[]string) { *changes = append(*changes, change) })
	}
	pass := func(key string) (workspace string, changes []string, isPass bool) {
		isPass = c.HandleKey(key, func(w string, c []string) { workspace, changes = w, c })
		return workspace, changes, isPass
	}
	for range 10_000 {
		note("a", "x")
	}
	note("b", "y")
	assert.Equal(t, []string{"a/* in 0s", "b/* in 0s"}, target.added, "one pass for each workspace")

	_, _, isPass := pass("a/app")
	assert.False(t, isPass, "the key of an object")
	workspace, changes, isPass := pass("a/*")
	assert.True(t, isPass)
	assert.Equal(t, "a", workspace)
	assert.Len(t, changes, 10_000)
	_, changes, isPass = pass("a/*")
	assert.True(t, isPass)
	assert.Empty(t, changes, "each change is handled once")

	note("a", "z")
	assert.Len(t, target.added, 3, "the next change needs another pass")
	_, changes, _ = pass("a/*")
	assert.Equal(t, []string{"z"}, changes)
	_, changes, _ = pass("b/*")
	assert.Equal(t, []string{"y"}, changes)
	assert.Empty(t, c.byWorkspace)

	note("a", "x")
	target.added = nil
	assert.Panics(t, func() { c.HandleKey("a/*", func(string, []string) { panic("out of range") }) })
	assert.Empty(t, target.added, "the queue repeats the pass, with backoff")
	_, changes, _ = pass("a/*")
	assert.Equal(t, []string{"all"}, changes, "the changes of a pass that panicked are not lost")
	assert.Empty(t, c.byWorkspace)
}

func TestEarlierVersions(t *testing.T) {
	type set = map[string]string
	equal := maps.Equal[set, set]
	var v EarlierVersions[set]
	for range 10_000 {
		v.Add("a", set{"env": "dev"}, 1, equal)
		v.Add("a", set{"env": "prod"}, 1, equal)
		v.Add("b", set{}, 0, equal)
	}
	assert.Equal(t, map[string][]set{"a": {{"env": "dev"}, {"env": "prod"}}, "b": {{}}}, v.ByName)
	assert.False(t, v.All)

	for n := range maxVersions {
		v.Add("a", set{"env": fmt.Sprint(n)}, 1, equal)
	}
	assert.True(t, v.All, "one object has too many versions")
	assert.Empty(t, v.ByName)
	v.Add("a", set{}, 0, equal)
	assert.Empty(t, v.ByName)

	v = EarlierVersions[set]{}
	for n := range maxSize / 2 {
		v.Add(fmt.Sprint(n), set{}, 1, equal)
	}
	assert.False(t, v.All)
	v.Add("one more", set{}, 0, equal)
	assert.True(t, v.All, "together the objects have too many")
}
