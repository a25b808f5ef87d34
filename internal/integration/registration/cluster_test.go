package registration

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestClusterNamespace(t *testing.T) {
	s := testenv.ParallelStage(t)
	s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}, Spec: fleet.ClusterSpec{ClientID: "c1"}})

	cluster := s.Hub.ClusterCondition(t, s.Namespace, "c1", fleet.ConditionProcessed, "True Processed")
	want := "cluster-" + s.Namespace + "-c1-" + registration.KeyHash(s.Namespace+"::c1")
	assert.Equal(t, want, cluster.Status.Namespace)
	assert.Contains(t, cluster.Finalizers, fleet.ClusterFinalizer)
	namespace := testenv.RequireThere(t, s.Hub.Kubernetes.CoreV1().Namespaces().Get, want)
	assert.Equal(t, "true", namespace.Labels["fleet.cattle.io/managed"])
	assert.Equal(t, map[string]string{
		"fleet.cattle.io/cluster":              "c1",
		"fleet.cattle.io/cluster-namespace":    s.Namespace,
		"muster.fleet.cattle.io/namespace-key": namespace.Annotations["muster.fleet.cattle.io/namespace-key"],
	}, namespace.Annotations)
}

func TestClusterManagedElsewhere(t *testing.T) {
	s := testenv.ParallelStage(t)
	s.CreateCluster(t, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Labels: map[string]string{"fleet.cattle.io/cluster-management": "other"}},
		Spec:       fleet.ClusterSpec{KubeConfigSecret: "kubeconfig"},
	})

	cluster := s.Hub.ClusterCondition(t, s.Namespace, "theirs", fleet.ConditionProcessed, "True ManagedElsewhere")
	assert.Len(t, cluster.Status.Conditions, 1, "nothing but Processed")
	assert.Empty(t, cluster.Status.Namespace)
	assert.Empty(t, cluster.Finalizers)
	assert.Empty(t, cluster.Spec.ClientID)
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Namespaces().Get, "Namespace", registration.ClusterNamespace(s.Namespace, "theirs"))
}
