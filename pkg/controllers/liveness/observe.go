package liveness

import (
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Observe hears the beats of a Cluster that another hub looks after: when this one goes on with it, it knows when the last
// beat was, and gives no agent another grace.
func (s *Step) Observe(cluster *fleet.Cluster) {
	s.note(types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}, cluster)
}
