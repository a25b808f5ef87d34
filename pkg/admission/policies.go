// Package admission has the hub's admission policies, the very ones the chart fleet installs, and knows whether they are in
// force on an API server. By them the API server itself records who asks for a registration, and agents, whose rights RBAC
// cannot put finely enough, keep to what is theirs. There is no webhook.
package admission

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/muster-fleet/muster/charts"
)

// file is where the chart has them.
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

// resources of the kinds, by kind.
var resources = map[string]string{
	KindMutating:          "mutatingadmissionpolicies",
	KindMutatingBinding:   "mutatingadmissionpolicybindings",
	KindValidating:        "validatingadmissionpolicies",
	KindValidatingBinding: "validatingadmissionpolicybindings",
}

// Names of the policies; each binding has the name of its policy.
const (
	// CreatorPolicy is a mutating policy and a validating one: the annotation fleet.CreatorAnnotation of every
	// ClusterRegistration names the user who created it.
	CreatorPolicy = "fleet-registration-creator"
	// RequestPolicy keeps what whoever holds a registration token creates from standing in the way of others.
	RequestPolicy = "fleet-registration-request"
	// HubTokenPolicy lets the hub issue tokens of ServiceAccounts it made, and of no others.
	HubTokenPolicy = "fleet-controller-token"
	// StatusPolicy lets agents write nothing but status.agent of a Cluster, and not much there.
	StatusPolicy = "fleet-agent-status"
	// TokenPolicy is a validating policy, which lets agents ask for short-lived tokens of their own ServiceAccount only, and a
	// mutating one, which makes these tokens for the API server.
	TokenPolicy = "fleet-agent-token"
)

// parsed are the policies with their kinds in version v1.
var parsed = sync.OnceValues(func() ([]*unstructured.Unstructured, error) {
	rendered, err := charts.Render(charts.Hub, charts.Release{Name: charts.Hub, Namespace: "default"}, nil)
	if err != nil {
		return nil, err
	}
	return decode(rendered[path.Join(charts.Hub, "templates", file)])
})

func decode(manifest string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	reader := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifest)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("reading the embedded admission policies: %w", err)
		}
		objects = append(objects, object)
	}
}

// Objects returns the policies and their bindings as an API server takes them that serves MutatingAdmissionPolicies in that
// version, v1 or v1beta1; with an empty one those are left out, and with them the validating policy that relies on one.
// Each call returns new objects.
func Objects(mutatingVersion string) ([]*unstructured.Unstructured, error) {
	all, err := parsed()
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, object := range all {
		if mutatingVersion == "" && (mutating(object.GetKind()) || object.GetName() == CreatorPolicy) {
			continue
		}
		object = object.DeepCopy()
		if mutating(object.GetKind()) {
			object.SetAPIVersion(Group + "/" + mutatingVersion)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

func mutating(kind string) bool { return kind == KindMutating || kind == KindMutatingBinding }

// Resource is under which a policy or binding of Objects is found on the API server.
func Resource(object *unstructured.Unstructured) schema.GroupVersionResource {
	return object.GroupVersionKind().GroupVersion().WithResource(resources[object.GetKind()])
}
