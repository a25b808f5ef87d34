package imports

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/inventory"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// take lists all objects of a cluster, except those that Kubernetes creates by itself in each namespace.
func take(t *testing.T, cluster *testenv.Cluster) inventory.Inventory {
	t.Helper()
	all, err := inventory.Take(t.Context(), cluster.RESTConfig())
	require.NoError(t, err)
	for object := range all {
		if object.Kind != "Namespace" && inventory.OfNamespace(object) {
			delete(all, object)
		}
	}
	return all
}

// requireNothingSince waits until the cluster has no objects that it did not have before.
func requireNothingSince(t *testing.T, before inventory.Inventory, cluster *testenv.Cluster) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		left := take(t, cluster).Since(before)
		return len(left) == 0, "left: " + inventory.List(left)
	})
}

func graceOf(d time.Duration) func(*muster.Options) {
	return func(o *muster.Options) { o.FarewellGrace, o.ContentGrace = d, time.Second }
}

// checksIn is a heartbeat of an agent of this version.
func (s *stage) checksIn(t *testing.T, cluster, agentNamespace string) {
	t.Helper()
	s.Beat(t, cluster, fleet.AgentStatus{LastSeen: metav1.Now(), Namespace: agentNamespace, Version: "v1", Generation: "managed/0"})
	s.Hub.ClusterCondition(t, s.Namespace, cluster, fleet.ConditionConnected, "True")
}

// requireAsked waits until the agent is asked to uninstall itself.
func (s *stage) requireAsked(t *testing.T, cluster string) {
	t.Helper()
	namespace, name := registration.ClusterNamespace(s.Namespace, cluster), registration.AgentBundleName(cluster)
	testenv.EventuallyIs(t, s.Hub.Fleet.BundleDeployments(namespace).Get, name, func(d *fleet.BundleDeployment) (bool, string) {
		return d.Annotations[fleet.FarewellAnnotation] != "", "not asked"
	})
}

func (s *stage) reportsFarewell(t *testing.T, cluster string) {
	t.Helper()
	namespace, name := registration.ClusterNamespace(s.Namespace, cluster), registration.AgentBundleName(cluster)
	testenv.Merge(t, s.Hub.Fleet.BundleDeployments(namespace).Patch, name, `{"status":{"conditions":[{"type":"Farewell","status":"True"}]}}`, "status")
}

// registered is a Cluster whose agent checks in and has its BundleDeployment. before has the objects of the hub without it.
func (s *stage) registered(t *testing.T) (r testenv.Registered, before inventory.Inventory) {
	t.Helper()
	values := s.Token(t, "tok")
	s.ReadyToken(t, "tok")
	before = take(t, s.Hub)
	r = s.Register(t, values, "leaving", "random")
	s.checksIn(t, r.Request.Status.ClusterName, testenv.SystemNamespace)
	s.awaitDeployment(t, r.Request.Status.ClusterName)
	return r, before
}

// awaitDeployment waits until the agent has its BundleDeployment.
func (s *stage) awaitDeployment(t *testing.T, cluster string) {
	t.Helper()
	testenv.EventuallyThere(t, s.Hub.Fleet.BundleDeployments(registration.ClusterNamespace(s.Namespace, cluster)).Get, registration.AgentBundleName(cluster))
}

const forever = time.Hour

// The hub asks the agent to uninstall itself, even if the hub restarts meanwhile, and no object is left.
func TestDeleteCluster(t *testing.T) {
	sample.Long(t)
	s := newStage(t, graceOf(forever))
	r, before := s.registered(t)
	name := r.Request.Status.ClusterName

	s.DeleteCluster(t, name)
	s.requireAsked(t, name)
	s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionProcessed, "Unknown Farewell: waiting until ")
	s.Stop(t)
	s.Running = s.Hub.Hub(t, graceOf(forever))
	testenv.RequireThere(t, s.Hub.Fleet.Clusters(s.Namespace).Get, name)

	bundles := s.Hub.Fleet.Bundles(s.Namespace)
	require.Contains(t, testenv.RequireThere(t, bundles.Get, registration.AgentBundleName(name)).Finalizers, fleet.BundleFinalizer)
	s.reportsFarewell(t, name)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", name)
	// The hub may be uninstalled as soon as its last Cluster is gone. If the Bundle was still there, nothing would remove its finalizer.
	_, err := bundles.Get(t.Context(), registration.AgentBundleName(name), metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	requireNothingSince(t, before, s.Hub)
	testenv.RequireUnauthorized(t, s.Hub, r.Bearer())
	testenv.RequireThere(t, s.Hub.Kubernetes.CoreV1().Secrets(s.Namespace).Get, "tok")
	assert.Zero(t, s.Hub.EventCount(t, s.Namespace, name, "MemberLeft"))
}

func TestDeleteClusterWhoseAgentDoesNotLeave(t *testing.T) {
	sample.Long(t)
	s := newStage(t, graceOf(2*time.Second))
	r, before := s.registered(t)
	name := r.Request.Status.ClusterName
	s.DeleteCluster(t, name)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", name)
	requireNothingSince(t, before, s.Hub)
	s.requireLeftOnMember(t, name, fleet.ReasonFarewellTimeout)
}

func (s *stage) requireLeftOnMember(t *testing.T, cluster, why string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		events := s.Hub.Events(t, s.Namespace, cluster)
		said := slices.ContainsFunc(events, func(e corev1.Event) bool { return e.Reason == "MemberLeft" && strings.Contains(e.Message, why) })
		return said, fmt.Sprintf("no event tells that the member was left because of %s", why)
	})
}

func TestDeleteImportedCluster(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	before := take(t, s.Member)
	s.Hub.Import(t, s.Namespace, "m", s.Member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionImported, "True Imported")
	token := registration.ImportTokenName("m")
	values := s.Hub.Values(t, s.Namespace, token)
	s.DeleteCluster(t, "m")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "m")
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Get, "ClusterRegistrationToken", token)
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Secrets(s.Namespace).Get, "Secret", token)
	testenv.RequireUnauthorized(t, s.Hub, values.Token)
	testenv.Eventually(t, func() (bool, string) {
		left, err := s.Hub.Kubernetes.CoreV1().ServiceAccounts(s.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=true"})
		return err == nil && len(left.Items) == 0, "ServiceAccounts of the token are left"
	})
	requireNothingSince(t, before, s.Member)
	assert.Zero(t, s.Hub.EventCount(t, s.Namespace, "m", "MemberLeft"))
}

func TestDeleteClusterWhoseAgentAnotherClusterHasTakenOver(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	install := func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace }
	s.Hub.Import(t, s.Namespace, "old", s.Member, install)
	s.Hub.ClusterCondition(t, s.Namespace, "old", fleet.ConditionImported, "True Imported")
	s.Hub.Import(t, s.Namespace, "new", s.Member, install)
	s.Hub.ClusterCondition(t, s.Namespace, "new", fleet.ConditionImported, "True Imported")
	before := take(t, s.Member)

	s.DeleteCluster(t, "old")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "old")
	lost := slices.DeleteFunc(before.Since(take(t, s.Member)), func(o inventory.Thing) bool {
		return o.Kind == "Pod" || o.Kind == "ReplicaSet" // of a Deployment that has changed
	})
	assert.Empty(t, lost, "nothing of the new Cluster is removed")
	assert.Zero(t, s.Hub.EventCount(t, s.Namespace, "old", "MemberLeft"))
}

func TestTwoClustersWithOneKubeconfig(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	s.Hub.Import(t, s.Namespace, "old", s.Member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	s.Hub.ClusterCondition(t, s.Namespace, "old", fleet.ConditionImported, "True Imported")
	before := take(t, s.Member)
	s.Hub.Import(t, s.Namespace, "new", s.Member, func(c *fleet.Cluster) {
		c.Spec.AgentNamespace, c.Spec.KubeConfigSecret = agentNamespace, "old-kubeconfig"
	})
	s.Hub.ClusterCondition(t, s.Namespace, "new", fleet.ConditionImported, "False KubeconfigInUse")
	requireNothingSince(t, before, s.Member)

	s.DeleteCluster(t, "old")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "old")
	s.Hub.ClusterCondition(t, s.Namespace, "new", fleet.ConditionImported, "True Imported")
	assert.Equal(t, registration.ImportTokenName("new"), s.bootstrapSecret(t, agentNamespace)[registration.BootstrapTokenName])
	assert.Zero(t, s.Hub.EventCount(t, s.Namespace, "old", "MemberLeft"))
}

func TestDeleteClusterWhoseMemberDoesNotAnswer(t *testing.T) {
	sample.Long(t)
	s := newStage(t, graceOf(2*time.Second))
	agentNamespace := s.Member.Namespace(t)
	s.Hub.Import(t, s.Namespace, "m", s.Member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionImported, "True Imported")
	s.Hub.WriteSecret(t, s.Namespace, "m-kubeconfig", map[string][]byte{
		registration.KubeconfigValue: testenv.At(t, s.Member.Kubeconfig(), testenv.SilentServer(t)),
	})
	s.DeleteCluster(t, "m")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "m")
	s.requireLeftOnMember(t, "m", "the member")
}

func TestObjectsOrphanedWithoutAHubAreCollected(t *testing.T) {
	sample.Long(t)
	s := newStage(t, graceOf(forever))
	r, before := s.registered(t)
	name := r.Request.Status.ClusterName
	// A user has set the hub's label on a namespace.
	foreign := inventory.Thing{Kind: "Namespace", Name: s.Namespace + "-foreign"}
	testenv.Create(t, s.Hub.Kubernetes.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: foreign.Name, Labels: managedLabel()}})
	before[foreign] = ""
	s.Stop(t)
	s.Hub.DropClusters(t, s.Namespace)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", name)

	s.Running = s.Hub.Hub(t, graceOf(forever))
	requireNothingSince(t, before, s.Hub)
	assert.Contains(t, take(t, s.Hub), foreign)
}

// A second Cluster is imported with a copy of the kubeconfig: the agent is its agent from then on. The first Cluster says so, and gets the agent back when the
// second one is deleted.
func TestTwoClustersOfOneMember(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	s.ImportInto(t, "first", agentNamespace)
	agent := s.replace(t, "first", agentNamespace)

	agent.Stop(t)
	tokens := s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace)
	require.NoError(t, tokens.Delete(t.Context(), registration.ImportTokenName("first"), metav1.DeleteOptions{})) // as after twelve hours
	s.DeleteCluster(t, "second")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "second")
	s.Hub.ClusterCondition(t, s.Namespace, "first", fleet.ConditionImported, "True Imported")
	s.Member.Agent(t, agentNamespace)
	s.Hub.ClusterCondition(t, s.Namespace, "first", fleet.ConditionConnected, "True")
}

// The agent of the first Cluster has registered with a token.
func TestImportOfARegisteredMember(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	testenv.BootstrapAgent(t, s.Member, agentNamespace, s.Token(t, "tok"), map[string]string{"config": `{"clientID":"edge"}`})
	agent := s.Member.Agent(t, agentNamespace)
	first := s.onlyRequest(t).Status.ClusterName
	agent.Stop(t)
	s.replace(t, first, agentNamespace)

	s.DeleteCluster(t, "second")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "second")
	s.Hub.ClusterCondition(t, s.Namespace, first, fleet.ConditionImported, "True AgentInitiated")
}

// replace runs the agent of the first Cluster of the member, and imports the second one.
func (s *stage) replace(t *testing.T, first, agentNamespace string) (agent *testenv.Running) {
	t.Helper()
	settings := s.Hub.Reachable()
	settings["agentCheckinInterval"] = "1s"
	s.Hub.Configure(t, settings)
	agent = s.Member.Agent(t, agentNamespace)
	s.Hub.ClusterCondition(t, s.Namespace, first, fleet.ConditionConnected, "True")

	s.ImportInto(t, "second", agentNamespace)
	s.Hub.ClusterCondition(t, s.Namespace, "second", fleet.ConditionConnected, "True")
	s.Hub.ClusterCondition(t, s.Namespace, first, fleet.ConditionConnected, "False Disconnected")
	cluster := s.Hub.ClusterCondition(t, s.Namespace, first, fleet.ConditionImported, "False KubeconfigInUse")
	assert.Contains(t, fleetstatus.Condition(cluster.Status.Conditions, fleet.ConditionImported).Message,
		"Cluster "+s.Namespace+"/second has imported the same member later")
	return agent
}
