//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Each stage lasts until the hub has been restarted, because the scene withholds an object or a connection that the next stage needs.
func TestHubRestarts(t *testing.T) {
	s := beginAlone(t)
	s.takeChart()
	s.workspace()
	var m, byToken *enrolled
	s.hubRestarts("when the Cluster has its namespace, and no kubeconfig", func() {
		m = s.announce("m")
		m.condition(fleet.ConditionImported, "Unknown "+fleet.ReasonWaitingForKubeconfig)
		m.at(hasNamespace)
	})
	heal := s.cut()
	s.hubRestarts("when the token is ready, and the member cannot be reached", func() {
		s.giveKubeconfig("m")
		m.at(hasToken)
	})
	uncordon := s.cordon(s.member)
	s.hubRestarts("when the agent is installed, and does not run", func() {
		s.fail(heal())
		m.at(installed)
	})
	values := s.token("tok", time.Hour)
	s.step("two agents create their requests while the hub is stopped, one of them with a token", func() {
		s.stopHub()
		s.fail(uncordon(s.Context()))
		byToken = s.asks("by-token", values)
		m.at(hasRequest)
	})
	heal = s.cut()
	s.step("the hub starts", s.startHub)
	s.hubRestarts("when both requests are granted, and the agents cannot read their credentials", func() {
		m.at(granted)
		byToken.at(granted)
	})
	s.hubRestarts("when the first heartbeats have arrived", func() {
		s.fail(heal())
		m.at(hasHeartbeat)
		byToken.at(hasHeartbeat)
	})
	s.step("both are registered", func() {
		m.registered()
		byToken.registered()
	})
	s.step("no cluster has registered twice", func() { s.registeredOnce(2) })
}

// hubRestarts waits for a stage and then replaces the hub.
func (s *scene) hubRestarts(when string, arrive func()) {
	s.Helper()
	s.step("the hub restarts "+when, func() {
		arrive()
		s.restartPods(s.hub, systemNamespace, hubPods)
		s.hubsReady(1)
	})
}

// stopHub scales the hub to 0 replicas, and back at the latest when the scene ends.
func (s *scene) stopHub() {
	s.Helper()
	s.configure("--set", "controller.replicas=0")
	s.hubsReady(0)
}

func (s *scene) startHub() {
	s.Helper()
	s.fail(s.installHub(s.Context(), charts, s.options.tag))
}

// One agent is killed at each stage. Each stage but the last two lasts until then, because the scene withholds an object or a connection that
// the next stage needs.
func TestAgentKills(t *testing.T) {
	s := beginAlone(t)
	s.takeChart()
	s.workspace()
	all := make([]*enrolled, 5)
	values := s.token("tok", time.Hour)
	uncordon := s.cordon(s.member)
	s.step("agents are installed, and their pods cannot start yet", func() {
		for i := range all {
			all[i] = s.enrol(fmt.Sprintf("m%d", i))
		}
		for _, e := range all {
			e.at(installed)
		}
	})
	heal := s.cut()
	s.step("an agent is killed before it creates its request", func() {
		s.fail(uncordon(s.Context()))
		all[0].at(runs)
		all[0].killAgent()
	})
	s.step("the hub is stopped", func() {
		s.stopHub()
		s.fail(heal())
	})
	s.step("two agents are killed after they have created their requests, one of them with a token", func() {
		byToken := s.asks("by-token", values)
		byToken.killAgent()
		all[1].at(hasRequest)
		all[1].killAgent()
		all = append(all, byToken)
	})
	s.step("the other agents create their requests", func() {
		all[2].at(hasRequest)
	})
	heal = s.cut()
	s.step("an agent is killed after its request was granted, before it reads its credential", func() {
		s.startHub()
		all[2].at(granted)
		all[2].killAgent()
	})
	s.step("an agent is killed when it stores its credential", func() {
		s.fail(heal())
		all[3].at(stored)
		all[3].killAgent()
	})
	s.step("an agent is killed after its first heartbeat", func() {
		all[4].at(hasHeartbeat)
		all[4].killAgent()
	})
	s.step("all agents register", func() {
		for _, e := range all {
			e.registered()
		}
	})
	s.step("no cluster has registered twice", func() { s.registeredOnce(len(all)) })
}

func (e *enrolled) killAgent() {
	e.s.Helper()
	e.s.until("an agent that runs", func(ctx context.Context) (bool, string) {
		pods, err := e.on.pods(ctx, e.agentNamespace, agentPods)
		if err != nil {
			return false, err.Error()
		}
		// While an agent is replaced, there is another pod without a container.
		running := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !isRunning(p) })
		for _, pod := range running {
			e.s.killPod(e.on, pod)
		}
		return len(running) > 0, fmt.Sprintf("%d pods, none of which runs", len(pods))
	})
}

func isRunning(p corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil
}

// registeredOnce checks that each Cluster of the scene has one request: a restarted agent or hub continues with it.
func (s *scene) registeredOnce(clusters int) {
	s.Helper()
	list, err := s.hub.fleet.ClusterRegistrations(s.id).List(s.Context(), metav1.ListOptions{})
	s.fail(err)
	if len(list.Items) != clusters {
		s.Errorf("%d Clusters have %d ClusterRegistrations: %v", clusters, len(list.Items), requestsByCluster(list.Items))
	}
}

func requestsByCluster(requests []fleet.ClusterRegistration) map[string]int {
	count := map[string]int{}
	for _, r := range requests {
		count[r.Status.ClusterName]++
	}
	return count
}
