// Package access decides which Clusters may use which kubeconfig Secrets.
package access

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/index"
)

// sharedNamespace is the namespace in which management servers keep the kubeconfig Secrets of the clusters they created, including
// clusters they show in another namespace. The namespaces of the hub are not shared: fleet-local, for example, has the kubeconfig of the hub's own
// cluster, for which the hub issues a credential, and everybody who may create a Cluster could use it.
const sharedNamespace = "fleet-default"

// NeedsNoPermission reports whether a Cluster may use every Secret in the namespace of its kubeconfig, without an annotation on the Secret. Otherwise,
// somebody who may create Clusters in one namespace could let the hub install an agent on the clusters of another one.
func NeedsNoPermission(cluster *fleet.Cluster) bool {
	from := index.KubeconfigNamespace(cluster)
	return from == cluster.Namespace || from == sharedNamespace
}

// MayUse reports whether a Cluster may use a kubeconfig Secret. The annotation of the Secret lists the namespaces whose Clusters may use it, or has
// "*" for all.
func MayUse(cluster *fleet.Cluster, secret *corev1.Secret) bool {
	if NeedsNoPermission(cluster) {
		return true
	}
	for allowed := range strings.SplitSeq(secret.Annotations[fleet.KubeconfigAllowedAnnotation], ",") {
		if allowed = strings.TrimSpace(allowed); allowed == cluster.Namespace || allowed == "*" {
			return true
		}
	}
	return false
}
