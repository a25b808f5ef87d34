package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// policyDiff is the difference between the policies on the API server and those of this hub.
type policyDiff struct {
	// origin has the problems of the policies that prove where requests come from, agents the problems of the other policies.
	origin, agents []string
	// since is the time of the last change of a policy that proves where requests come from.
	since time.Time
	// originVersion changes whenever such a policy is created or its spec is changed.
	originVersion string
	// inForce reports for each policy whether it and its binding exist and equal those of this hub.
	inForce map[PolicyRef]bool
}

const differs = "differs from the one of this hub"

// compare gets the policies of the API server with get, which returns nil for a missing one.
func compare(wanted []*unstructured.Unstructured, get func(*unstructured.Unstructured) *unstructured.Unstructured) policyDiff {
	c := policyDiff{inForce: map[PolicyRef]bool{}}
	for _, want := range wanted {
		c.inForce[policyOf(want)] = true
	}
	for _, want := range wanted {
		got, problem := get(want), ""
		switch {
		case got == nil:
			problem = "is missing"
		case got.GetDeletionTimestamp() != nil:
			problem = "is being deleted"
		case !sameSpec(want, got):
			problem = differs
		}
		if problem != "" {
			c.inForce[policyOf(want)] = false
			problems := &c.agents
			if provesOrigin(want) {
				problems = &c.origin
			}
			*problems = append(*problems, want.GetKind()+" "+want.GetName()+" "+problem)
		}
		if got != nil && provesOrigin(want) {
			if last := lastChanged(got); last.After(c.since) {
				c.since = last
			}
			c.originVersion += fmt.Sprintf("%s/%d ", got.GetUID(), got.GetGeneration())
		}
	}
	return c
}

// Remedy tells a person how to get policies that are missing or changed.
const Remedy = "delete the policies and bindings that were changed, and upgrade the chart fleet with admissionPolicies.enabled=true; without the chart, start fleetcontroller without --leave-admission-policies"

func describe(problems []string) string {
	return strings.Join(problems, ", ") + ": " + Remedy
}

// sameSpec compares specs as this version knows them. A field that a newer API server adds with its default makes no difference, but an
// additional selector does: with it, the policy would not apply to everything.
func sameSpec(want, got *unstructured.Unstructured) bool {
	wanted, errWanted := specOf(want)
	found, errFound := specOf(got)
	return errWanted == nil && errFound == nil && equality.Semantic.DeepEqual(wanted, found)
}

// specOf decodes the spec into the type of version v1. All versions have the same fields.
func specOf(object *unstructured.Unstructured) (any, error) {
	fields, _, err := unstructured.NestedMap(object.Object, "spec")
	if err != nil {
		return nil, err
	}
	var spec any
	switch object.GetKind() {
	case KindMutating:
		spec = &admissionv1.MutatingAdmissionPolicySpec{}
	case KindMutatingBinding:
		spec = &admissionv1.MutatingAdmissionPolicyBindingSpec{}
	case KindValidating:
		spec = &admissionv1.ValidatingAdmissionPolicySpec{}
	default:
		spec = &admissionv1.ValidatingAdmissionPolicyBindingSpec{}
	}
	return spec, runtime.DefaultUnstructuredConverter.FromUnstructured(fields, spec)
}

// lastChanged is the time of the last change outside the status. The creation time is not enough: a policy that was weakened and then
// corrected has let requests through in between.
func lastChanged(object *unstructured.Unstructured) time.Time {
	last := object.GetCreationTimestamp().Time
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "" && entry.Time != nil && entry.Time.After(last) {
			last = entry.Time.Time
		}
	}
	return last
}

// Installed reads the policies once. It returns a reason, and a message without a remedy, if policies are missing or changed, or if the API server
// does not serve ValidatingAdmissionPolicies; otherwise both are empty. If sameRelease is false, the policies on the server may be those of another
// release, and it only tests whether they exist. It does not test whether the API server applies the policies; a Monitor does.
func Installed(ctx context.Context, kinds discovery.DiscoveryInterface, client dynamic.Interface, sameRelease bool) (reason, message string, err error) {
	served, err := servedBy(kinds)
	if err != nil {
		return "", "", err
	}
	if !served.validating {
		kubernetes, err := kinds.ServerVersion()
		if err != nil {
			return "", "", err
		}
		return fleet.ReasonPoliciesNotServed, noValidating(kubernetes.GitVersion), nil
	}
	wanted, err := Objects(served.mutating)
	if err != nil {
		return "", "", err
	}
	found := map[*unstructured.Unstructured]*unstructured.Unstructured{}
	for _, want := range wanted {
		got, err := client.Resource(Resource(want)).Get(ctx, want.GetName(), metav1.GetOptions{})
		if err == nil {
			found[want] = got
		} else if !apierrors.IsNotFound(err) {
			return "", "", err
		}
	}
	diff := compare(wanted, func(want *unstructured.Unstructured) *unstructured.Unstructured { return found[want] })
	problems := slices.Concat(diff.origin, diff.agents)
	if !sameRelease {
		problems = slices.DeleteFunc(problems, func(problem string) bool { return strings.HasSuffix(problem, differs) })
	}
	if len(problems) > 0 {
		return fleet.ReasonPolicyMissing, strings.Join(problems, ", "), nil
	}
	return "", "", nil
}
