package orphans

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const registrationNamespace = "cattle-fleet-clusters-system"

func managed() map[string]string { return map[string]string{fleet.ManagedLabel: "true"} }

func TestOwnerOfNamespace(t *testing.T) {
	of := func(change func(*corev1.Namespace)) ownerKey {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: registration.ClusterNamespace("ws", "member"), Labels: managed(),
			Annotations: map[string]string{fleet.ClusterAnnotation: "member", fleet.WorkspaceAnnotation: "ws"},
		}}
		change(n)
		return ownerOfNamespace(n)
	}
	assert.Equal(t, ownerKey{kindCluster, "ws", "member"}, of(func(*corev1.Namespace) {}))
	for name, change := range map[string]func(*corev1.Namespace){
		"no label":                         func(n *corev1.Namespace) { n.Labels = nil },
		"another value":                    func(n *corev1.Namespace) { n.Labels[fleet.ManagedLabel] = "false" },
		"no annotations":                   func(n *corev1.Namespace) { n.Annotations = nil },
		"no namespace":                     func(n *corev1.Namespace) { delete(n.Annotations, fleet.WorkspaceAnnotation) },
		"another name":                     func(n *corev1.Namespace) { n.Name = "kube-system" },
		"the name of another":              func(n *corev1.Namespace) { n.Annotations[fleet.ClusterAnnotation] = "other" },
		"made by a person, with the label": func(n *corev1.Namespace) { n.Name, n.Annotations = "mine", nil },
	} {
		assert.Equal(t, none, of(change), name)
	}
}

// account returns a ServiceAccount as the hub and Fleet create it for a request.
func account(t *testing.T, setID, ownerKind string) *corev1.ServiceAccount {
	t.Helper()
	made := &unstructured.Unstructured{}
	made.SetGroupVersionKind(fleet.SchemeGroupVersion.WithKind(ownerKind))
	made.SetNamespace("ws")
	made.SetName("request-abc")
	labels, annotations, err := apply.GetLabelsAndAnnotations(setID, made)
	require.NoError(t, err)
	labels[fleet.ManagedLabel] = "true"
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "y", Labels: labels, Annotations: annotations}}
}

func TestOwnerOfRights(t *testing.T) {
	request, token := ownerKey{kindRequest, "ws", "request-abc"}, ownerKey{kindToken, "ws", "request-abc"}
	annotate := func(a *corev1.ServiceAccount, key, value string) { a.Annotations[key] = value }
	for _, row := range []struct {
		name   string
		set    string
		kind   string
		change func(*corev1.ServiceAccount)
		want   ownerKey
	}{
		{name: "by this hub", set: registration.OwnedSetID("cluster-registration", "ws", "request-abc"), kind: kindRequest, want: request},
		{name: "by Fleet", set: "cluster-registration", kind: kindRequest, want: request},
		{name: "for a token", set: "cluster-group-token", kind: kindToken, want: token},
		{
			name: "in both ways", set: "cluster-registration", kind: kindRequest, want: request,
			change: func(a *corev1.ServiceAccount) {
				annotate(a, fleet.ClusterRegistrationAnnotation, "request-abc")
				annotate(a, fleet.ClusterRegistrationNamespaceAnnotation, "ws")
			},
		},
		{
			name: "in both ways, which contradict each other", set: "cluster-registration", kind: kindRequest,
			change: func(a *corev1.ServiceAccount) {
				annotate(a, fleet.ClusterRegistrationAnnotation, "another")
				annotate(a, fleet.ClusterRegistrationNamespaceAnnotation, "ws")
			},
		},
		{
			name: "outside of a set", set: "cluster-registration", kind: kindRequest, want: request,
			change: func(a *corev1.ServiceAccount) {
				a.Annotations = map[string]string{fleet.ClusterRegistrationAnnotation: "request-abc", fleet.ClusterRegistrationNamespaceAnnotation: "ws"}
			},
		},
		{name: "without our label", set: "cluster-registration", kind: kindRequest, change: func(a *corev1.ServiceAccount) { delete(a.Labels, fleet.ManagedLabel) }},
		{name: "by another set of Fleet's", set: "fleet-bootstrap", kind: kindRequest},
		{name: "for another kind", set: "cluster-registration", kind: "Cluster"},
		{name: "with the annotations of another", set: "cluster-registration", kind: kindRequest, change: func(a *corev1.ServiceAccount) { annotate(a, apply.LabelName, "gone") }},
		{name: "without the label of the set", set: "cluster-registration", kind: kindRequest, change: func(a *corev1.ServiceAccount) { delete(a.Labels, apply.LabelHash) }},
		{name: "for no owner", set: "cluster-registration", kind: kindRequest, change: func(a *corev1.ServiceAccount) { a.Annotations = nil }},
		{name: "for half a name", set: "cluster-registration", kind: kindRequest, change: func(a *corev1.ServiceAccount) {
			a.Annotations = map[string]string{fleet.ClusterRegistrationAnnotation: "request-abc"}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := account(t, row.set, row.kind)
			if row.change != nil {
				row.change(a)
			}
			assert.Equal(t, row.want, ownerOfRights(a))
		})
	}
}

func TestOwnerOfCredential(t *testing.T) {
	of := func(change func(*corev1.Secret)) ownerKey {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: registrationNamespace, Name: "c-1", Labels: managed()},
			Type:       registration.SecretTypeAnswer,
			Data: map[string][]byte{
				registration.CredentialWorkspace: []byte("ws"), registration.CredentialClusterName: []byte("member"),
			},
		}
		s.Labels[fleet.ClusterLabel] = "member"
		change(s)
		return ownerOfCredential(registrationNamespace)(s)
	}
	assert.Equal(t, ownerKey{kindCluster, "ws", "member"}, of(func(*corev1.Secret) {}))
	for name, change := range map[string]func(*corev1.Secret){
		"no label":                     func(s *corev1.Secret) { delete(s.Labels, fleet.ManagedLabel) },
		"another namespace":            func(s *corev1.Secret) { s.Namespace = "ws" },
		"another type":                 func(s *corev1.Secret) { s.Type = "Opaque" },
		"no data":                      func(s *corev1.Secret) { s.Data = nil },
		"the label of another Cluster": func(s *corev1.Secret) { s.Labels[fleet.ClusterLabel] = "other" },
		"no label of a Cluster":        func(s *corev1.Secret) { delete(s.Labels, fleet.ClusterLabel) },
	} {
		assert.Equal(t, none, of(change), name)
	}
}

func TestOwnerOfBundle(t *testing.T) {
	of := func(change func(*fleet.Bundle)) ownerKey {
		b := &fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ws", Name: "fleet-agent-member", Annotations: map[string]string{apply.LabelID: registration.SetIDManageAgent},
			},
			Spec: fleet.BundleSpec{Targets: []fleet.BundleTarget{{ClusterName: "member"}}},
		}
		change(b)
		return ownerOfBundle(b)
	}
	assert.Equal(t, ownerKey{kindCluster, "ws", "member"}, of(func(*fleet.Bundle) {}))
	for name, change := range map[string]func(*fleet.Bundle){
		"made by a person": func(b *fleet.Bundle) { b.Annotations = nil },
		"another set":      func(b *fleet.Bundle) { b.Annotations[apply.LabelID] = "mine" },
		"another name":     func(b *fleet.Bundle) { b.Name = "fleet-agent-other" },
		"no target":        func(b *fleet.Bundle) { b.Spec.Targets = nil },
		"two targets": func(b *fleet.Bundle) {
			b.Spec.Targets = append(b.Spec.Targets, fleet.BundleTarget{ClusterName: "other"})
		},
		"for any Cluster": func(b *fleet.Bundle) { b.Spec.Targets[0].ClusterName = "" },
	} {
		assert.Equal(t, none, of(change), name)
	}
}

func TestOwnerOfRequest(t *testing.T) {
	of := func(granted bool, cluster, management string) ownerKey {
		return ownerOfRequest(&fleet.ClusterRegistration{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Labels: map[string]string{fleet.ClusterManagementLabel: management}},
			Status:     fleet.ClusterRegistrationStatus{Granted: granted, ClusterName: cluster},
		})
	}
	assert.Equal(t, ownerKey{kindCluster, "ws", "member"}, of(true, "member", ""))
	assert.Equal(t, none, of(false, "member", ""), "a request that is not granted may wait for its Cluster")
	assert.Equal(t, none, of(true, "", ""))
	assert.Equal(t, none, of(true, "member", "other"), "another controller manages it")
}
