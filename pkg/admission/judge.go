package admission

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// settle is how long an API server may take to apply a policy it has stored. It collects them once a second, and where
// there are several servers only one of them was tried.
const settle = 4 * time.Second

// finding is how the API server's policies compare with those that are wanted.
type finding struct {
	// wrong are the objects without which nobody knows who created a request; others are the other ones.
	wrong, others []string
	// since is when the last of them became what it is.
	since time.Time
	// print is another one whenever the objects were made anew or changed.
	print string
}

// compare is given what the API server has, nil for what it has not.
func compare(wanted []*unstructured.Unstructured, get func(*unstructured.Unstructured) *unstructured.Unstructured) finding {
	var f finding
	for _, want := range wanted {
		got := get(want)
		f.note(want, verdictOn(want, got))
		if got == nil || want.GetName() != CreatorPolicy {
			continue
		}
		if last := lastChanged(got); last.After(f.since) {
			f.since = last
		}
		f.print += fmt.Sprintf("%s/%d ", got.GetUID(), got.GetGeneration())
	}
	return f
}

func (f *finding) note(want *unstructured.Unstructured, verdict string) {
	switch {
	case verdict == "":
	case want.GetName() == CreatorPolicy:
		f.wrong = append(f.wrong, verdict)
	default:
		f.others = append(f.others, verdict)
	}
}

func verdictOn(want, got *unstructured.Unstructured) string {
	switch {
	case got == nil:
		return fmt.Sprintf("%s %s is missing", want.GetKind(), want.GetName())
	case got.GetDeletionTimestamp() != nil:
		return fmt.Sprintf("%s %s is being deleted", want.GetKind(), want.GetName())
	case !sameSpec(want, got):
		return fmt.Sprintf("%s %s is not as this hub knows it", want.GetKind(), want.GetName())
	default:
		return ""
	}
}

func describe(wrong []string) string {
	return strings.Join(wrong, ", ") + ": upgrade the chart fleet with admissionPolicies.enabled=true, or let the hub install its policies"
}

// watched tells whether a policy has the label by which it is watched.
func watched(policy *unstructured.Unstructured) bool {
	return policy.GetLabels()[fleet.ManagedLabel] == fleet.ManagedValue
}

func withManagedLabel(labels map[string]string) map[string]string {
	if labels == nil {
		labels = map[string]string{}
	}
	labels[fleet.ManagedLabel] = fleet.ManagedValue
	return labels
}
