// Package admission has the admission policies of the hub, which the chart fleet installs too, and reports whether they are in force on
// an API server. They let the API server record who creates a ClusterRegistration, and limit what agents write more narrowly than RBAC
// can. They are CEL policies, without a webhook.
package admission

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/muster-fleet/muster/charts"
)

// file is the template of the chart that has the policies.
const file = "admission.yaml"

// Group is the API group of the policies.
const Group = "admissionregistration.k8s.io"

// Kinds of the policies.
const (
	KindMutating          = "MutatingAdmissionPolicy"
	KindMutatingBinding   = "MutatingAdmissionPolicyBinding"
	KindValidating        = "ValidatingAdmissionPolicy"
	KindValidatingBinding = "ValidatingAdmissionPolicyBinding"
)

// Names of the policies; each binding has the name of its policy.
const (
	// CreatorPolicy is a mutating policy and a validating one: the annotation fleet.CreatorAnnotation of every
	// ClusterRegistration names the user who created it.
	CreatorPolicy = "fleet-registration-creator"
	// RequestPolicy refuses requests of registration tokens that would block the deletion of other objects.
	RequestPolicy = "fleet-registration-request"
	// HubTokenPolicy limits the tokens that the hub issues to ServiceAccounts that it created.
	HubTokenPolicy = "fleet-controller-token"
	// StatusPolicy limits agents to status.agent of their Cluster, and the size of that.
	StatusPolicy = "fleet-agent-status"
	// TokenPolicy is a validating policy that limits agents to short-lived tokens of their own ServiceAccount, and a mutating one that
	// sets the audience of these tokens to the API server.
	TokenPolicy = "fleet-agent-token"
)

// PolicyRef names one of the policies. Its binding counts as a part of it.
type PolicyRef struct {
	Kind, Name string
}

// All are the policies for an API server that serves both kinds.
var All = [...]PolicyRef{
	{KindMutating, CreatorPolicy},
	{KindValidating, CreatorPolicy},
	{KindValidating, RequestPolicy},
	{KindValidating, HubTokenPolicy},
	{KindValidating, StatusPolicy},
	{KindMutating, TokenPolicy},
	{KindValidating, TokenPolicy},
}

// indexOf is the index in All of a policy, or of the policy of a binding.
func indexOf(kind, name string) int {
	return slices.Index(All[:], PolicyRef{strings.TrimSuffix(kind, "Binding"), name})
}

// parsed returns the policies of the chart. Their kinds have version v1.
var parsed = sync.OnceValues(func() ([]*unstructured.Unstructured, error) {
	rendered, err := charts.Render(charts.Hub, charts.Release{Name: charts.Hub, Namespace: "default"}, nil)
	if err != nil {
		return nil, err
	}
	documents, err := charts.Documents(rendered[path.Join(charts.Hub, "templates", file)])
	if err != nil {
		return nil, fmt.Errorf("reading the embedded admission policies: %w", err)
	}
	var objects []*unstructured.Unstructured
	for _, document := range documents {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(document); err != nil {
			return nil, fmt.Errorf("reading the embedded admission policies: %w", err)
		}
		objects = append(objects, object)
	}
	return objects, nil
})

// Objects returns new objects of the policies and their bindings, for an API server that serves MutatingAdmissionPolicies in that
// version: v1, v1beta1 or v1alpha1. Without a version it leaves out the mutating policies, and the validating policy that relies on one.
func Objects(mutatingVersion string) ([]*unstructured.Unstructured, error) {
	all, err := parsed()
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, object := range all {
		mutating := object.GetKind() == KindMutating || object.GetKind() == KindMutatingBinding
		if mutatingVersion == "" && (mutating || object.GetName() == CreatorPolicy) {
			continue
		}
		object = object.DeepCopy()
		if mutating {
			object.SetAPIVersion(Group + "/" + mutatingVersion)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// Resource returns the resource of a policy or binding.
func Resource(object *unstructured.Unstructured) schema.GroupVersionResource {
	plural, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	return plural
}
