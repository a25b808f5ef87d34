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
	"github.com/muster-fleet/muster/pkg/registration"
)

// The templates of the chart that have the policies.
const (
	file           = "admission.yaml"
	clusternetFile = "clusternet.yaml"
)

// Group is the API group of the policies.
const Group = "admissionregistration.k8s.io"

// Kinds of the policies.
const (
	KindMutating          = "MutatingAdmissionPolicy"
	KindMutatingBinding   = "MutatingAdmissionPolicyBinding"
	KindValidating        = "ValidatingAdmissionPolicy"
	KindValidatingBinding = "ValidatingAdmissionPolicyBinding"
)

// Names of policies that Go code refers to; each binding has the name of its policy.
const (
	// CreatorPolicy is a mutating policy and a validating one: the annotation fleet.CreatorAnnotation of every
	// ClusterRegistration names the user who created it.
	CreatorPolicy = "fleet-registration-creator"
	// RegistrationTokenPolicy takes the place of CreatorPolicy where the API server serves no mutating policies: a request may name only
	// a ClusterRegistrationToken with which its creator may register, and fleet.CreatorAnnotation names the creator or nobody.
	RegistrationTokenPolicy = "fleet-registration-token"
	// StatusPolicy limits agents to status.agent of their Cluster, and limits its size.
	StatusPolicy = "fleet-agent-status"
	// DeploymentStatusPolicy limits the size of the status that agents write to their BundleDeployments.
	DeploymentStatusPolicy = "fleet-agent-bundledeployment-status"
	// TokenPolicy is a validating policy that limits agents to short-lived tokens of their own ServiceAccount, and a mutating one that
	// sets the audience of these tokens to the API server.
	TokenPolicy = "fleet-agent-token"
	// AudiencePolicy takes the place of the mutating TokenPolicy where the API server serves no mutating policies: it refuses tokens for other
	// audiences than those in fleet.AudiencesAnnotation of the ClusterRole registration.ClusterRoleAudience.
	AudiencePolicy = registration.ClusterRoleAudience
)

// Names of the further policies of a hub that serves Clusternet agents.
const (
	// ClusternetCreatorPolicy is a mutating policy and a validating one: fleet.CreatorAnnotation of every ClusterRegistrationRequest names
	// the user who created it.
	ClusternetCreatorPolicy = "fleet-clusternet-creator"
	// ClusternetRequestPolicy lets agents create only their own request again, and limits the size of requests.
	ClusternetRequestPolicy = "fleet-clusternet-request"
	// ClusternetMemberPolicy limits agents to the labels of their ManagedCluster.
	ClusternetMemberPolicy = "fleet-clusternet-managedcluster"
	// ClusternetStatusPolicy limits the size of the reports of agents.
	ClusternetStatusPolicy = "fleet-clusternet-status"
	// ClusternetSecretPolicy is a mutating policy and a validating one: the one Secret that agents may write is empty, unless the hub is
	// configured to keep it.
	ClusternetSecretPolicy = "fleet-clusternet-secret"
)

// PolicyRef names one of the policies. Its binding counts as a part of it.
type PolicyRef struct {
	Kind, Name string
}

// policyOf returns the policy that the object is or, for a binding, that it binds.
func policyOf(object *unstructured.Unstructured) PolicyRef {
	return PolicyRef{strings.TrimSuffix(object.GetKind(), "Binding"), object.GetName()}
}

// provesOrigin reports whether a policy or binding is one of those that prove where requests come from.
func provesOrigin(object *unstructured.Unstructured) bool {
	return slices.Contains([]string{CreatorPolicy, RegistrationTokenPolicy, ClusternetCreatorPolicy}, object.GetName())
}

// rendering is one way to render the policies of the chart.
type rendering struct {
	file     string
	mutating bool // the API server serves MutatingAdmissionPolicies
}

// renderings caches the result of render, which takes some milliseconds.
var renderings sync.Map

func (r rendering) render() ([]*unstructured.Unstructured, error) {
	if known, ok := renderings.Load(r); ok {
		return known.([]*unstructured.Unstructured), nil
	}
	kubernetes := "v1.30.0" // an API server of this version serves no MutatingAdmissionPolicies
	if r.mutating {
		kubernetes = "" // the newest supported version of Kubernetes
	}
	values := map[string]any{"clusternet": map[string]any{"enabled": true}}
	rendered, err := charts.Render(charts.Hub, charts.Release{Name: charts.Hub, Namespace: "default", KubeVersion: kubernetes}, values)
	if err != nil {
		return nil, err
	}
	documents, err := charts.Documents(rendered[path.Join(charts.Hub, "templates", r.file)])
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
	renderings.Store(r, objects)
	return objects, nil
}

// Objects returns new objects of the policies and their bindings, for an API server that serves MutatingAdmissionPolicies in that
// version: v1, v1beta1 or v1alpha1; "" if it serves none.
func Objects(mutatingVersion string) ([]*unstructured.Unstructured, error) {
	return inVersion(mutatingVersion, rendering{file: file, mutating: mutatingVersion != ""})
}

// ClusternetObjects returns the further policies of a hub that serves Clusternet agents.
func ClusternetObjects(mutatingVersion string) ([]*unstructured.Unstructured, error) {
	return inVersion(mutatingVersion, rendering{file: clusternetFile, mutating: mutatingVersion != ""})
}

func inVersion(mutatingVersion string, policies rendering) ([]*unstructured.Unstructured, error) {
	rendered, err := policies.render()
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, 0, len(rendered))
	for _, object := range rendered {
		object = object.DeepCopy()
		if policyOf(object).Kind == KindMutating {
			object.SetAPIVersion(Group + "/" + mutatingVersion)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// others returns the validating policies and bindings that this hub may have installed before the API server started, or stopped, serving
// MutatingAdmissionPolicies, and that of does not return any more. It omits the mutating policies: an API server that no longer serves them
// has no resource from which they can be deleted.
func others(mutatingVersion string, of func(mutatingVersion string) ([]*unstructured.Unstructured, error)) ([]*unstructured.Unstructured, error) {
	wanted, err := of(mutatingVersion)
	if err != nil {
		return nil, err
	}
	before := ""
	if mutatingVersion == "" {
		before = "v1"
	}
	candidates, err := of(before)
	return slices.DeleteFunc(candidates, func(candidate *unstructured.Unstructured) bool {
		return policyOf(candidate).Kind == KindMutating || slices.ContainsFunc(wanted, func(want *unstructured.Unstructured) bool {
			return want.GetKind() == candidate.GetKind() && want.GetName() == candidate.GetName()
		})
	}), err
}

// Resource returns the resource of a policy or binding.
func Resource(object *unstructured.Unstructured) schema.GroupVersionResource {
	plural, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	return plural
}
