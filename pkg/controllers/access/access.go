// Package access decides which Clusters may use which kubeconfig Secrets.
package access

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
)

// sharedNamespace is where management servers keep the kubeconfig Secrets of clusters they made, also of those they show
// in another namespace. The hub's own namespaces are not shared: a kubeconfig of the hub itself is in one of them, and
// whoever may create a Cluster somewhere would be given the hub.
const sharedNamespace = "fleet-default"

// Nearby says whether a Cluster may take its kubeconfig from that namespace without being allowed to. Whoever may create
// Clusters in one namespace could otherwise have the hub install an agent of theirs on the clusters of another.
func Nearby(cluster *fleet.Cluster) bool {
	from := index.KubeconfigNamespace(cluster)
	return from == cluster.Namespace || from == sharedNamespace
}

// MayUse decides whether a Cluster may use that Secret. One elsewhere says itself who may.
func MayUse(cluster *fleet.Cluster, secret *corev1.Secret) bool {
	if Nearby(cluster) {
		return true
	}
	for allowed := range strings.SplitSeq(secret.Annotations[fleet.KubeconfigAllowedAnnotation], ",") {
		if allowed = strings.TrimSpace(allowed); allowed == cluster.Namespace || allowed == "*" {
			return true
		}
	}
	return false
}
