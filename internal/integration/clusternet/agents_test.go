package clusternet

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/clusternetagent"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/agent"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// peer is a simulated agent of Clusternet and its member.
type peer struct {
	*testing.T
	s       *stage
	member  *clusternetagent.MemberState
	sent    *clusternetagent.SentRequests
	options clusternetagent.Options
	stop    func()
}

// peer is an agent that has not started, with the bootstrap token of the values.
func (s *stage) peer(t *testing.T, values registration.Values) *peer {
	t.Helper()
	sent := &clusternetagent.SentRequests{}
	log, logged := logtest.NewNullLogger()
	t.Cleanup(func() {
		for _, entry := range logged.AllEntries() {
			assert.NotContains(t, entry.Message, "eyJ", "the first characters of a token")
		}
	})
	return &peer{T: t, s: s, member: clusternetagent.NewMember(), sent: sent, stop: func() {}, options: clusternetagent.Options{
		HubURL: s.Hub.URL(), Token: values.Token, Periods: clusternetagent.QuickPeriods(), Sent: sent, Log: log,
	}}
}

// start starts another process of the agent, and forgets the requests of the previous one.
func (p *peer) start() {
	p.Helper()
	p.stop()
	p.sent.Reset()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- clusternetagent.Run(ctx, p.member, p.options) }()
	stopped := false
	p.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		assert.NoError(p, <-ended)
	}
	p.Cleanup(p.stop)
}

func (p *peer) id() string        { return p.member.ID() }
func (p *peer) request() string   { return clusternetagent.RequestName(p.id()) }
func (p *peer) cluster() string   { return registration.ClusterName(p.id()) }
func (p *peer) namespace() string { return registration.ClusterNamespace(p.s.Namespace, p.cluster()) }

// repeats waits until the agent has sent this number of further requests whose line contains a text. A line has the client (ded for the dedicated
// credential, boot for the bootstrap token), the method, the path and the status code. <CRR> and <MC> are the objects of the agent.
func (p *peer) repeats(text string, times int) {
	p.Helper()
	text = strings.NewReplacer("<CRR>", "clusterregistrationrequests/"+p.request(), "<MC>", "managedclusters/"+p.request()).Replace(text)
	before := p.sent.Count(text)
	testenv.Eventually(p, func() (bool, string) {
		return p.sent.Count(text) >= before+times, fmt.Sprintf("%q is missing in\n%s", text, strings.Join(p.sent.Lines(), "\n"))
	})
}

const beats = "ded PUT namespaces/"

// registered starts the agent and waits until it is connected.
func (p *peer) registered() *fleet.Cluster {
	p.Helper()
	p.start()
	p.repeats("/status 200", 1)
	return p.s.Hub.ClusterCondition(p, p.s.Namespace, p.cluster(), fleet.ConditionConnected, "True")
}

// beatsAgain waits until a heartbeat that is sent now has reached the Cluster.
func (p *peer) beatsAgain() {
	p.Helper()
	since := time.Now()
	p.s.EventuallyCluster(p, p.cluster(), func(c *fleet.Cluster) (bool, string) {
		return c.Status.Agent.LastSeen.Time.After(since), "lastSeen is " + c.Status.Agent.LastSeen.String()
	})
}

// waitingRequest waits until the ClusterRegistration of the agent has this reason, and returns its name.
func (p *peer) waitingRequest(reason string) (name string) {
	p.Helper()
	testenv.Eventually(p, func() (bool, string) {
		list := testenv.List(p, p.s.Hub.Fleet.ClusterRegistrations(p.s.Namespace).List, metav1.ListOptions{})
		got := "there is none"
		for _, r := range list.Items {
			if r.Spec.ClientID == p.id() && !r.Status.Granted {
				if name, got = r.Name, testenv.Condition(r.Status.Conditions, fleet.ConditionGranted); strings.Contains(got, reason) {
					return true, ""
				}
			}
		}
		return false, fmt.Sprintf("the request is %s, want %s", got, reason)
	})
	return name
}

func testDualAgentsWithNodeLabels(t *testing.T, s *stage) {
	values := s.Token(t, "tok")
	p := s.peer(t, values)
	p.options.SyncMode, p.options.Socket = "Dual", true
	p.options.ClusterLabels = map[string]string{"env": "edge"}
	p.member.LabelNodes(map[string]string{"node.clusternet.io/zone": "one"})
	cluster := p.registered()
	assert.Equal(t, "edge", cluster.Labels["env"])
	assert.Equal(t, []string{"v1.31.4+k3s1", "v0.18.0"}, []string{cluster.Status.Agent.KubernetesVersion, cluster.Status.Agent.Version})
	member := testenv.RequireThere(t, s.admin.ManagedClusters(p.namespace()).Get, p.request())
	assert.Equal(t, map[string]string{v1beta1.ClusterIDLabel: p.id(), "node.clusternet.io/zone": "one"}, member.Labels)

	// The hub refuses no request of an idle agent, except for the tunnel, which it does not have.
	p.options.Socket = false
	p.start()
	p.repeats("WATCH", 3)
	p.sent.Reset()
	p.repeats(beats, 5)
	for _, line := range p.sent.Lines() {
		assert.Regexp(t, ` 200$`, line)
	}
	for _, code := range []string{" 401", " 403", " 404", " 422", " 500"} {
		assert.Zero(t, p.sent.Count(code), "%s in\n%s", code, strings.Join(p.sent.Lines(), "\n"))
	}
}

func testWaitsForAPerson(t *testing.T, s *stage) {
	p := s.peer(t, s.Hub.Token(t, s.Namespace, "manual", manual()))
	p.options.NothingCollected = true // it sends the first heartbeat one period after the answer
	p.start()
	name := p.waitingRequest("WaitingForApproval")
	s.says(t, p.id(), "", "WaitingForApproval")
	p.repeats("boot GET <CRR>", 3)

	t.Log("the request is deleted: the agent asks for it, and sends it again only after a restart")
	require.NoError(t, s.admin.ClusterRegistrationRequests().Delete(t.Context(), p.request(), metav1.DeleteOptions{}))
	p.repeats("boot GET <CRR> 40", 3)
	assert.Equal(t, 1, p.sent.Count("POST clusterregistrationrequests"))
	p.start()
	s.says(t, p.id(), "", "WaitingForApproval")
	testenv.RequireGone(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, "ClusterRegistration", name)
	name = p.waitingRequest("WaitingForApproval")

	s.decide(t, name, string(fleet.DecisionDenied))
	s.says(t, p.id(), v1beta1.ResultDenied, "Denied")
	p.repeats("boot GET <CRR>", 3)
	_, stored := p.member.Credential()
	assert.False(t, stored)

	s.decide(t, name, string(fleet.DecisionApproved))
	p.repeats("/status 200", 1)
	s.Hub.ClusterCondition(t, s.Namespace, p.cluster(), fleet.ConditionConnected, "True")
	assert.Equal(t, 1, p.sent.Count("POST clusterregistrationrequests"), "the agent sends its request once")
}

func testRestarts(t *testing.T, s *stage) {
	p := s.peer(t, s.Token(t, "tok"))
	before := p.registered()
	first, _ := p.member.Credential()

	t.Log("while the request exists")
	p.start()
	p.repeats("/status 200", 1)
	assert.Zero(t, p.sent.Count("boot "), "the dedicated identity is enough:\n%s", strings.Join(p.sent.Lines(), "\n"))

	t.Log("after the request was deleted, and with a revoked bootstrap token")
	require.NoError(t, s.admin.ClusterRegistrationRequests().Delete(t.Context(), p.request(), metav1.DeleteOptions{}))
	require.NoError(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Delete(t.Context(), "tok", metav1.DeleteOptions{}))
	p.start()
	p.repeats("/status 200", 1)
	assert.Equal(t, 1, p.sent.Count("ded POST clusterregistrationrequests 201"))
	assert.Zero(t, p.sent.Count("boot "))

	t.Log("with another token in the answer")
	requests := testenv.List(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).List, metav1.ListOptions{})
	require.Len(t, requests.Items, 1)
	issued := registration.AnswerSecretName(p.id(), requests.Items[0].Spec.ClientRandom)
	require.NoError(t, s.Hub.Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace).Delete(t.Context(), issued, metav1.DeleteOptions{}))
	require.NoError(t, s.admin.ClusterRegistrationRequests().Delete(t.Context(), p.request(), metav1.DeleteOptions{}))
	p.start()
	p.repeats("/status 200", 1)
	last, _ := p.member.Credential()
	assert.NotEqual(t, first.Token, last.Token)

	after := s.Cluster(t, p.cluster())
	assert.Equal(t, before.UID, after.UID)
	p.beatsAgain()
}

func testReturnAfterAnOutage(t *testing.T, s *stage) {
	p := s.peer(t, s.Token(t, "tok"))
	p.registered()
	p.stop()
	require.NoError(t, s.admin.ClusterRegistrationRequests().Delete(t.Context(), p.request(), metav1.DeleteOptions{}))
	p.member.DeleteCredential() // an agent that could not reach the hub does not use its credential again, either
	p.start()
	name := p.waitingRequest("ClientIDInUse")
	s.says(t, p.id(), v1beta1.ResultDenied, "ClientIDInUse")
	assert.Positive(t, p.sent.Count("boot POST clusterregistrationrequests 201"))
	assert.Zero(t, p.sent.Count("ded "))

	s.decide(t, name, string(fleet.DecisionApproved))
	p.repeats("/status 200", 1)
	p.beatsAgain()
}

// If the workspace allows it, a disconnected agent registers again without approval, with the token of its first registration.
func testReentry(t *testing.T, s *stage) {
	p := s.peer(t, s.Token(t, "tok"))
	p.options.Forge = func(status map[string]any) { status["heartbeatFrequencySeconds"] = int64(1) }
	before := p.registered()
	require.NoError(t, s.admin.ClusterRegistrationRequests().Delete(t.Context(), p.request(), metav1.DeleteOptions{}))

	t.Log("while the agent is connected, another holder of its token is refused, and the agent keeps its credential")
	displacing := s.peer(t, registration.Values{Token: p.options.Token})
	displacing.member = clusternetagent.MemberWithID(p.id())
	displacing.start()
	displacing.waitingRequest("ClientIDInUse")
	s.says(t, p.id(), v1beta1.ResultDenied, "ClientIDInUse")
	displacing.repeats("boot GET <CRR>", 3)
	_, displaced := displacing.member.Credential()
	assert.False(t, displaced)
	p.beatsAgain()
	assert.Zero(t, p.sent.Count(" 401"))
	displacing.stop()

	t.Log("once it is disconnected, it may return")
	p.stop()
	require.NoError(t, s.admin.ClusterRegistrationRequests().Delete(t.Context(), p.request(), metav1.DeleteOptions{}))
	p.member.DeleteCredential()
	p.start()
	p.repeats("/status 200", 1)
	p.beatsAgain()
	assert.Positive(t, p.sent.Count("boot POST clusterregistrationrequests 201"))
	assert.Equal(t, before.UID, s.Cluster(t, p.cluster()).UID)

	// With another token, it is refused.
	p.stop()
	s.Hub.ClusterCondition(t, s.Namespace, p.cluster(), fleet.ConditionConnected, "False")
	thief := s.peer(t, s.Token(t, "thief"))
	thief.member = clusternetagent.MemberWithID(p.id())
	err := s.admin.ClusterRegistrationRequests().Delete(t.Context(), p.request(), metav1.DeleteOptions{})
	require.True(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	thief.start()
	thief.waitingRequest("ClientIDInUse")
}

func testManagedClusterMadeAgain(t *testing.T, s *stage) {
	p := s.peer(t, s.Token(t, "tok"))
	p.registered()
	first := testenv.RequireThere(t, s.admin.ManagedClusters(p.namespace()).Get, p.request())
	require.NoError(t, s.admin.ManagedClusters(p.namespace()).Delete(t.Context(), p.request(), metav1.DeleteOptions{}))
	testenv.EventuallyIs(t, s.admin.ManagedClusters(p.namespace()).Get, p.request(), func(m *v1beta1.ManagedCluster) (bool, string) {
		return m.UID != first.UID && m.Status.AgentVersion != "", "no heartbeat in another ManagedCluster"
	})
	p.beatsAgain()
}

// A write of the hub to a ManagedCluster causes one conflict, and the agent loses no heartbeat.
func testSilentAgent(t *testing.T, s *stage) {
	p := s.peer(t, s.Token(t, "tok"))
	p.options.Forge = func(status map[string]any) { status["heartbeatFrequencySeconds"] = int64(1) }
	p.registered()
	p.stop()
	s.Hub.ClusterCondition(t, s.Namespace, p.cluster(), fleet.ConditionConnected, "False")
	testenv.EventuallyIs(t, s.admin.ManagedClusters(p.namespace()).Get, p.request(), func(m *v1beta1.ManagedCluster) (bool, string) {
		ready := meta.FindStatusCondition(m.Status.Conditions, v1beta1.ConditionReady)
		return ready != nil && ready.Status == metav1.ConditionUnknown, "condition Ready is not Unknown"
	})
	p.start()
	s.Hub.ClusterCondition(t, s.Namespace, p.cluster(), fleet.ConditionConnected, "True")
	testenv.EventuallyIs(t, s.admin.ManagedClusters(p.namespace()).Get, p.request(), func(m *v1beta1.ManagedCluster) (bool, string) {
		return meta.IsStatusConditionTrue(m.Status.Conditions, v1beta1.ConditionReady), "condition Ready is not True"
	})
}

func testDeletedCluster(t *testing.T, s *stage) {
	p := s.peer(t, s.Token(t, "tok"))
	p.registered()
	namespace := p.namespace()
	testenv.EventuallyThere(t, s.Hub.Kubernetes.CoreV1().Secrets(namespace).Get, clusternetagent.DeployerSecret)
	credential, _ := p.member.Credential()
	s.DeleteCluster(t, p.cluster())
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", p.cluster())
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Namespaces().Get, "Namespace", namespace)
	testenv.RequireGone(t, s.admin.ClusterRegistrationRequests().Get, "ClusterRegistrationRequest", p.request())
	p.repeats(beats+namespace+"/managedclusters/"+p.request()+"/status 401", 2)
	testenv.Eventually(t, func() (bool, string) {
		var left []string
		for _, line := range s.Hub.Managed(t) {
			if strings.Contains(line, namespace) || strings.Contains(line, p.id()) {
				left = append(left, line)
			}
		}
		return len(left) == 0, "left: " + strings.Join(left, ", ")
	})

	// After a restart it registers only with its bootstrap token, as a new cluster.
	p.start()
	p.repeats("ded POST clusterregistrationrequests 401", 1)
	p.repeats("/status 200", 1)
	again, _ := p.member.Credential()
	assert.NotEqual(t, credential.Token, again.Token)
}

// The Cluster stays: the agent of Muster takes the identity over, and the old agent, which still runs, no longer changes anything.
func testMoveToMuster(t *testing.T, s *stage) {
	p := s.peer(t, s.Token(t, "tok"))
	before := p.registered()
	namespace := s.Member.Namespace(t)
	own := s.Hub.Token(t, s.Namespace, "move", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{p.id()}})
	testenv.BootstrapAgent(t, s.Member, namespace, own, map[string]string{"config": `{"clientID":"` + p.id() + `"}`})
	s.Member.Agent(t, namespace, func(c *agent.Config) { c.CheckinInterval = time.Second })
	testenv.RequireCredential(t, s.Member, namespace, p.cluster())
	p.repeats(" 401", 3)

	moved := s.EventuallyCluster(t, p.cluster(), func(c *fleet.Cluster) (bool, string) {
		return c.Status.Agent.Namespace == namespace, "the agent of Muster has sent no heartbeat"
	})
	assert.Equal(t, before.UID, moved.UID)
	for range 3 {
		p.repeats(" 401", 1)
		current := s.Cluster(t, p.cluster())
		assert.Equal(t, namespace, current.Status.Agent.Namespace)
		assert.Contains(t, testenv.Condition(current.Status.Conditions, fleet.ConditionConnected), "True")
	}

	// It changes nothing after a restart, either.
	p.start()
	p.waitingRequest("ClientIDInUse")
	s.says(t, p.id(), v1beta1.ResultDenied, "ClientIDInUse")
	assert.Equal(t, namespace, s.Cluster(t, p.cluster()).Status.Agent.Namespace)
}

// secretsIn are the Secrets of a namespace that contain data.
func (s *stage) secretsIn(t *testing.T, namespace string) (names []string) {
	t.Helper()
	list := testenv.List(t, s.Hub.Kubernetes.CoreV1().Secrets(namespace).List, metav1.ListOptions{})
	for _, secret := range list.Items {
		if len(secret.Data) > 0 && secret.Type == corev1.SecretTypeOpaque {
			names = append(names, secret.Name)
		}
	}
	return names
}
