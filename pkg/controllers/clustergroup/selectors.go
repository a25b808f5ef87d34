package clustergroup

import (
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// MaxSelector is the number of labels, expressions and values that the selector of a ClusterGroup may have. The hub matches it with each
// Cluster of the workspace, and each of its values takes time. A group that lists the names of 9,000 Clusters has 9,001.
const MaxSelector = 10_000

// Selectors compiles the selector of each ClusterGroup once, because a large one takes milliseconds and is matched with each Cluster of the
// workspace. The zero value is ready to use, also by several goroutines.
type Selectors struct {
	mu    sync.Mutex
	byKey map[types.NamespacedName]compiled
}

type compiled struct {
	uid        types.UID
	generation int64
	compile    func() (labels.Selector, error)
}

// Of returns the selector of a group. A group without a selector selects no Cluster. The selector is compiled without the lock, so that the
// selectors of other groups can be found meanwhile.
func (s *Selectors) Of(group *fleet.ClusterGroup) (labels.Selector, error) {
	if group.Spec.MetadataTooLarge { // a change of labels is not a new generation
		return Compile(group)
	}
	return s.find(group).compile()
}

func (s *Selectors) find(group *fleet.ClusterGroup) compiled {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := types.NamespacedName{Namespace: group.Namespace, Name: group.Name}
	known, found := s.byKey[key]
	if !found || known.uid != group.UID || known.generation != group.Generation {
		known = compiled{group.UID, group.Generation, sync.OnceValues(func() (labels.Selector, error) { return Compile(group) })}
		if s.byKey == nil {
			s.byKey = map[types.NamespacedName]compiled{}
		}
		s.byKey[key] = known
	}
	return known
}

// Forget drops the selector of a deleted group.
func (s *Selectors) Forget(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byKey, types.NamespacedName{Namespace: namespace, Name: name})
}

// Compile returns the selector of a group and keeps nothing. Its errors name the field.
func Compile(group *fleet.ClusterGroup) (labels.Selector, error) {
	if group.Spec.MetadataTooLarge {
		return nil, errors.New(registration.MetadataTooLarge)
	}
	if isTooLarge(group.Spec.Selector) {
		return nil, fmt.Errorf("spec.selector has more than %d labels, expressions and values; use several groups", MaxSelector)
	}
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	return selector, nil
}

func isTooLarge(selector *metav1.LabelSelector) bool { return size(selector) > MaxSelector }

// Size is the number of labels, expressions and values in the selector of a group.
func Size(group *fleet.ClusterGroup) int { return size(group.Spec.Selector) }

func size(selector *metav1.LabelSelector) (n int) {
	if selector == nil {
		return 0
	}
	for _, e := range selector.MatchExpressions {
		n += len(e.Values)
	}
	return n + len(selector.MatchLabels) + len(selector.MatchExpressions)
}

// tooLarge stands in caches for all selectors that are too large.
var tooLarge = &metav1.LabelSelector{MatchExpressions: make([]metav1.LabelSelectorRequirement, MaxSelector+1)}

// Reduce is the transform of the cache of ClusterGroups. It drops a selector that is too large, so that no user can fill the memory of the
// hub with it; the group still counts as one whose selector is too large.
func Reduce(object any) (any, error) {
	if group, ok := object.(*fleet.ClusterGroup); ok && isTooLarge(group.Spec.Selector) {
		group.Spec.Selector = tooLarge
	}
	return object, nil
}
