package deploy

import (
	"fmt"

	"github.com/rancher/wrangler/v3/pkg/summary"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// stateInProgress is wrangler's word for what is not there yet.
const stateInProgress = "in-progress"

// summarize says whether an object is ready. nil is one that the watch has not shown yet.
func summarize(live *unstructured.Unstructured, ignored *fleet.IgnoreOptions) summary.Summary {
	if live == nil {
		return summary.Summary{State: stateInProgress, Transitioning: true}
	}
	if ignored != nil && len(ignored.Conditions) > 0 {
		live = withoutConditions(live, ignored.Conditions)
	}
	return summary.SummarizeWithOptions(live, &summary.SummarizeOptions{HasObservedGeneration: observes(live)})
}

// observes: kinds of other groups need not have status.observedGeneration, and would be waited for for ever.
func observes(o *unstructured.Unstructured) bool {
	_, found, err := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	return err == nil && found || o.GroupVersionKind().Group == "apps"
}

func withoutConditions(o *unstructured.Unstructured, ignored []map[string]string) *unstructured.Unstructured {
	conditions, found, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil || !found {
		return o
	}
	var kept []any
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); !ok || !matchesAny(condition, ignored) {
			kept = append(kept, c)
		}
	}
	changed := o.DeepCopy()
	if err := unstructured.SetNestedSlice(changed.Object, kept, "status", "conditions"); err != nil {
		return o
	}
	return changed
}

func matchesAny(condition map[string]any, ignored []map[string]string) bool {
	for _, fields := range ignored {
		matches := len(fields) > 0
		for key, value := range fields {
			matches = matches && fmt.Sprint(condition[key]) == value
		}
		if matches {
			return true
		}
	}
	return false
}
