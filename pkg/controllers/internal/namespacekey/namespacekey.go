// Package namespacekey proves that the hub created the namespace of a Cluster.
//
// A user who may create Namespaces could create one with the name and the annotations of a cluster namespace before the hub does, and
// would then own the namespace in which the hub grants rights and stores credentials. So the hub makes a random key for each cluster
// namespace, writes the digest of the key to the Cluster, and then creates the Namespace with the key. Nobody else can know a key that
// fits the digest before the Namespace exists.
//
// The proof does not depend on UIDs, so it holds for a Cluster and its Namespace that were restored from a backup. The digest is written
// before the Namespace is created, so a hub that stops between the two writes leaves nothing that the next hub refuses.
package namespacekey

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
)

// Keys are the keys of the namespaces that this hub is about to create. The zero value is ready to use.
type Keys struct {
	mu   sync.Mutex
	keys map[string]string // by namespace and name of the Cluster
}

// New makes a key for the namespace of a Cluster, and returns the digest for fleet.NamespaceDigestAnnotation of the Cluster.
func (k *Keys) New(namespace, cluster string) (digest string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		k.keys = map[string]string{}
	}
	key := rand.Text()
	k.keys[index.Key(namespace, cluster)] = key
	return digestOf(key)
}

// Find returns the key that fits the digest on the Cluster, or "" if this hub has none.
func (k *Keys) Find(cluster *fleet.Cluster) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := k.keys[index.Key(cluster.Namespace, cluster.Name)]
	if key == "" || digestOf(key) != cluster.Annotations[fleet.NamespaceDigestAnnotation] {
		return ""
	}
	return key
}

// Created reports whether the Namespace has the last key of the Cluster. This holds even if somebody has removed the digest meanwhile.
func (k *Keys) Created(namespace *corev1.Namespace, cluster *fleet.Cluster) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := k.keys[index.Key(cluster.Namespace, cluster.Name)]
	return key != "" && key == namespace.Annotations[fleet.NamespaceKeyAnnotation]
}

// Forget drops the key of a Cluster: its namespace has been created, or the Cluster is gone.
func (k *Keys) Forget(namespace, cluster string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, index.Key(namespace, cluster))
}

// IsFor reports whether the hub created the Namespace for the Cluster. A Namespace that a user created is not used, even if it has the
// annotations.
func IsFor(namespace *corev1.Namespace, cluster *fleet.Cluster) bool {
	return Names(namespace, cluster) && fits(namespace, cluster)
}

// Names reports whether the annotations of the Namespace name the Cluster. Everybody who may create Namespaces can write them.
func Names(namespace *corev1.Namespace, cluster *fleet.Cluster) bool {
	return namespace.Annotations[fleet.ClusterAnnotation] == cluster.Name &&
		namespace.Annotations[fleet.WorkspaceAnnotation] == cluster.Namespace
}

// fits reports whether the Namespace has the key whose digest is on the Cluster. The namespace of a Cluster without a digest was created
// by Fleet's hub, which has set status.namespace. Users of a workspace have no right to set it; agents that write the status of their Cluster are kept
// from it by an admission policy.
func fits(namespace *corev1.Namespace, cluster *fleet.Cluster) bool {
	digest := cluster.Annotations[fleet.NamespaceDigestAnnotation]
	if digest == "" {
		return cluster.Status.Namespace == namespace.Name
	}
	return digestOf(namespace.Annotations[fleet.NamespaceKeyAnnotation]) == digest
}

func digestOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
