package clusterimport

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// secretVersions knows which version each Secret of the hub has, and nothing else of it: a kubeconfig is read when it is
// needed.
type secretVersions struct {
	informer cache.SharedIndexInformer
}

// Informer is for whoever wants to be told of changes.
func (s *secretVersions) Informer() cache.SharedIndexInformer { return s.informer }

// of is "<uid>/<resourceVersion>" of a Secret, or "" when there is none.
func (s *secretVersions) of(namespace, name string) string {
	object, exists, err := s.informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil || !exists {
		return ""
	}
	return version(object.(*metav1.PartialObjectMetadata))
}

func version(secret metav1.Object) string {
	return string(secret.GetUID()) + "/" + secret.GetResourceVersion()
}
