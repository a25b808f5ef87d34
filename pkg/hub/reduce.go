package hub

import (
	"maps"
	"slices"
	"strings"

	"github.com/rancher/wrangler/v3/pkg/apply"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/rightsdigest"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Limits of what the caches keep of an object with the label of the hub. The objects that the hub makes are below them.
const (
	maxText   = 253 // bytes of an annotation and of a name that an object refers to: names of objects have at most as many
	maxOwners = 8   // the hub sets one
	maxData   = 16 << 10
)

// typesRead are the types of Secrets that controllers distinguish.
var typesRead = []corev1.SecretType{registration.SecretTypeAnswer, registration.SecretTypeValues, corev1.SecretTypeServiceAccountToken}

// reduceManaged returns the transform of the caches of objects with the label of the hub. Everybody who may create an object of these kinds,
// in any namespace, may set the label and write anything into the object. So only the fields that the hub reads are kept, and those only
// up to a limit.
//
// The controllers compare cached objects with what they should be. Anything too large is therefore removed or cut, never replaced by
// something that the hub could have written: the object still differs, and is corrected. Roles and bindings have a digest of what they grant.
func reduceManaged(registrationNamespace string) cache.TransformFunc {
	return func(object any) (any, error) {
		m, err := meta.Accessor(object)
		if err != nil {
			return object, nil //nolint:nilerr // the cache handles values that are not objects
		}
		reduceMetadata(m)
		rightsdigest.Reduce(m)
		switch o := object.(type) {
		case *corev1.Namespace:
			o.Spec, o.Status = corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
		case *corev1.Secret:
			o.Data, o.StringData, o.Immutable = dataRead(o, registrationNamespace), nil, nil
			if !slices.Contains(typesRead, o.Type) {
				o.Type = ""
			}
		case *corev1.ServiceAccount:
			o.Secrets, o.ImagePullSecrets, o.AutomountServiceAccountToken = nil, nil, nil
		case *rbacv1.RoleBinding:
			o.RoleRef = shortRef(o.RoleRef)
		case *rbacv1.ClusterRoleBinding:
			o.RoleRef = shortRef(o.RoleRef)
		}
		return object, nil
	}
}

// reduceMetadata keeps the labels and annotations by which controllers find and compare the objects of the hub. No controller reads the
// finalizers of these kinds.
func reduceMetadata(m metav1.Object) {
	labels, annotations := m.GetLabels(), m.GetAnnotations()
	maps.DeleteFunc(labels, func(key, _ string) bool {
		return key != fleet.ManagedLabel && key != apply.LabelHash && key != fleet.ClusterLabel
	})
	maps.DeleteFunc(annotations, func(key, value string) bool {
		switch key {
		case apply.LabelID, apply.LabelGVK, apply.LabelName, apply.LabelNamespace, fleet.ClusterAnnotation, fleet.WorkspaceAnnotation,
			fleet.NamespaceKeyAnnotation, fleet.ClusterRegistrationAnnotation, fleet.ClusterRegistrationNamespaceAnnotation,
			corev1.ServiceAccountNameKey:
			return len(value) > maxText
		}
		return true
	})
	m.SetLabels(labels)
	m.SetAnnotations(annotations)
	m.SetGenerateName("")
	m.SetFinalizers(nil)
	if owners := m.GetOwnerReferences(); len(owners) > 0 {
		m.SetOwnerReferences(shortOwners(owners))
	}
}

// shortOwners returns the first owners, with texts that are cut.
func shortOwners(owners []metav1.OwnerReference) []metav1.OwnerReference {
	kept := make([]metav1.OwnerReference, min(len(owners), maxOwners))
	copy(kept, owners)
	for i := range kept {
		o := &kept[i]
		o.APIVersion, o.Kind, o.Name, o.UID = short(o.APIVersion), short(o.Kind), short(o.Name), types.UID(short(string(o.UID)))
	}
	return kept
}

// dataRead returns the data of an answer Secret and of a Secret with the values of a token, if it is not too large. Of the kubeconfig of the
// hub's own cluster it returns only that there is one.
func dataRead(secret *corev1.Secret, registrationNamespace string) map[string][]byte {
	data := secret.Data
	switch {
	case secret.Type == registration.SecretTypeAnswer && secret.Namespace == registrationNamespace:
	case secret.Type == registration.SecretTypeValues:
		maps.DeleteFunc(data, func(key string, _ []byte) bool { return key != registration.ValuesKey })
	case secret.Name == registration.LocalSecret && data[registration.KubeconfigValue] != nil:
		return map[string][]byte{registration.KubeconfigValue: {}}
	default:
		return nil
	}
	size := 0
	for key, value := range data {
		size += len(key) + len(value)
	}
	if size > maxData {
		return nil
	}
	return data
}

func shortRef(ref rbacv1.RoleRef) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: short(ref.APIGroup), Kind: short(ref.Kind), Name: short(ref.Name)}
}

// short cuts a text behind maxText, so that it still differs from every valid one.
func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.Clone(text[:maxText+1])
}
