package enqueue

import (
	"fmt"
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
