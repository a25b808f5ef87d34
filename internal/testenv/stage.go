package testenv

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/preserve"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// The default namespaces of a hub.
const (
	SystemNamespace       = registration.DefaultSystemNamespace
	RegistrationNamespace = "cattle-fleet-clusters-system"
)

// Stage is a running hub with a workspace that no other test uses.
type Stage struct {
	*Running
	Hub, Member *Cluster
	Namespace   string
}

// Clusters returns the hub and the member that the tests of a package share.
func Clusters(t testing.TB) (hub, member *Cluster) {
	t.Helper()
	return SharedCluster(t, "hub"), SharedCluster(t, "member")
}

// NewStage starts a hub on the shared clusters. Its configuration has its address for agents.
func NewStage(t testing.TB, change ...func(*muster.Options)) *Stage {
	t.Helper()
	s := EmptyStage(t)
	s.Running = s.Hub.Hub(t, change...)
	return s
}

// EmptyStage is a Stage whose hub is configured but does not run.
func EmptyStage(t testing.TB) *Stage {
	t.Helper()
	hub, member := Clusters(t)
	hub.Configure(t, hub.Reachable())
	return &Stage{Hub: hub, Member: member, Namespace: hub.Namespace(t)}
}

// sharedHub is a global variable because the testing package has no other place for what the tests of a package share.
var sharedHub struct {
	mutex   sync.Mutex
	running *Running
	tests   int // that use it
}

// ParallelStage is a Stage for a test that runs in parallel with others of its package and shares their hub. It must neither stop the hub nor change
// its configuration, and must only use objects in namespaces of its own. All tests of a package must pass the same options.
func ParallelStage(t *testing.T, change ...func(*muster.Options)) *Stage {
	t.Helper()
	t.Parallel()
	s := EmptyStage(t)
	sharedHub.mutex.Lock()
	defer sharedHub.mutex.Unlock()
	if sharedHub.tests == 0 {
		sharedHub.running = s.Hub.startHub(t, change...)
	}
	sharedHub.tests++
	t.Cleanup(func() {
		sharedHub.mutex.Lock()
		defer sharedHub.mutex.Unlock()
		if sharedHub.tests--; sharedHub.tests == 0 {
			sharedHub.running.Stop(t)
		}
	})
	s.Running = sharedHub.running
	return s
}

// Registered is a cluster that has registered as an agent does.
type Registered struct {
	Values  registration.Values
	Request *fleet.ClusterRegistration
	Secret  *corev1.Secret
}

// Bearer is the token that the hub has issued.
func (r Registered) Bearer() string { return string(r.Secret.Data[registration.CredentialToken]) }

// ClusterNamespace is the namespace of the Cluster on the hub.
func (r Registered) ClusterNamespace() string {
	return string(r.Secret.Data[registration.CredentialDeploymentNamespace])
}

// Account is the ServiceAccount of the agent.
func (r Registered) Account() string {
	return registration.RequestServiceAccount(r.Request.Name, string(r.Request.UID))
}

// Register creates a request as an agent does and waits for its credential. The random string gets a suffix that no other test uses, because
// the hub refuses one that it has seen before.
func (s *Stage) Register(t testing.TB, values registration.Values, clientID, random string) Registered {
	t.Helper()
	return s.granted(t, values, s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: random + s.Namespace}))
}

// RegisterRenewing is Register for an agent that renews its credential.
func (s *Stage) RegisterRenewing(t testing.TB, values registration.Values, clientID, random string) Registered {
	t.Helper()
	return s.granted(t, values, s.Hub.RenewingRequest(t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: random + s.Namespace}))
}

func (s *Stage) granted(t testing.TB, values registration.Values, request *fleet.ClusterRegistration) Registered {
	t.Helper()
	latest, secret := s.Hub.Granted(t, values, request)
	return Registered{Values: values, Request: latest, Secret: secret}
}

// Token creates a ClusterRegistrationToken that does not expire, and waits for its values.
func (s *Stage) Token(t testing.TB, name string) registration.Values {
	t.Helper()
	return s.Hub.Token(t, s.Namespace, name, fleet.ClusterRegistrationTokenSpec{})
}

// TTL is the spec of a ClusterRegistrationToken that expires.
func TTL(d time.Duration) fleet.ClusterRegistrationTokenSpec {
	return fleet.ClusterRegistrationTokenSpec{TTL: &metav1.Duration{Duration: d}}
}

// ReadyToken waits until a token is Ready. Before that its Secret can still change.
func (s *Stage) ReadyToken(t testing.TB, name string) *fleet.ClusterRegistrationToken {
	t.Helper()
	s.Hub.WaitCondition(t, KindToken, s.Namespace, name, fleet.ConditionReady, "True")
	return RequireThere(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Get, name)
}

// Cluster returns a Cluster, which must exist.
func (s *Stage) Cluster(t testing.TB, name string) *fleet.Cluster {
	t.Helper()
	cluster := RequireThere(t, s.Hub.Fleet.Clusters(s.Namespace).Get, name)
	preserve.Restore(cluster)
	return cluster
}

// CreateCluster creates a Cluster in the workspace.
func (s *Stage) CreateCluster(t testing.TB, cluster *fleet.Cluster) *fleet.Cluster {
	t.Helper()
	created, err := s.Hub.Fleet.Clusters(s.Namespace).Create(t.Context(), cluster, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// PatchSpec applies a JSON merge patch to the spec of a Cluster.
func (s *Stage) PatchSpec(t testing.TB, cluster, fields string) {
	t.Helper()
	Merge(t, s.Hub.Fleet.Clusters(s.Namespace).Patch, cluster, `{"spec":`+fields+`}`)
}

// DeleteCluster deletes a Cluster of the workspace and does not wait.
func (s *Stage) DeleteCluster(t testing.TB, name string) {
	t.Helper()
	require.NoError(t, s.Hub.Fleet.Clusters(s.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// EventuallyCluster waits until check returns true for a Cluster. The text of check describes what it has found.
func (s *Stage) EventuallyCluster(t testing.TB, name string, check func(*fleet.Cluster) (bool, string)) *fleet.Cluster {
	t.Helper()
	return EventuallyIs(t, s.Hub.Fleet.Clusters(s.Namespace).Get, name, func(cluster *fleet.Cluster) (bool, string) {
		preserve.Restore(cluster)
		return check(cluster)
	})
}

// ImportInto imports the member with the agent in a namespace and waits until the agent is installed.
func (s *Stage) ImportInto(t testing.TB, name, agentNamespace string, change ...func(*fleet.Cluster)) *fleet.Cluster {
	t.Helper()
	into := func(c *fleet.Cluster) { c.Spec.AgentNamespace = agentNamespace }
	s.Hub.Import(t, s.Namespace, name, s.Member, append(change, into)...)
	return s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionImported, "True Imported")
}

// Beat writes a heartbeat with the given report of the agent.
func (s *Stage) Beat(t testing.TB, cluster string, agent fleet.AgentStatus) {
	t.Helper()
	Merge(t, s.Hub.Fleet.Clusters(s.Namespace).Patch, cluster, map[string]any{"status": map[string]any{"agent": agent}}, "status")
}

// RequireHeartbeat writes a heartbeat with the credential of a registered agent.
func (s *Stage) RequireHeartbeat(t testing.TB, r Registered, lastSeen time.Time) {
	t.Helper()
	patch := fmt.Appendf(nil, `[{"op":"add","path":"/status/agent","value":{"lastSeen":%q,"namespace":%q}}]`, lastSeen.UTC().Format(time.RFC3339), SystemNamespace)
	_, err := s.Hub.ClientFor(t, r.Bearer()).Fleet.Clusters(s.Namespace).Patch(t.Context(), r.Request.Status.ClusterName,
		types.JSONPatchType, patch, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// AwaitWork waits until the hub has processed a Cluster that is created now.
func (s *Stage) AwaitWork(t testing.TB, marker string) {
	t.Helper()
	s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: marker}})
	s.Hub.ClusterCondition(t, s.Namespace, marker, fleet.ConditionProcessed, "True")
}

// DropClusters removes the Clusters of a namespace and their finalizers. No hub may be running.
func (c *Cluster) DropClusters(t testing.TB, namespace string) {
	t.Helper()
	clusters := c.Fleet.Clusters(namespace)
	list, err := clusters.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, cluster := range list.Items {
		Merge(t, clusters.Patch, cluster.Name, `{"metadata":{"finalizers":null}}`)
		require.NoError(t, clusters.Delete(t.Context(), cluster.Name, metav1.DeleteOptions{}), cluster.Name)
	}
}
