package orphans

import (
	"strings"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/agentspec"
	"github.com/muster-fleet/muster/pkg/registration"
)

// ownerKey identifies the owner of an object: the Cluster, request or token that the annotations or fields of the object name.
type ownerKey struct{ kind, namespace, name string }

// Kinds of owners.
const (
	kindCluster = "Cluster"
	kindRequest = "ClusterRegistration"
	kindToken   = "ClusterRegistrationToken"
)

// sets has, for each kind of owner, the prefix of the IDs of its sets of package apply. Fleet's own controllers use the same prefixes.
var sets = map[string]string{
	kindRequest: "cluster-registration",
	kindToken:   "cluster-group-token",
}

var none ownerKey

// ownerOfNamespace returns the Cluster of a cluster namespace. The namespace must have the name that registration.ClusterNamespace returns for the Cluster.
func ownerOfNamespace(namespace *corev1.Namespace) ownerKey {
	a := namespace.Annotations
	o := ownerKey{kindCluster, a[fleet.WorkspaceAnnotation], a[fleet.ClusterAnnotation]}
	if !isManaged(namespace) || o.namespace == "" || o.name == "" ||
		registration.ClusterNamespace(o.namespace, o.name) != namespace.Name {
		return none
	}
	return o
}

// ownerOfRights returns the request or the token for which a ServiceAccount or an RBAC object was created.
func ownerOfRights(object metav1.Object) ownerKey {
	byRequest, bySet := ownerByRequest(object), ownerBySet(object)
	switch {
	case !isManaged(object):
		return none
	case bySet == none:
		if object.GetAnnotations()[apply.LabelGVK] != "" {
			return none // it records an owner of another kind
		}
		return byRequest
	case byRequest != none && byRequest != bySet:
		return none
	}
	return bySet
}

// ownerByRequest returns the owner in the annotations of an agent's ServiceAccount.
func ownerByRequest(object metav1.Object) ownerKey {
	a := object.GetAnnotations()
	o := ownerKey{kindRequest, a[fleet.ClusterRegistrationNamespaceAnnotation], a[fleet.ClusterRegistrationAnnotation]}
	if o.namespace == "" || o.name == "" {
		return none
	}
	return o
}

// ownerBySet returns the owner in the annotations of an object of such a set. The label of the set, a digest of these annotations, must match.
func ownerBySet(object metav1.Object) ownerKey {
	a := object.GetAnnotations()
	for kind, set := range sets {
		gvk := fleet.SchemeGroupVersion.WithKind(kind)
		if a[apply.LabelGVK] != gvk.String() || !strings.HasPrefix(a[apply.LabelID], set) {
			continue
		}
		o := ownerKey{kind, a[apply.LabelNamespace], a[apply.LabelName]}
		made := &unstructured.Unstructured{}
		made.SetGroupVersionKind(gvk)
		made.SetNamespace(o.namespace)
		made.SetName(o.name)
		labels, _, err := apply.GetLabelsAndAnnotations(a[apply.LabelID], made)
		if err != nil || o.namespace == "" || o.name == "" || labels[apply.LabelHash] != object.GetLabels()[apply.LabelHash] {
			return none
		}
		return o
	}
	return none
}

// ownerOfCredential returns a function that returns the Cluster of an answer Secret.
func ownerOfCredential(registrationNamespace string) func(*corev1.Secret) ownerKey {
	return func(secret *corev1.Secret) ownerKey {
		o := ownerKey{
			kindCluster, string(secret.Data[registration.CredentialWorkspace]), string(secret.Data[registration.CredentialClusterName]),
		}
		if !isManaged(secret) || secret.Namespace != registrationNamespace || secret.Type != registration.SecretTypeAnswer ||
			o.namespace == "" || o.name == "" || secret.Labels[fleet.ClusterLabel] != registration.LabelValue(o.name) {
			return none
		}
		return o
	}
}

// isManaged reports whether an object has the label of the objects that the hub creates.
func isManaged(object metav1.Object) bool {
	return object.GetLabels()[fleet.ManagedLabel] == fleet.ManagedValue
}

// ownerOfBundle returns the Cluster of an agent's Bundle.
func ownerOfBundle(bundle *fleet.Bundle) ownerKey {
	if !agentspec.IsAgentBundle(bundle) || len(bundle.Spec.Targets) != 1 {
		return none
	}
	name := bundle.Spec.Targets[0].ClusterName
	if name == "" || registration.AgentBundleName(name) != bundle.Name {
		return none
	}
	return ownerKey{kindCluster, bundle.Namespace, name}
}

// ownerOfRequest returns the Cluster for which a request was granted.
func ownerOfRequest(request *fleet.ClusterRegistration) ownerKey {
	if !request.Status.Granted || request.Status.ClusterName == "" || request.Labels[fleet.ClusterManagementLabel] != "" {
		return none
	}
	return ownerKey{kindCluster, request.Namespace, request.Status.ClusterName}
}
