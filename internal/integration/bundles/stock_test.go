package bundles

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/content"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	"github.com/muster-fleet/muster/pkg/registration"
)

// fleetClusters writes the status of the Clusters of a namespace as Fleet's own Cluster controller does: on each event it computes the
// status and replaces all of it, so that fields which its Go type lacks are lost. writes counts the versions that it stored.
type fleetClusters struct {
	hub       *testenv.Cluster
	namespace string
	writes    atomic.Int64
	Stop      func()
}

func startFleetClusters(t *testing.T, hub *testenv.Cluster, namespace string) *fleetClusters {
	t.Helper()
	f := &fleetClusters{hub: hub, namespace: namespace}
	f.Stop = startController(t, hub.Fleet.Clusters(namespace).Watch, f.reconcile)
	return f
}

func (f *fleetClusters) reconcile(ctx context.Context, cluster *fleet.Cluster) {
	after := cluster.DeepCopy()
	status := &after.Status
	status.Import = nil
	status.Agent = fleet.AgentStatus{LastSeen: status.Agent.LastSeen, Namespace: status.Agent.Namespace}
	status.Namespace = registration.ClusterNamespace(cluster.Namespace, cluster.Name)
	deployments, err := f.hub.Fleet.BundleDeployments(status.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	status.Summary, status.ResourceCounts = fleet.BundleSummary{DesiredReady: len(deployments.Items)}, fleet.ResourceCounts{}
	status.Display.State = ""
	message := ""
	for _, d := range deployments.Items {
		if d.Status.AppliedDeploymentID == d.Spec.DeploymentID && d.Status.Ready {
			status.Summary.Ready++
		} else {
			status.Summary.WaitApplied++
			status.Summary.NonReadyResources = append(status.Summary.NonReadyResources, fleet.NonReadyResource{Name: d.Name, State: fleet.WaitApplied})
			status.Display.State = "WaitApplied"
			message = fmt.Sprintf("WaitApplied(%d) [Bundle %s]", status.Summary.WaitApplied, status.Summary.NonReadyResources[0].Name)
		}
		status.ResourceCounts.Ready += d.Status.ResourceCounts.Ready
		status.ResourceCounts.DesiredReady += d.Status.ResourceCounts.DesiredReady
	}
	status.Display.ReadyBundles = fmt.Sprintf("%d/%d", status.Summary.Ready, status.Summary.DesiredReady)
	if status.Agent.LastSeen.IsZero() {
		status.Display.State = "WaitCheckIn"
	}
	ready := testenv.Generic{Type: "Ready", Status: "True"}
	if message != "" {
		ready.Status, ready.Message = "False", message
	}
	fleetstatus.SetCondition(&status.Conditions, testenv.Generic{Type: "Processed", Status: "True"}, time.Now())
	fleetstatus.SetCondition(&status.Conditions, ready, time.Now())
	if reflect.DeepEqual(cluster.Status, after.Status) {
		return
	}
	if _, err := f.hub.Fleet.Clusters(f.namespace).UpdateStatus(ctx, after, metav1.UpdateOptions{}); err == nil {
		f.writes.Add(1)
	}
}

// deploy creates a BundleDeployment of a ConfigMap as Fleet's own Bundle controller does.
func (s shop) deploy(t *testing.T, cluster, bundle, namespace string) {
	t.Helper()
	packed, err := content.Encode(file(bundle))
	require.NoError(t, err)
	testenv.Create(t, s.hub.Fleet.Contents().Create, packed)
	options := fleet.BundleDeploymentOptions{DefaultNamespace: namespace}
	id, err := content.DeploymentID(packed.Name, options)
	require.NoError(t, err)
	testenv.Create(t, s.hub.Fleet.BundleDeployments(s.namespaceOf(cluster)).Create, &fleet.BundleDeployment{
		ObjectMeta: metav1.ObjectMeta{Name: bundle, Labels: map[string]string{
			fleet.ManagedLabel: "true", fleet.BundleNameLabel: bundle, fleet.BundleNamespaceLabel: s.ns,
			fleet.ClusterLabel: cluster, fleet.WorkspaceLabel: s.ns, fleet.HelmOpLabel: "op",
		}},
		Spec: fleet.BundleDeploymentSpec{DeploymentID: id, StagedDeploymentID: id, Options: options, StagedOptions: options},
	})
}

func TestFleetsClusterController(t *testing.T) {
	sample.Long(t)
	r := &testenv.Recorder{}
	stage := testenv.NewStage(t, testenv.WithoutBundles, r.Wrap)
	s := shop{hub: stage.Hub, ns: stage.Namespace}
	other := startFleetClusters(t, s.hub, s.ns)
	agentNamespace := stage.Member.Namespace(t)
	imported := stage.ImportInto(t, "m", agentNamespace).Status.Import
	agent := stage.Member.Agent(t, agentNamespace)
	s.hub.ClusterCondition(t, s.ns, "m", fleet.ConditionRegistered, "True")
	s.hub.ClusterCondition(t, s.ns, "m", fleet.ConditionConnected, "True Connected: the agent sends a heartbeat every 1s")

	// quiet counts the writes of both hubs during some heartbeats of the agent.
	quiet := func(t *testing.T) {
		t.Helper()
		r.Settle(t)
		before := other.writes.Load()
		testenv.Eventually(t, func() (bool, string) { return other.writes.Load() > before+2, "Fleet's controller removed nothing" })
		assert.Empty(t, testenv.WritesIn(r.Settle(t)), "the hub writes nothing while Fleet's controller removes its fields")
		cluster := testenv.RequireThere(t, s.hub.Fleet.Clusters(s.ns).Get, "m")
		assert.Nil(t, cluster.Status.Import)
		cluster = stage.Cluster(t, "m")
		assert.Equal(t, imported, cluster.Status.Import, "the annotation has it")
		assert.Equal(t, "True : ", testenv.Condition(cluster.Status.Conditions, fleet.ConditionProcessed), "the reason of Fleet's controller")
		assert.Contains(t, testenv.Condition(cluster.Status.Conditions, fleet.ConditionConnected), "True Connected: the agent sends a heartbeat every 1s")
	}
	t.Run("idle: the hub is quiet", quiet)
	t.Run("the hub computes the same roll-up", func(t *testing.T) {
		s.cluster(t, "n", nil)
		target := stage.Member.Namespace(t)
		s.deploy(t, "n", "app", target)
		s.requireCluster(t, "n", "0/1", "False : WaitApplied(1) [Bundle app]")
		quiet(t)
		startFleetAgent(t, s.hub, stage.Member, s.namespaceOf("n"), target)
		cluster := s.requireCluster(t, "n", "1/1", "True : ")
		assert.Equal(t, fleet.ResourceCounts{Ready: 1, DesiredReady: 1}, cluster.Status.ResourceCounts)
		assert.Equal(t, []int{0, 0, 1, 1}, []int{
			cluster.Status.ReadyGitRepos, cluster.Status.DesiredReadyGitRepos, cluster.Status.ReadyHelmOps, cluster.Status.DesiredReadyHelmOps,
		})
		quiet(t)
	})
	t.Run("a restarted hub knows what it has done", func(t *testing.T) {
		stage.Stop(t)
		r.Settle(t)
		stage.Running = s.hub.Hub(t, testenv.WithoutBundles, r.Wrap)
		quiet(t)
	})

	// From here on, no controller removes fields of the status.
	other.Stop()
	t.Run("a hub with its own Bundle controllers moves the fields back", func(t *testing.T) {
		stage.Stop(t)
		agent.Stop(t)
		stage.Running = s.hub.Hub(t, r.Wrap)
		testenv.EventuallyIs(t, s.hub.Fleet.Clusters(s.ns).Get, "m", func(cluster *fleet.Cluster) (bool, string) {
			return cluster.Annotations[fleet.StatusAnnotation] == "" && reflect.DeepEqual(cluster.Status.Import, imported), fmt.Sprint(cluster.Annotations)
		})
	})
	t.Run("and back: the deletion is not judged by removed fields", func(t *testing.T) {
		stage.Stop(t)
		stage.Running = s.hub.Hub(t, testenv.WithoutBundles)
		testenv.Eventually(t, func() (bool, string) {
			return stage.Cluster(t, "m").Annotations[fleet.StatusAnnotation] != "", "no annotation"
		})
		again := startFleetClusters(t, s.hub, s.ns)
		testenv.Eventually(t, func() (bool, string) { return again.writes.Load() > 0, "nothing was removed" })
		again.Stop()
		stage.Stop(t)
		stage.Running = s.hub.Hub(t, testenv.WithoutBundles)
		s.hub.ClusterCondition(t, s.ns, "m", fleet.ConditionConnected, "True")
		stage.DeleteCluster(t, "m")
		testenv.RequireGone(t, s.hub.Fleet.Clusters(s.ns).Get, "Cluster", "m")
		for _, event := range s.hub.Events(t, s.ns, "m") {
			assert.NotContains(t, event.Message, "of a version that cannot be asked")
		}
	})
}
