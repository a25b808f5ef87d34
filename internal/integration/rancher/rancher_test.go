package rancher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/rancherlike"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/transport"
)

const (
	agentNamespace = "cattle-fleet-system"
	otherWorkspace = "team-a"
)

// serverStory is one management server from its installation on. Each chapter continues with the state of the previous one.
type serverStory struct {
	t           *testing.T // for processes that a chapter starts and later chapters need
	hub, member *testenv.Cluster
	server      *rancherlike.Server
	seen        *rancherlike.Observer
	asHub       []func(*muster.Options)
	running     *testenv.Running
	edgeAgent   *testenv.Running
	edge, local *rancherlike.Managed
	secretReads *reads
	fronts      []*rancherlike.Proxy
}

// TestManagementServer checks the behaviour that a management server relies on. The packages charts and privilege test charts and rights.
func TestManagementServer(t *testing.T) {
	sample.Long(t)
	s := newServerStory(t)
	for _, chapter := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"no bootstrap: nothing is created in its workspaces", s.nothingIsMade},
		{"import waits for the Secret and for the tunnel", s.importWaits},
		{"server broken before the agent registers", s.brokenBeforeRegistration},
		{"server broken while the agent waits for its credential", s.brokenWhileWaiting},
		{"server broken while the agent works", s.brokenAtWork},
		{"local cluster registers", s.localRegisters},
		{"server applies its Clusters again: nothing changes", s.passesChangeNothing},
		{"kubeconfig Secret is created again: no import", s.secretsAreMadeAgain},
		{"TLS mode reaches every agent without a registration", s.tlsMode},
		{"address reaches every agent, although one cluster is broken", s.otherAddress},
		{"address is reverted at once: agents keep their credentials", s.addressTakenBack},
		{"redeployAgentGeneration: every other value installs the agent again", s.redeploy},
		{"status has the fields that the server shows", s.status},
		{"objects are where the server expects them", s.places},
		{"workspace changes, new Cluster after the deletion of the old one", s.moves},
		{"workspace changes, new Cluster before the deletion of the old one", s.movesBack},
	} {
		if !t.Run(chapter.name, chapter.run) {
			break
		}
	}
	t.Run("no healthy cluster was ever shown as failed, and nothing was reverted", func(t *testing.T) {
		require.Empty(t, s.seen.Problems())
	})
	t.Run("agents used only bearer tokens and paths of the Kubernetes API", func(t *testing.T) {
		for _, front := range s.fronts {
			require.Empty(t, front.Strays())
		}
	})
}

func newServerStory(t *testing.T) *serverStory {
	t.Helper()
	s := &serverStory{t: t, hub: testenv.BorrowedCluster(t, "member"), member: testenv.BorrowedCluster(t, "member")}
	s.server = rancherlike.New(t, s.hub)
	s.fronts = append(s.fronts, s.server.Proxy)
	s.seen = s.server.Observe(t)
	s.local = s.manage(t, rancherlike.Managed{
		Name: "local", ID: "local", Namespace: rancherlike.LocalWorkspace, Workspace: rancherlike.LocalWorkspace, Local: true,
	}, s.hub)
	s.edge = s.manage(t, rancherlike.Managed{
		Name: "edge", ID: "c-m-abcdefgh", Namespace: rancherlike.DefaultWorkspace, Workspace: rancherlike.DefaultWorkspace,
	}, s.member)
	s.secretReads = &reads{path: s.local.SecretPath()}
	s.asHub = []func(*muster.Options){s.server.Upgrade(t), func(o *muster.Options) { o.RESTConfig.Wrap(transport.Sender(s.secretReads.count).Wrap) }}
	s.running = s.hub.Hub(t, s.asHub...)
	return s
}

func (s *serverStory) manage(t *testing.T, m rancherlike.Managed, member *testenv.Cluster) *rancherlike.Managed {
	t.Helper()
	managed := s.server.NewManaged(t, m, member)
	s.seen.Expect(managed)
	return managed
}

func (s *serverStory) nothingIsMade(t *testing.T) {
	for _, workspace := range []string{rancherlike.LocalWorkspace, rancherlike.DefaultWorkspace} {
		clusters := testenv.List(t, s.hub.Fleet.Clusters(workspace).List, metav1.ListOptions{})
		require.Empty(t, clusters.Items)
		groups := testenv.List(t, s.hub.Fleet.ClusterGroups(workspace).List, metav1.ListOptions{})
		require.Empty(t, groups.Items)
	}
}

func (s *serverStory) importWaits(t *testing.T) {
	s.server.Pass(t, s.edge)
	s.condition(t, s.edge, fleet.ConditionImported, "Unknown "+fleet.ReasonWaitingForKubeconfig)
	for i, fault := range rancherlike.TunnelFaults() {
		s.server.Proxy.Tunnel.Break(fault)
		if i == 0 {
			s.server.CreateSecret(t, s.edge)
		}
		s.condition(t, s.edge, fleet.ConditionImported, "False "+fleet.ReasonUnreachable)
		requireAnswers(t, &s.server.Proxy.Tunnel, 2)
	}
	cluster := s.cluster(t, s.edge)
	require.Contains(t, testenv.Condition(cluster.Status.Conditions, fleet.ConditionImported), "a proxy in front of the member answered 503")
	s.server.Proxy.Tunnel.Mend()
	s.condition(t, s.edge, fleet.ConditionImported, "True Imported")
}

func (s *serverStory) localRegisters(t *testing.T) {
	s.server.CreateSecret(t, s.local)
	s.server.Pass(t, s.local)
	s.condition(t, s.local, fleet.ConditionImported, "True Imported")
	s.hub.Agent(s.t, rancherlike.LocalAgentNamespace, quick)

	s.condition(t, s.local, fleet.ConditionRegistered, "True")
	testenv.RequireCredential(t, s.hub, rancherlike.LocalAgentNamespace, s.local.Name)
	require.Equal(t, s.hub.URL(), s.address(t, s.hub, rancherlike.LocalAgentNamespace), "the address in the Secret wins")
	require.Equal(t, s.server.Proxy.URL(), s.address(t, s.member, agentNamespace))
}

func (s *serverStory) passesChangeNothing(t *testing.T) {
	for _, m := range []*rancherlike.Managed{s.edge, s.local} {
		before := s.cluster(t, m)
		require.NotEmpty(t, before.Spec.ClientID)
		for range 3 {
			s.server.Pass(t, m)
		}
		s.awaitBeat(t, m)
		after := s.cluster(t, m)
		require.Equal(t, before.Generation, after.Generation, "the server or the hub changed the spec")
		require.Equal(t, before.Spec, after.Spec)
		require.Subset(t, []string{"f:clientID", "."}, specFieldsOf(t, after, "fleetcontroller"))
	}
}

func (s *serverStory) secretsAreMadeAgain(t *testing.T) {
	edge, local := s.cluster(t, s.edge), s.cluster(t, s.local)
	edgeCredential := s.credential(t, s.member, agentNamespace)
	localCredential := s.credential(t, s.hub, rancherlike.LocalAgentNamespace)
	toEdge, toLocal := s.server.Proxy.Calls(s.edge.ID), s.server.Proxy.Calls(s.local.ID)

	s.server.DeleteSecret(t, s.edge)
	s.server.CreateSecret(t, s.edge)
	s.server.DeleteSecret(t, s.local)
	before := s.secretReads.n.Load()
	s.server.CreateSecret(t, s.local)
	testenv.Eventually(t, func() (bool, string) {
		return s.secretReads.n.Load() > before, "the hub has not read the new Secret"
	})
	s.server.Pass(t, s.local)

	s.requireNotImported(t, s.edge, edge)
	s.requireNotImported(t, s.local, local)
	require.Equal(t, toEdge, s.server.Proxy.Calls(s.edge.ID), "the hub called the member")
	require.Equal(t, toLocal, s.server.Proxy.Calls(s.local.ID), "the hub called its own cluster")
	require.Equal(t, []string{s.hub.URL()}, s.seen.Addresses(local.UID), "the agent was sent to another address and back")
	require.Equal(t, edgeCredential.ResourceVersion, s.credential(t, s.member, agentNamespace).ResourceVersion)
	require.Equal(t, localCredential.ResourceVersion, s.credential(t, s.hub, rancherlike.LocalAgentNamespace).ResourceVersion)
}

// requireNotImported waits until the hub has read the current Secret, and checks that it did not import the cluster again.
func (s *serverStory) requireNotImported(t *testing.T, m *rancherlike.Managed, before *fleet.Cluster) {
	t.Helper()
	secret := testenv.RequireThere(t, s.hub.Kubernetes.CoreV1().Secrets(m.Namespace).Get, before.Spec.KubeConfigSecret)
	var after *fleet.Cluster
	testenv.Eventually(t, func() (bool, string) {
		after = s.cluster(t, m)
		return after.Status.Import.KubeConfigSecretVersion == string(secret.UID)+"/"+secret.ResourceVersion, "the hub has not read the Secret"
	})
	require.Equal(t, before.Status.Import.Time, after.Status.Import.Time, "the agent was installed again")
	require.Equal(t, before.Status.Import.RegistrationKey, after.Status.Import.RegistrationKey)
	require.True(t, strings.HasPrefix(testenv.Condition(after.Status.Conditions, fleet.ConditionImported), "True"))
}

func (s *serverStory) tlsMode(t *testing.T) {
	requests, credential := s.requests(t, s.edge), s.credential(t, s.member, agentNamespace)
	s.server.Settings.AgentTLSMode = string(config.TLSModeSystemStore)
	s.server.Upgrade(t)

	for m, member := range map[*rancherlike.Managed]*testenv.Cluster{s.edge: s.member, s.local: s.hub} {
		testenv.Eventually(t, func() (bool, string) {
			mode := s.cluster(t, m).Status.AgentTLSMode
			return mode == string(config.TLSModeSystemStore), m.Name + " has " + mode
		})
		configMap := testenv.RequireThere(t, member.Kubernetes.CoreV1().ConfigMaps(s.cluster(t, m).Status.Agent.Namespace).Get, registration.AgentConfigMap)
		require.Contains(t, configMap.Data[registration.ConfigKey], string(config.TLSModeSystemStore))
	}
	testenv.RequireCredential(t, s.member, agentNamespace, s.edge.Name)
	require.Equal(t, requests, s.requests(t, s.edge), "the agent registered again")
	require.Equal(t, credential.Data[registration.CredentialKubeconfig], s.credential(t, s.member, agentNamespace).Data[registration.CredentialKubeconfig])
}

func (s *serverStory) otherAddress(t *testing.T) {
	s.breakACluster(t)
	localCredential := s.credential(t, s.hub, rancherlike.LocalAgentNamespace)
	front := rancherlike.NewProxy(s.t, s.hub)
	s.fronts = append(s.fronts, front)
	s.server.Proxy.Agents.Break(rancherlike.AgentFaults()[3]) // the old address is no longer served
	s.server.Settings.ServerURL, s.server.Settings.CACerts = front.URL(), front.CA()
	s.server.Upgrade(t)

	testenv.Eventually(t, func() (bool, string) {
		address := s.address(t, s.member, agentNamespace)
		return address == front.URL(), "the agent is still at " + address
	})
	testenv.RequireCredential(t, s.member, agentNamespace, s.edge.Name)
	s.awaitBeat(t, s.edge)
	s.condition(t, s.edge, fleet.ConditionRegistered, "True")
	require.Zero(t, s.cluster(t, s.edge).Spec.RedeployAgentGeneration)

	s.awaitBeat(t, s.local)
	require.Equal(t, []string{s.hub.URL()}, s.seen.Addresses(s.cluster(t, s.local).UID), "the address in its Secret has not changed")
	require.Equal(t, localCredential.ResourceVersion, s.credential(t, s.hub, rancherlike.LocalAgentNamespace).ResourceVersion)
}

// addressTakenBack configures an address that works in part, and then the earlier one again. The agent may have switched in between.
func (s *serverStory) addressTakenBack(t *testing.T) {
	before, requests := s.server.Settings, s.requests(t, s.edge)
	mistaken := rancherlike.NewProxy(s.t, s.hub)
	s.fronts = append(s.fronts, mistaken)
	fault := rancherlike.TunnelFaults()[0]
	fault.Below = "/api/v1/" // where the agent looks for its credential
	mistaken.Agents.Break(fault)
	s.server.Settings.ServerURL, s.server.Settings.CACerts = mistaken.URL(), mistaken.CA()
	s.server.Upgrade(t)
	testenv.Eventually(t, func() (bool, string) {
		hub, address := s.cluster(t, s.edge).Status.Agent.Hub, s.address(t, s.member, agentNamespace)
		known := address == mistaken.URL() || hub != nil && hub.Pending != ""
		return known, fmt.Sprintf("the agent is at %s and says %+v", address, hub)
	})

	s.server.Settings = before
	s.server.Upgrade(t)
	testenv.Eventually(t, func() (bool, string) {
		delivered := s.cluster(t, s.edge).Status.APIServerURL
		return delivered == before.ServerURL, "the hub has delivered " + delivered
	})
	testenv.RequireCredential(t, s.member, agentNamespace, s.edge.Name)
	s.awaitBeat(t, s.edge)
	s.condition(t, s.edge, fleet.ConditionRegistered, "True")
	testenv.Eventually(t, func() (bool, string) {
		address := s.address(t, s.member, agentNamespace)
		return address == before.ServerURL, "the agent is at " + address
	})
	require.Equal(t, requests, s.requests(t, s.edge), "the agent registered again")
}

// breakACluster adds a managed cluster whose kubeconfig has an unreachable address.
func (s *serverStory) breakACluster(t *testing.T) {
	t.Helper()
	broken := s.manage(t, rancherlike.Managed{
		Name: "broken", ID: "c-m-bbbbbbbb", Namespace: rancherlike.DefaultWorkspace, Workspace: rancherlike.DefaultWorkspace,
	}, s.member)
	nowhere, err := clientcmd.Load(s.member.Kubeconfig())
	require.NoError(t, err)
	for _, cluster := range nowhere.Clusters {
		cluster.Server = "https://127.0.0.1:1"
	}
	kubeconfig, err := clientcmd.Write(*nowhere)
	require.NoError(t, err)
	s.hub.WriteSecret(t, broken.Namespace, "broken-kubeconfig", map[string][]byte{registration.KubeconfigValue: kubeconfig})
	s.server.Pass(t, broken)
	s.condition(t, broken, fleet.ConditionImported, "False "+fleet.ReasonUnreachable)
}

func (s *serverStory) redeploy(t *testing.T) {
	for _, generation := range []int64{2, -1} {
		before := s.credential(t, s.member, agentNamespace)
		patch := fmt.Sprintf(`[{"op":"add","path":"/spec/redeployAgentGeneration","value":%d}]`, generation)
		_, err := s.hub.Fleet.Clusters(s.edge.Workspace).Patch(t.Context(), s.edge.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)

		testenv.Eventually(t, func() (bool, string) {
			stored := s.credential(t, s.member, agentNamespace).Data[registration.BootstrapRegistrationKey]
			return strings.HasSuffix(string(stored), fmt.Sprintf("/%d", generation)), "registered for " + string(stored)
		})
		testenv.RequireCredential(t, s.member, agentNamespace, s.edge.Name)
		require.NotEqual(t, before.Data[registration.CredentialKubeconfig],
			s.credential(t, s.member, agentNamespace).Data[registration.CredentialKubeconfig], "the credential is the old one")

		s.server.Pass(t, s.edge)
		cluster := s.condition(t, s.edge, fleet.ConditionRegistered, "True")
		require.Equal(t, generation, *cluster.Status.AgentDeployedGeneration)
		require.Equal(t, generation, cluster.Spec.RedeployAgentGeneration)
		testenv.Eventually(t, func() (bool, string) {
			return len(s.requests(t, s.edge)) == 1, "the request that was replaced is still there"
		})
	}
}

func (s *serverStory) status(t *testing.T) {
	for m, namespace := range map[*rancherlike.Managed]string{s.edge: agentNamespace, s.local: rancherlike.LocalAgentNamespace} {
		s.awaitBeat(t, m)
		status := s.cluster(t, m).Status
		require.Equal(t, namespace, status.Agent.Namespace)
		require.Equal(t, registration.ClusterNamespace(m.Workspace, m.Name), status.Namespace)
		require.Regexp(t, `^[01]/1$`, status.Display.ReadyBundles, "its agent is its only Bundle")
		for _, condition := range []string{fleet.ConditionProcessed, fleet.ConditionImported, fleet.ConditionRegistered} {
			require.True(t, strings.HasPrefix(testenv.Condition(status.Conditions, condition), "True"), "%s: %s", m.Name, condition)
		}
	}
}

func (s *serverStory) places(t *testing.T) {
	for _, m := range []*rancherlike.Managed{s.edge, s.local} {
		name := s.cluster(t, m).Status.Namespace
		require.True(t, strings.HasPrefix(name, "cluster-fleet-"), name)
		namespace := testenv.RequireThere(t, s.hub.Kubernetes.CoreV1().Namespaces().Get, name)
		require.Equal(t, "true", namespace.Labels["fleet.cattle.io/managed"])
	}
	for _, secret := range s.credentialsOnHub(t) {
		require.Equal(t, "cattle-fleet-clusters-system", secret.Namespace)
	}
	clusters := testenv.List(t, s.hub.Fleet.Clusters("").List, metav1.ListOptions{})
	for _, cluster := range clusters.Items {
		require.Contains(t, []string{rancherlike.DefaultWorkspace, rancherlike.LocalWorkspace}, cluster.Namespace)
	}
	bundles := testenv.List(t, s.hub.Fleet.Bundles("").List, metav1.ListOptions{})
	for _, bundle := range bundles.Items {
		require.Contains(t, []string{rancherlike.DefaultWorkspace, rancherlike.LocalWorkspace}, bundle.Namespace)
	}
}
