package lifetime

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// step is a part of a test. The steps of a test share a scene, because creating one takes longer than most steps, and each continues where
// the previous one has ended.
type step struct {
	name string
	run  func(*scene, *testing.T, *fleet.Cluster)
}

func runSteps(t *testing.T, way string, steps ...step) {
	t.Helper()
	t.Parallel()
	s := newScene(t)
	cluster := s.arrive(t, way)
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) { step.run(s, t, cluster) }) {
			return
		}
	}
}

func TestImportedAgent(t *testing.T) {
	sample.Long(t)
	runSteps(
		t, imported,
		step{"it deploys its own Bundle and applies every setting without registering again", (*scene).takesEverySetting},
		step{"no heartbeat: Connected becomes False, and True again", (*scene).goesSilent},
		step{"revoked credential: it registers again", (*scene).isRevoked},
		step{"another namespace and back: nothing is left", (*scene).moves},
		step{"deleted Cluster: the agent and everything it has deployed are deleted", (*scene).isDeleted},
	)
}

func TestInstalledAgent(t *testing.T) {
	sample.Long(t)
	runSteps(
		t, installed,
		step{"it deploys its own Bundle and keeps the values of its chart", (*scene).isAdopted},
		step{"new address of the hub: tried before the old one is dropped", (*scene).goesToANewAddress},
		step{"deleted Cluster, the agent is killed repeatedly: it removes itself and everything it has deployed", (*scene).isDeletedAgainstKills},
	)
}

func (s *scene) takesEverySetting(t *testing.T, _ *fleet.Cluster) {
	t.Helper()
	require.Equal(t, 2, s.rollouts(t), "one by the import, one by the adoption")
	require.Equal(t, registration.ManagedGeneration(0), env(s.deployment(t), registration.GenerationEnv))
	before := s.identity(t)
	require.Len(t, before.requests, 1)
	gap := s.watchAvailability(t)

	for _, setting := range []struct {
		name   string
		change func()
		done   func(*fleet.Cluster) bool
	}{
		{"the check-in interval in the configuration", func() { s.configure(t, map[string]any{"agentCheckinInterval": "2s"}) }, func(c *fleet.Cluster) bool {
			return c.Status.Agent.CheckinInterval != nil && c.Status.Agent.CheckinInterval.Duration == 2*time.Second
		}},
		{"an environment variable, a toleration and resources", func() {
			s.patch(t, "managed", `{"spec":{"agentEnvVars":[{"name":"A","value":"b"}],
				"agentTolerations":[{"key":"k","operator":"Exists"}],"agentResources":{"requests":{"cpu":"10m"}}}}`)
		}, func(*fleet.Cluster) bool {
			d := s.deployment(t)
			pod := d.Spec.Template.Spec
			return env(d, "A") == "b" && len(pod.Tolerations) == 3 && pod.Containers[0].Resources.Requests.Cpu().String() == "10m"
		}},
		{"none of them", func() {
			s.patch(t, "managed", `{"spec":{"agentEnvVars":null,"agentTolerations":null,"agentResources":null}}`)
		}, func(*fleet.Cluster) bool {
			d := s.deployment(t)
			return env(d, "A") == "" && len(d.Spec.Template.Spec.Tolerations) == 2
		}},
		{"the image", func() { s.configure(t, map[string]any{"agentImage": "example.com/agent:v2"}) }, func(*fleet.Cluster) bool {
			return s.deployment(t).Spec.Template.Spec.Containers[0].Image == "example.com/agent:v2"
		}},
	} {
		setting.change()
		s.until(t, "managed", func(c *fleet.Cluster) (bool, string) {
			d := s.deployment(t)
			rolled := d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == 1 && d.Status.Replicas == 1
			return setting.done(c) && rolled && c.Status.Summary.Ready == 1, setting.name + " has not arrived"
		})
		require.Equal(t, before, s.identity(t), "%s changed the identity of the agent", setting.name)
	}
	require.False(t, gap(), "for a moment no agent was available")
	require.Equal(t, 5, s.rollouts(t), "one for each setting, except that removing them restores an earlier template")
}

// watchAvailability returns a function that returns whether no agent was available at some moment until then.
func (s *scene) watchAvailability(t *testing.T) (gap func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	watching, err := s.member.Kubernetes.AppsV1().Deployments(system).Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	result := make(chan bool, 1)
	go func() {
		none := false
		for event := range watching.ResultChan() {
			d, ok := event.Object.(*appsv1.Deployment)
			none = none || ok && (event.Type == watch.Deleted || d.Status.AvailableReplicas == 0)
		}
		result <- none
	}()
	return func() bool { cancel(); watching.Stop(); return <-result }
}

func (s *scene) isAdopted(t *testing.T, _ *fleet.Cluster) {
	t.Helper()
	require.Equal(t, 2, s.rollouts(t), "one by the chart, one by the adoption")
	require.Equal(t, "kept", env(s.deployment(t), "MINE"), "a value of the chart that the hub does not know stays")
	require.Len(t, s.identity(t).requests, 1)
}

func TestAgentThatIsKilledRepeatedly(t *testing.T) {
	sample.Long(t)
	t.Parallel()
	s := newScene(t)
	killed, stop := s.killAgents(t, 700*time.Millisecond)
	s.hub.Import(t, s.ns, "managed", s.member)
	s.workload(t)
	killed(10)
	s.running.Stop(t)
	s.startHub(t)
	killed(4)
	stop()
	s.runs(t, "managed")
	cluster := s.adopted(t, "managed")
	assert.LessOrEqual(t, s.rollouts(t), 3, "no additional rollout")
	assert.Len(t, s.identity(t).requests, 1, "no additional registration")

	s.isDeletedWhile(t, cluster, func() { pause(3 * time.Second); s.running.Stop(t); s.startHub(t) })
}

// pause waits while the agent is being killed or removes itself.
func pause(d time.Duration) { <-time.NewTimer(d).C }

func (s *scene) goesToANewAddress(t *testing.T, cluster *fleet.Cluster) {
	t.Helper()
	before := s.identity(t)

	dead := "https://127.0.0.1:1" // refuses connections
	s.configure(t, map[string]any{"apiServerURL": dead})
	s.until(t, cluster.Name, func(c *fleet.Cluster) (bool, string) {
		hub := c.Status.Agent.Hub
		return hub != nil && hub.APIServerURL == s.hub.URL() && strings.Contains(hub.Pending, dead), fmt.Sprintf("hub %+v", hub)
	})
	s.requireBeats(t, cluster.Name)

	moved := strings.Replace(s.hub.URL(), "127.0.0.1", "localhost", 1)
	s.configure(t, map[string]any{"apiServerURL": moved})
	s.until(t, cluster.Name, func(c *fleet.Cluster) (bool, string) {
		hub := c.Status.Agent.Hub
		return hub != nil && hub.APIServerURL == moved && hub.Pending == "", fmt.Sprintf("hub %+v", hub)
	})
	s.requireBeats(t, cluster.Name)
	require.Equal(t, before, s.identity(t), "it does not register again because of a new address")
}

// The ways to register a cluster.
const (
	imported  = "imported"
	installed = "installed"
)

func (s *scene) arrive(t *testing.T, way string) *fleet.Cluster {
	t.Helper()
	if way == imported {
		return s.imported(t)
	}
	return s.installed(t, map[string]any{
		"fleetAgent": map[string]any{"extraEnv": []any{map[string]any{"name": "MINE", "value": "kept"}, map[string]any{"name": "CHECKIN_INTERVAL", "value": "1s"}}},
	})
}

// requireBeats waits for two more heartbeats.
func (s *scene) requireBeats(t *testing.T, name string) {
	t.Helper()
	s.hub.AwaitHeartbeat(t, s.ns, name, time.Now().Add(2*time.Second))
}

func (s *scene) isDeleted(t *testing.T, cluster *fleet.Cluster) {
	t.Helper()
	s.isDeletedWhile(t, cluster, func() {})
}

func (s *scene) isDeletedAgainstKills(t *testing.T, cluster *fleet.Cluster) {
	t.Helper()
	s.isDeletedWhile(t, cluster, func() {
		_, stop := s.killAgents(t, 1500*time.Millisecond)
		defer stop()
		pause(3 * time.Second)
	})
}

// isDeletedWhile deletes the Cluster, with a fault right after it.
func (s *scene) isDeletedWhile(t *testing.T, cluster *fleet.Cluster, fault func()) {
	t.Helper()
	s.workload(t)
	s.runs(t, cluster.Name)
	require.NoError(t, s.hub.Fleet.Clusters(s.ns).Delete(t.Context(), cluster.Name, metav1.DeleteOptions{}))
	fault()
	s.requireNothingLeft(t, cluster.Name)
}

func (s *scene) moves(t *testing.T, cluster *fleet.Cluster) {
	t.Helper()
	s.workload(t)
	s.runs(t, cluster.Name)
	revisions := func() (names []string) {
		list := testenv.List(t, s.member.Kubernetes.CoreV1().Secrets("hello").List, metav1.ListOptions{LabelSelector: "owner=helm"})
		for _, secret := range list.Items {
			names = append(names, secret.Name)
		}
		return names
	}
	before := revisions()
	for _, namespace := range []string{"elsewhere", ""} {
		s.patch(t, cluster.Name, fmt.Sprintf(`{"spec":{"agentNamespace":%q}}`, namespace))
		here, there := cmp.Or(namespace, system), "elsewhere"
		if namespace == there {
			there = system
		}
		s.until(t, cluster.Name, func(c *fleet.Cluster) (bool, string) {
			return c.Status.Agent.Namespace == here && registration.IsManagedGeneration(c.Status.Agent.Generation) && c.Status.Summary.Ready == 2,
				fmt.Sprintf("agent %+v, bundles %s", c.Status.Agent, c.Status.Display.ReadyBundles)
		})
		testenv.Eventually(t, func() (bool, string) {
			left := s.left(t, there)
			return left == "", fmt.Sprintf("left in %s: %s", there, left)
		})
		rbac := s.member.Kubernetes.RbacV1()
		testenv.RequireGone(t, rbac.ClusterRoles().Get, "ClusterRole", there+"-fleet-agent-role")
		testenv.RequireGone(t, rbac.ClusterRoleBindings().Get, "ClusterRoleBinding", there+"-fleet-agent-role-binding")
		s.until(t, cluster.Name, func(c *fleet.Cluster) (bool, string) {
			return len(c.Status.Import.StaleAgentNamespaces) == 0, "the old namespace is still listed"
		})
		testenv.RequireCredential(t, s.member, here, cluster.Name)
		testenv.Eventually(t, func() (bool, string) {
			requests := testenv.List(t, s.hub.Fleet.ClusterRegistrations(s.ns).List, metav1.ListOptions{})
			return len(requests.Items) == 1 && requests.Items[0].Status.Granted, "want one granted request and no other"
		})
		s.runs(t, cluster.Name)
		require.Equal(t, before, revisions(), "nothing is deployed again")
	}
}

func (s *scene) isRevoked(t *testing.T, cluster *fleet.Cluster) {
	t.Helper()
	before := s.identity(t)
	namespace := registration.ClusterNamespace(s.ns, cluster.Name)
	require.NoError(t, s.hub.Kubernetes.CoreV1().ServiceAccounts(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: fleet.ManagedLabel + "=" + fleet.ManagedValue}))
	s.until(t, cluster.Name, func(*fleet.Cluster) (bool, string) {
		return s.identity(t).token != before.token, "the agent has not registered again"
	})
	s.adopted(t, cluster.Name)
	s.requireBeats(t, cluster.Name)
}

func (s *scene) goesSilent(t *testing.T, cluster *fleet.Cluster) {
	t.Helper()
	none, one := `{"spec":{"replicas":0}}`, `{"spec":{"replicas":1}}`
	s.until(t, cluster.Name, func(c *fleet.Cluster) (bool, string) {
		if *s.deployment(t).Spec.Replicas != 0 { // also where the agent, before it ended, was fast enough to correct that
			s.patchDeployment(t, none)
		}
		return testenv.Condition(c.Status.Conditions, fleet.ConditionConnected)[:5] == string(corev1.ConditionFalse), "still connected"
	})
	s.patchDeployment(t, one)
	s.until(t, cluster.Name, func(c *fleet.Cluster) (bool, string) {
		return testenv.Condition(c.Status.Conditions, fleet.ConditionConnected)[:4] == string(corev1.ConditionTrue), "still disconnected"
	})
	s.until(t, cluster.Name, func(c *fleet.Cluster) (bool, string) {
		report := c.Status.Agent
		return report.Nodes != nil && report.Nodes.Count == 1 && report.KubernetesVersion == "v1.36.3" && report.Version != "" &&
			report.APIServer != nil && report.APIServer.Ready, fmt.Sprintf("the report is %+v", report)
	})
}
