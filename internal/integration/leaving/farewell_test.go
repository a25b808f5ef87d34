package leaving

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
	muster "github.com/muster-fleet/muster/pkg/hub"
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

// settled is the inventory once Kubernetes has made all that it makes by itself.
func settled(t *testing.T, cluster *testenv.Cluster) (all []string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		all = inventory(t, cluster)
		missing := slices.DeleteFunc(byItself(all), func(o string) bool { return slices.Contains(all, o) })
		return len(missing) == 0, "Kubernetes has yet to make " + strings.Join(missing, ", ")
	})
	return all
}

// byItself is what Kubernetes makes in each namespace and for the definitions of the hub.
func byItself(all []string) (made []string) {
	for _, o := range all {
		if name, is := strings.CutPrefix(o, "namespaces /"); is {
			made = append(made, "serviceaccounts "+name+"/default", "configmaps "+name+"/kube-root-ca.crt")
		}
		if o == "customresourcedefinitions /clusters.fleet.cattle.io" {
			made = append(made, "apiservices /v1alpha1.fleet.cattle.io")
		}
	}
	return made
}

// requireAsBefore waits until nothing is on the cluster that was not there before.
func requireAsBefore(t *testing.T, cluster *testenv.Cluster, before []string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		left := slices.DeleteFunc(inventory(t, cluster), func(o string) bool { return slices.Contains(before, o) })
		return len(left) == 0, "left: " + strings.Join(left, ", ")
	})
}

func graceOf(d time.Duration) func(*muster.Options) {
	return func(o *muster.Options) { o.FarewellGrace, o.ContentGrace = d, time.Second }
}

// checksIn is a heartbeat of an agent of this release.
func (s *stage) checksIn(t *testing.T, cluster, agentNamespace string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"status":{"agent":{"lastSeen":%q,"namespace":%q,"generation":"managed/0"}}}`,
		time.Now().UTC().Format(time.RFC3339), agentNamespace)
	_, err := s.Hub.Fleet.Clusters(s.Namespace).Patch(t.Context(), cluster, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	s.Hub.ClusterCondition(t, s.Namespace, cluster, fleet.ConditionConnected, "True")
}

// requireAsked waits until the agent is asked to leave.
func (s *stage) requireAsked(t *testing.T, cluster string) {
	t.Helper()
	namespace, name := registration.ClusterNamespace(s.Namespace, cluster), registration.AgentBundleName(cluster)
	testenv.Eventually(t, func() (bool, string) {
		d, err := s.Hub.Fleet.BundleDeployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && d.Annotations[fleet.FarewellAnnotation] != "", fmt.Sprint("not asked: ", err)
	})
}

func (s *stage) saysFarewell(t *testing.T, cluster string) {
	t.Helper()
	namespace, name := registration.ClusterNamespace(s.Namespace, cluster), registration.AgentBundleName(cluster)
	patch := []byte(`{"status":{"conditions":[{"type":"Farewell","status":"True"}]}}`)
	_, err := s.Hub.Fleet.BundleDeployments(namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// awaitDeployment waits until the agent has its BundleDeployment.
func (s *stage) awaitDeployment(t *testing.T, cluster string) {
	t.Helper()
	testenv.EventuallyThere(t, s.Hub.Fleet.BundleDeployments(registration.ClusterNamespace(s.Namespace, cluster)).Get, registration.AgentBundleName(cluster))
}

const forever = time.Hour

// A hub may be uninstalled the moment its last Cluster is gone. Nobody would take its finalizer off the agent's Bundle then, and the
// workspace could never be deleted.
func TestTheBundleOfTheAgentIsGoneBeforeItsCluster(t *testing.T) {
	s := newStage(t, graceOf(forever))
	name := s.Register(t, s.Token(t, "tok"), "last", "random").Request.Status.ClusterName
	s.checksIn(t, name, testenv.SystemNamespace)
	s.awaitDeployment(t, name)
	bundles := s.Hub.Fleet.Bundles(s.Namespace)
	require.Contains(t, testenv.RequireThere(t, bundles.Get, registration.AgentBundleName(name)).Finalizers, fleet.BundleFinalizer)

	s.DeleteCluster(t, name)
	s.requireAsked(t, name)
	s.saysFarewell(t, name)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", name)
	_, err := bundles.Get(t.Context(), registration.AgentBundleName(name), metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestADeletedClusterAsksItsAgentToLeaveAndTakesEverythingAlong(t *testing.T) {
	s := newStage(t, graceOf(forever))
	values := s.Token(t, "tok")
	s.ReadyToken(t, "tok")
	before := settled(t, s.Hub)
	name := s.Register(t, values, "leaving", "random").Request.Status.ClusterName
	s.checksIn(t, name, testenv.SystemNamespace)
	s.awaitDeployment(t, name)

	s.DeleteCluster(t, name)
	s.requireAsked(t, name)
	s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionProcessed, "Unknown Farewell: waiting until ")
	s.Stop(t)
	s.Running = s.Hub.Hub(t, graceOf(forever))
	testenv.RequireThere(t, s.Hub.Fleet.Clusters(s.Namespace).Get, name)

	s.saysFarewell(t, name)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", name)
	requireAsBefore(t, s.Hub, before)
	assert.Zero(t, s.Hub.EventCount(t, s.Namespace, name, "MemberLeft"))
}

func TestAnAgentThatDoesNotLeaveHoldsUpNothingForLong(t *testing.T) {
	s := newStage(t, graceOf(2*time.Second))
	values := s.Token(t, "tok")
	s.ReadyToken(t, "tok")
	before := settled(t, s.Hub)
	name := s.Register(t, values, "staying", "random").Request.Status.ClusterName
	s.checksIn(t, name, testenv.SystemNamespace)
	s.awaitDeployment(t, name)
	s.DeleteCluster(t, name)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", name)
	requireAsBefore(t, s.Hub, before)
	s.requireMemberLeft(t, name, fleet.ReasonFarewellTimeout)
}

func (s *stage) requireMemberLeft(t *testing.T, cluster, why string) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		events := s.Hub.Events(t, s.Namespace, cluster)
		said := slices.ContainsFunc(events, func(e corev1.Event) bool { return e.Reason == "MemberLeft" && strings.Contains(e.Message, why) })
		return said, fmt.Sprintf("no event tells that the member was left because of %s", why)
	})
}

func TestTheHubCleansAMemberThatItReaches(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	onMember := settled(t, s.Member)
	s.Hub.Import(t, s.Namespace, "m", s.Member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionImported, "True Imported")
	s.DeleteCluster(t, "m")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "m")
	requireAsBefore(t, s.Member, onMember)
	assert.Zero(t, s.Hub.EventCount(t, s.Namespace, "m", "MemberLeft"))
}

func TestAnotherClustersAgentStaysWhereItIs(t *testing.T) {
	s := newStage(t)
	agentNamespace := s.Member.Namespace(t)
	install := func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace }
	s.Hub.Import(t, s.Namespace, "old", s.Member, install)
	s.Hub.ClusterCondition(t, s.Namespace, "old", fleet.ConditionImported, "True Imported")
	s.Hub.Import(t, s.Namespace, "new", s.Member, install)
	s.Hub.ClusterCondition(t, s.Namespace, "new", fleet.ConditionImported, "True Imported")
	before := withoutPods(settled(t, s.Member))

	s.DeleteCluster(t, "old")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "old")
	now := inventory(t, s.Member)
	assert.Empty(t, slices.DeleteFunc(before, func(o string) bool { return slices.Contains(now, o) }), "nothing of the new one is removed")
	assert.Zero(t, s.Hub.EventCount(t, s.Namespace, "old", "MemberLeft"))
}

// withoutPods leaves out what the member's own controllers replace when a Deployment changes.
func withoutPods(all []string) []string {
	return slices.DeleteFunc(all, func(o string) bool { return strings.HasPrefix(o, "pods ") || strings.HasPrefix(o, "replicasets ") })
}

func TestAMemberThatDoesNotAnswerIsNotWaitedForForever(t *testing.T) {
	s := newStage(t, graceOf(2*time.Second))
	agentNamespace := s.Member.Namespace(t)
	s.Hub.Import(t, s.Namespace, "m", s.Member, func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace })
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionImported, "True Imported")
	s.Hub.WriteSecret(t, s.Namespace, "m-kubeconfig", map[string][]byte{
		registration.KubeconfigValue: testenv.At(t, s.Member.Kubeconfig(), testenv.SilentServer(t)),
	})
	s.DeleteCluster(t, "m")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "m")
	s.requireMemberLeft(t, "m", "the member")
}

func TestWhatWasOrphanedWhileNoHubWasRunningIsCollected(t *testing.T) {
	s := newStage(t, graceOf(forever))
	values := s.Token(t, "tok")
	s.ReadyToken(t, "tok")
	before := settled(t, s.Hub)
	name := s.Register(t, values, "orphan", "random").Request.Status.ClusterName
	s.checksIn(t, name, testenv.SystemNamespace)
	s.awaitDeployment(t, name)
	foreign := s.foreignNamespace(t)
	s.Stop(t)
	s.Hub.DropClusters(t, s.Namespace)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", name)

	s.Running = s.Hub.Hub(t, graceOf(forever))
	requireAsBefore(t, s.Hub, append(before, foreign...))
	for _, kept := range foreign {
		assert.Contains(t, inventory(t, s.Hub), kept)
	}
}

// foreignNamespace is one that somebody gave our label, and nothing else.
func (s *stage) foreignNamespace(t *testing.T) (objects []string) {
	t.Helper()
	name := s.Namespace + "-foreign"
	namespaces := s.Hub.Kubernetes.CoreV1().Namespaces()
	_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: managedLabel()}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := namespaces.Delete(context.Background(), name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			assert.NoError(t, err)
		}
	})
	return []string{"namespaces /" + name, "configmaps " + name + "/kube-root-ca.crt", "serviceaccounts " + name + "/default"}
}
