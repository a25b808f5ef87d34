package admission

import (
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// sameSpec tells whether the API server has the policy that is wanted: a selector more, and it would not apply to
// everything. Fields this release does not know, by which a newer API server says what it does anyway, do not count. Both
// served versions of a kind have the same fields.
func sameSpec(want, got *unstructured.Unstructured) bool {
	wanted, errWanted := specOf(want)
	found, errFound := specOf(got)
	return errWanted == nil && errFound == nil && equality.Semantic.DeepEqual(wanted, found)
}

func specOf(object *unstructured.Unstructured) (any, error) {
	spec, _, err := unstructured.NestedMap(object.Object, "spec")
	if err != nil {
		return nil, err
	}
	typed := emptySpec(object.GetKind())
	return typed, runtime.DefaultUnstructuredConverter.FromUnstructured(spec, typed)
}

func emptySpec(kind string) any {
	switch kind {
	case KindMutating:
		return &admissionv1.MutatingAdmissionPolicySpec{}
	case KindMutatingBinding:
		return &admissionv1.MutatingAdmissionPolicyBindingSpec{}
	case KindValidating:
		return &admissionv1.ValidatingAdmissionPolicySpec{}
	default:
		return &admissionv1.ValidatingAdmissionPolicyBindingSpec{}
	}
}

// lastChanged is when the policy became what it is. Its creation alone would not do: one that was opened for a while, and
// closed again, has let requests through since.
func lastChanged(object *unstructured.Unstructured) time.Time {
	last := object.GetCreationTimestamp().Time
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "" && entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}
