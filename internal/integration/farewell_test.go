package integration

import (
	"context"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers"
	"github.com/muster-fleet/muster/pkg/registration"
)

// inventory is every object of every kind of a cluster, as "kind namespace/name". What only tells of the past or of the
// control plane itself is left out.
func inventory(t *testing.T, cluster *testenv.Cluster) []string {
	t.Helper()
	found, err := discovery.NewDiscoveryClientForConfigOrDie(cluster.RESTConfig()).ServerPreferredResources()
	require.NoError(t, err)
	client, err := metadata.NewForConfig(cluster.RESTConfig())
	require.NoError(t, err)
	var all []string
	for _, group := range found {
		gv, err := schema.ParseGroupVersion(group.GroupVersion)
		require.NoError(t, err)
		for _, resource := range group.APIResources {
			if !slices.Contains(resource.Verbs, "list") || slices.Contains([]string{"events", "leases", "componentstatuses"}, resource.Name) {
				continue
			}
			list, err := client.Resource(gv.WithResource(resource.Name)).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err, resource.Name)
			for _, o := range list.Items {
				all = append(all, resource.Name+" "+o.Namespace+"/"+o.Name)
			}
		}
	}
	return all
}

// requireAsBefore waits until nothing is on the cluster that was not there before.
func requireAsBefore(t *testing.T, cluster *testenv.Cluster, before []string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		left := slices.DeleteFunc(inventory(t, cluster), func(o string) bool { return slices.Contains(before, o) })
		return len(left) == 0, "left: " + strings.Join(left, ", ")
	})
}

func graceOf(d time.Duration) func(*controllers.Options) {
	return func(o *controllers.Options) { o.FarewellGrace, o.ContentGrace = d, time.Second }
}

func (s *stage) delete(t *testing.T, cluster string) {
	t.Helper()
	require.NoError(t, s.hub.Fleet.Clusters(s.namespace).Delete(t.Context(), cluster, metav1.DeleteOptions{}))
}

// checksIn is a heartbeat of an agent of this release.
func (s *stage) checksIn(t *testing.T, cluster, agentNamespace string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"status":{"agent":{"lastSeen":%q,"namespace":%q,"generation":"managed/0"}}}`,
		time.Now().UTC().Format(time.RFC3339), agentNamespace)
	_, err := s.hub.Fleet.Clusters(s.namespace).Patch(t.Context(), cluster, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	s.hub.ClusterCondition(t, s.namespace, cluster, fleet.ConditionConnected, "True")
}

// requireAsked waits until the agent is asked to leave.
func (s *stage) requireAsked(t *testing.T, cluster string) {
	t.Helper()
	namespace, name := registration.ClusterNamespace(s.namespace, cluster), registration.AgentBundleName(cluster)
	testenv.Eventually(t, func() (bool, string) {
		d, err := s.hub.Fleet.BundleDeployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && d.Annotations[fleet.FarewellAnnotation] != "", fmt.Sprint("not asked: ", err)
	})
}

func (s *stage) saysFarewell(t *testing.T, cluster string) {
	t.Helper()
	namespace, name := registration.ClusterNamespace(s.namespace, cluster), registration.AgentBundleName(cluster)
	patch := []byte(`{"status":{"conditions":[{"type":"Farewell","status":"True"}]}}`)
	_, err := s.hub.Fleet.BundleDeployments(namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// awaitDeployment waits until the agent has its BundleDeployment.
func (s *stage) awaitDeployment(t *testing.T, cluster string) {
	t.Helper()
	eventuallyThere(t, s.hub.Fleet.BundleDeployments(registration.ClusterNamespace(s.namespace, cluster)).Get, registration.AgentBundleName(cluster))
}

const forever = time.Hour

func TestADeletedClusterAsksItsAgentToLeaveAndTakesEverythingAlong(t *testing.T) {
	s := newStage(t, graceOf(forever))
	values := s.token(t, "tok")
	before := inventory(t, s.hub)
	name := s.register(t, values, "leaving", "random").request.Status.ClusterName
	s.checksIn(t, name, systemNamespace)
	s.awaitDeployment(t, name)

	s.delete(t, name)
	s.requireAsked(t, name)
	s.hub.ClusterCondition(t, s.namespace, name, fleet.ConditionProcessed, "Unknown Farewell: waiting until ")
	s.Stop(t)
	s.Running = s.hub.Hub(t, graceOf(forever))
	requireThere(t, s.hub.Fleet.Clusters(s.namespace).Get, name)

	s.saysFarewell(t, name)
	requireGone(t, s.hub.Fleet.Clusters(s.namespace).Get, "Cluster", name)
	requireAsBefore(t, s.hub, before)
	assert.Zero(t, s.hub.EventCount(t, s.namespace, name, "MemberLeft"))
}

func TestAnAgentThatDoesNotLeaveHoldsUpNothingForLong(t *testing.T) {
	s := newStage(t, graceOf(2*time.Second))
	values := s.token(t, "tok")
	before := inventory(t, s.hub)
	name := s.register(t, values, "staying", "random").request.Status.ClusterName
	s.checksIn(t, name, systemNamespace)
	s.awaitDeployment(t, name)
	s.delete(t, name)
	requireGone(t, s.hub.Fleet.Clusters(s.namespace).Get, "Cluster", name)
	requireAsBefore(t, s.hub, before)
	s.requireMemberLeft(t, name, fleet.ReasonFarewellTimeout)
}

func (s *stage) requireMemberLeft(t *testing.T, cluster, why string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		events := s.hub.Events(t, s.namespace, cluster)
		said := slices.ContainsFunc(events, func(e corev1.Event) bool { return e.Reason == "MemberLeft" && strings.Contains(e.Message, why) })
		return said, fmt.Sprintf("no event tells that the member was left because of %s", why)
	})
}

func TestTheHubCleansAMemberThatItReaches(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.member.Namespace(t)
	testenv.Eventually(t, func() (bool, string) { // Kubernetes has put into the namespace what it puts into each
		core := s.member.Kubernetes.CoreV1()
		_, errCA := core.ConfigMaps(agentNamespace).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		_, errAccount := core.ServiceAccounts(agentNamespace).Get(t.Context(), "default", metav1.GetOptions{})
		return errCA == nil && errAccount == nil, fmt.Sprint(errCA, errAccount)
	})
	onMember := inventory(t, s.member)
	s.hub.Import(t, s.namespace, "m", s.member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionImported, "True Imported")
	s.delete(t, "m")
	requireGone(t, s.hub.Fleet.Clusters(s.namespace).Get, "Cluster", "m")
	requireAsBefore(t, s.member, onMember)
	assert.Zero(t, s.hub.EventCount(t, s.namespace, "m", "MemberLeft"))
}

func TestAnotherClustersAgentStaysWhereItIs(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.member.Namespace(t)
	install := func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace }
	s.hub.Import(t, s.namespace, "old", s.member, install)
	s.hub.ClusterCondition(t, s.namespace, "old", fleet.ConditionImported, "True Imported")
	s.hub.Import(t, s.namespace, "new", s.member, install)
	s.hub.ClusterCondition(t, s.namespace, "new", fleet.ConditionImported, "True Imported")
	before := inventory(t, s.member)

	s.delete(t, "old")
	requireGone(t, s.hub.Fleet.Clusters(s.namespace).Get, "Cluster", "old")
	now := inventory(t, s.member)
	assert.Empty(t, slices.DeleteFunc(before, func(o string) bool { return slices.Contains(now, o) }), "nothing of the new one is removed")
	assert.Zero(t, s.hub.EventCount(t, s.namespace, "old", "MemberLeft"))
}

func TestAMemberThatDoesNotAnswerIsNotWaitedForForever(t *testing.T) {
	s := newStage(t, graceOf(2*time.Second))
	agentNamespace := s.member.Namespace(t)
	s.hub.Import(t, s.namespace, "m", s.member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	s.hub.ClusterCondition(t, s.namespace, "m", fleet.ConditionImported, "True Imported")
	s.hub.WriteSecret(t, s.namespace, "m-kubeconfig", map[string][]byte{
		registration.KubeconfigValue: testenv.At(t, s.member.Kubeconfig(), testenv.SilentServer(t)),
	})
	s.delete(t, "m")
	requireGone(t, s.hub.Fleet.Clusters(s.namespace).Get, "Cluster", "m")
	s.requireMemberLeft(t, "m", "the member")
}

func TestWhatWasOrphanedWhileNoHubWasRunningIsCollected(t *testing.T) {
	s := newStage(t, graceOf(forever))
	values := s.token(t, "tok")
	before := inventory(t, s.hub)
	name := s.register(t, values, "orphan", "random").request.Status.ClusterName
	s.checksIn(t, name, systemNamespace)
	s.awaitDeployment(t, name)
	foreign := s.foreignNamespace(t)
	s.Stop(t)
	dropClusters(t, s.hub, s.namespace)
	requireGone(t, s.hub.Fleet.Clusters(s.namespace).Get, "Cluster", name)

	s.Running = s.hub.Hub(t, graceOf(forever))
	requireAsBefore(t, s.hub, append(before, foreign...))
	for _, kept := range foreign {
		assert.Contains(t, inventory(t, s.hub), kept)
	}
}

// foreignNamespace is one that somebody gave our label, and nothing else.
func (s *stage) foreignNamespace(t *testing.T) (objects []string) {
	t.Helper()
	name := s.namespace + "-foreign"
	namespaces := s.hub.Kubernetes.CoreV1().Namespaces()
	_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: managedLabel()}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := namespaces.Delete(context.Background(), name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			assert.NoError(t, err)
		}
	})
	return []string{"namespaces /" + name, "configmaps " + name + "/kube-root-ca.crt", "serviceaccounts " + name + "/default"}
}
