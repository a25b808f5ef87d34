//go:build !race

// It shares objects and caches with memory_test.go.

package hub

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/rightsdigest"
	"github.com/muster-fleet/muster/pkg/registration"
)

// large is what a user writes where the API server limits the size of the object only.
var large = strings.Repeat("x", 200<<10)

func manyTexts(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(i))
	}
	return all
}

// largeMeta is the metadata of an object that a user has made, with the label of the hub.
func largeMeta(namespace, name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: "u", ResourceVersion: "1", GenerateName: large,
		Labels:      map[string]string{fleet.ManagedLabel: fleet.ManagedValue, apply.LabelHash: "h", fleet.ClusterLabel: "c"},
		Annotations: map[string]string{"example.com/any": large, fleet.CredentialAnnotation: large},
	}
	for _, text := range manyTexts(1000) {
		m.Labels["example.com/"+text] = strings.Repeat("x", 63)
		m.Finalizers = append(m.Finalizers, "example.com/"+text)
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: large, Kind: large, Name: large, UID: types.UID(large)})
	}
	for _, key := range []string{
		apply.LabelID, apply.LabelGVK, apply.LabelName, apply.LabelNamespace, fleet.ClusterAnnotation, fleet.WorkspaceAnnotation,
		fleet.NamespaceKeyAnnotation, fleet.ClusterRegistrationAnnotation, fleet.ClusterRegistrationNamespaceAnnotation,
	} {
		m.Annotations[key] = large
	}
	return m
}

// Everybody who may create an object somewhere may give it the label by which the caches select.
func TestReduceManaged_large(t *testing.T) {
	var rules []rbacv1.PolicyRule
	var subjects []rbacv1.Subject
	for _, text := range manyTexts(5000) {
		rules = append(rules, rbacv1.PolicyRule{Verbs: []string{"get"}, Resources: []string{text}})
		subjects = append(subjects, rbacv1.Subject{Kind: rbacv1.UserKind, Name: text})
	}
	data := map[string][]byte{"any": []byte(large), registration.ValuesKey: []byte(large), registration.KubeconfigValue: []byte(large)}
	secret := func(namespace, name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: largeMeta(namespace, name), Type: kind, Data: data, Immutable: ptr.To(true)}
	}
	ref := rbacv1.RoleRef{APIGroup: large, Kind: large, Name: large}
	c, err := newCaches(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, Options{SystemNamespace: "cattle-fleet-system", Clock: clock.RealClock{}})
	require.NoError(t, err)
	caches := unstarted{informers: map[string]*informed{}}
	for _, kind := range managedOnly {
		informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, nil, 0, cache.Indexers{})
		caches.informers[kind.Kind] = &informed{SharedIndexInformer: informer, store: informer.GetStore()}
	}
	require.NoError(t, c.transform(caches, managedOnly))
	for what, object := range map[string]runtime.Object{
		"Namespace/any":             &corev1.Namespace{ObjectMeta: largeMeta("", "any"), Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerName(large)}}},
		"Secret/any":                secret("ns", "any", corev1.SecretTypeOpaque),
		"Secret/any type":           secret("ns", "any", corev1.SecretType(large)),
		"Secret/kubeconfig":         secret("ns", registration.LocalSecret, corev1.SecretTypeOpaque),
		"Secret/credential":         secret("cattle-fleet-clusters-system", "c", registration.SecretTypeAnswer),
		"Secret/foreign credential": secret("ns", "c", registration.SecretTypeAnswer),
		"Secret/values":             secret("ns", "v", registration.SecretTypeValues),
		"Secret/token":              secret("ns", "t", corev1.SecretTypeServiceAccountToken),
		"ServiceAccount/any": &corev1.ServiceAccount{
			ObjectMeta: largeMeta("ns", "any"), Secrets: []corev1.ObjectReference{{Name: large}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: large}},
		},
		"Role/any": &rbacv1.Role{ObjectMeta: largeMeta("ns", "any"), Rules: rules},
		"Role/names": &rbacv1.Role{ObjectMeta: largeMeta("ns", registration.RoleDeploymentSecrets), Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, Resources: []string{"secrets"}, ResourceNames: manyTexts(100_000),
		}}},
		"ClusterRole/any": &rbacv1.ClusterRole{ObjectMeta: largeMeta("", "any"), Rules: rules, AggregationRule: &rbacv1.AggregationRule{
			ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": large}}},
		}},
		"RoleBinding/any":        &rbacv1.RoleBinding{ObjectMeta: largeMeta("ns", "any"), Subjects: subjects, RoleRef: ref},
		"ClusterRoleBinding/any": &rbacv1.ClusterRoleBinding{ObjectMeta: largeMeta("", "any"), Subjects: subjects, RoleRef: ref},
	} {
		t.Run(what, func(t *testing.T) {
			kind, _, _ := strings.Cut(what, "/")
			kept, err := caches.informers[kind].transform(object.DeepCopyObject())
			require.NoError(t, err)
			written, err := json.Marshal(kept)
			require.NoError(t, err)
			assert.Less(t, len(written), 12<<10)
		})
	}
}

// The objects that the hub makes stay as the controllers compare them.
func TestReduceManaged_own(t *testing.T) {
	rights, err := os.ReadFile("../controllers/clusterregistration/testdata/rights-of-one-that-renews.golden.yaml")
	require.NoError(t, err)
	reduce := reduceManaged("registrations")
	for kind, objects := range clusterObjects(t, string(rights), 1) {
		if kind == leaseKind {
			continue // which has its own transform
		}
		for _, object := range objects {
			want := object.(runtime.Object).DeepCopyObject()
			if namespace, ok := want.(*corev1.Namespace); ok {
				namespace.Spec, namespace.Status = corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
				delete(namespace.Labels, corev1.LabelMetadataName) // it would need a map for each Namespace
			}
			rights := want.DeepCopyObject().(metav1.Object)
			rightsdigest.Reduce(want.(metav1.Object))
			for range 2 { // an informer transforms each object of its first list twice
				kept, err := reduce(object)
				require.NoError(t, err)
				assert.Equal(t, want, kept)
			}
			if strings.HasPrefix(kind, "Role") {
				assert.True(t, rightsdigest.Equal(object, rights))
			}
		}
	}

	credential := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "registrations", Name: "c", Labels: map[string]string{fleet.ManagedLabel: fleet.ManagedValue, fleet.ClusterLabel: "member"},
			Annotations: map[string]string{fleet.ClusterRegistrationAnnotation: "r", fleet.ClusterRegistrationNamespaceAnnotation: "ns"},
		},
		Type: registration.SecretTypeAnswer, Data: map[string][]byte{registration.CredentialToken: []byte(strings.Repeat("t", 2000)), "by others": []byte("x")},
	}
	values := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "token", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "K", Name: "token", UID: "u"}}},
		Type:       registration.SecretTypeValues, Data: map[string][]byte{registration.ValuesKey: []byte("token: t")},
	}
	bootstrap := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: registration.LocalSecret}, Data: map[string][]byte{registration.KubeconfigValue: {}},
	}
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "t", Annotations: map[string]string{corev1.ServiceAccountNameKey: "account"}}, Type: corev1.SecretTypeServiceAccountToken,
	}
	for _, object := range []runtime.Object{credential, values, bootstrap, token} {
		want := object.DeepCopyObject()
		kept, err := reduce(object)
		require.NoError(t, err)
		assert.Equal(t, want, kept)
	}

	other, err := reduce("no object")
	require.NoError(t, err)
	assert.Equal(t, "no object", other)
}

// What is cut must not look like what the hub wants, or it would stay.
func TestReduceManaged_differs(t *testing.T) {
	wanted := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "K", Name: strings.Repeat("n", maxText), UID: "u"}}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: strings.Repeat("r", maxText)},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "alice"}},
	}
	for what, change := range map[string]func(*rbacv1.RoleBinding){
		"more owners": func(b *rbacv1.RoleBinding) {
			b.OwnerReferences = append(b.OwnerReferences, metav1.OwnerReference{Name: large})
		},
		"a longer owner":  func(b *rbacv1.RoleBinding) { b.OwnerReferences[0].Name += "n" },
		"a longer role":   func(b *rbacv1.RoleBinding) { b.RoleRef.Name += "r" },
		"a large subject": func(b *rbacv1.RoleBinding) { b.Subjects = append(b.Subjects, rbacv1.Subject{Name: large}) },
	} {
		t.Run(what, func(t *testing.T) {
			changed := wanted.DeepCopy()
			change(changed)
			kept, err := reduceManaged("registrations")(changed)
			require.NoError(t, err)
			assert.False(t, rightsdigest.Equal(kept.(metav1.Object), wanted) && reflect.DeepEqual(kept.(metav1.Object).GetOwnerReferences(), wanted.OwnerReferences))
		})
	}
	assert.Contains(t, managedOnly, schema.GroupVersionKind{Group: rbacv1.GroupName, Version: "v1", Kind: "RoleBinding"})
}
