package clusterimport

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// foreignSecrets leaves out what kubeconfig Secrets never are, so that a hub with many Helm releases and ServiceAccounts
// does not keep them in memory.
const foreignSecrets = "type!=" + string(corev1.SecretTypeServiceAccountToken) + ",type!=helm.sh/release.v1"

// secretVersions knows which version each Secret of the hub has, and nothing else of it: a kubeconfig is read when it is
// needed.
type secretVersions struct {
	informer cache.SharedIndexInformer
	done     sync.WaitGroup
}

func newSecretVersions(client metadata.Interface) *secretVersions {
	informer := metadatainformer.NewFilteredMetadataInformer(client, corev1.SchemeGroupVersion.WithResource("secrets"),
		metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) { o.FieldSelector = foreignSecrets }).Informer()
	// The error is of an informer that runs already.
	_ = informer.SetTransform(keepVersion)
	return &secretVersions{informer: informer}
}

// keepVersion drops all of an object but its identity.
func keepVersion(object any) (any, error) {
	secret, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
	}}, nil
}

// Informer is for whoever wants to be told of changes.
func (s *secretVersions) Informer() cache.SharedIndexInformer { return s.informer }

func (s *secretVersions) start(ctx context.Context) {
	s.done.Go(func() { s.informer.RunWithContext(ctx) })
}

func (s *secretVersions) synced(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), s.informer.HasSynced) {
		return errors.New("stopped before the Secrets of the hub were known")
	}
	return nil
}

func (s *secretVersions) wait() { s.done.Wait() }

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
