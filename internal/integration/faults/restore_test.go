package faults

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/leader"
)

// TestHubRestoredFromABackup restores etcd with the command of docs/operations.md, while the hub and the agents run.
func TestHubRestoredFromABackup(t *testing.T) {
	sample.Long(t)
	member, hub := testenv.SharedCluster(t, "member"), testenv.OwnCluster(t)
	hub.Configure(t, hub.Reachable())
	options := muster.Options{RESTConfig: hub.RESTConfig(), DisableBootstrap: true, Election: &leader.Config{
		Client: hub.RESTConfig(), Namespace: metav1.NamespaceDefault, Name: "hub", Identity: "first",
		Times: leader.Times{LeaseDuration: 6 * time.Second, RenewDeadline: 5 * time.Second, RetryPeriod: time.Second},
	}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- muster.Run(ctx, options) }()

	workspace := hub.Namespace(t)
	apply := func(name, namespace string) {
		t.Helper()
		testenv.Create(t, hub.Fleet.Bundles(workspace).Create, &fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: fleet.BundleSpec{
				BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: namespace},
				Resources: []fleet.BundleResource{{
					Name: "objects.yaml", Content: "kind: ConfigMap\napiVersion: v1\nmetadata: {name: " + name + "}",
				}},
				Targets: []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}},
			},
		})
	}
	configMaps := member.Kubernetes.CoreV1().ConfigMaps
	target := member.Namespace(t)
	gone := func(name string) {
		t.Helper()
		testenv.Eventually(t, func() (bool, string) {
			_, err := configMaps(target).Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), name + " still exists"
		})
	}

	hub.AwaitAdmission(t)
	agentNamespace := member.Namespace(t)
	hub.Import(t, workspace, "one", member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	member.Agent(t, agentNamespace)
	hub.ClusterCondition(t, workspace, "one", fleet.ConditionRegistered, "True")
	hub.AwaitOwnBundle(t, workspace, "one")
	apply("before", target)
	testenv.EventuallyThere(t, configMaps(target).Get, "before")

	backup := filepath.Join(t.TempDir(), "backup.db")
	require.NoError(t, hub.Snapshot(t.Context(), backup))
	apply("after", target)
	testenv.EventuallyThere(t, configMaps(target).Get, "after")
	require.NoError(t, hub.Fleet.Bundles(workspace).Delete(t.Context(), "before", metav1.DeleteOptions{}))
	gone("before")

	require.NoError(t, hub.Restore(t.Context(), backup, controlplane.RestoreFlags...))
	select {
	case err := <-ended:
		require.ErrorIs(t, err, leader.ErrLost, "the caches of the hub are newer than etcd")
	case <-time.After(testenv.Patience):
		t.Fatal("the hub works on with caches that are newer than etcd")
	}
	hub.Hub(t)

	testenv.EventuallyThere(t, configMaps(target).Get, "before") // as in the backup
	got := hub.WaitCondition(t, testenv.KindCluster, workspace, "one", fleet.ConditionReleasesManaged, "False")
	assert.Contains(t, got, fleet.ReasonBundlesMissing)
	assert.Contains(t, got, "which the agent keeps (1): "+target+"/after;")
	testenv.RequireThere(t, configMaps(target).Get, "after")

	apply("after", target)
	hub.WaitCondition(t, testenv.KindCluster, workspace, "one", fleet.ConditionReleasesManaged, "True")
	require.NoError(t, hub.Fleet.Bundles(workspace).Delete(t.Context(), "after", metav1.DeleteOptions{}))
	gone("after")
}
