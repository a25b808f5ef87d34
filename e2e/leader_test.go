//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// hubLease is held by the hub that works.
const hubLease = "fleet-agentmanagement-lock"

func TestOneOfTwoHubsIsLost(t *testing.T) {
	s := beginAlone(t)
	s.workspace()
	m, _ := s.settled("m")
	s.step("a person wants two hubs", func() {
		s.configure("--set", "controller.replicas=2")
		s.hubsReady(2)
	})
	var leader string
	s.step("one of them leads", func() { leader = s.leader("") })
	var late *enrolled
	s.step("it is killed in the middle of a registration", func() {
		late = s.enrol("late")
		late.at(granted())
		s.deletePod(s.hub, systemNamespace, leader, atOnce())
	})
	s.step("the other one takes over", func() { s.leader(leader) })
	s.step("the registration comes to its end", func() { late.registered() })
	s.step("a new one begins", func() { s.enrol("later").registered() })
	s.step("nobody was taken for disconnected", func() {
		m.condition(fleet.ConditionConnected, "True")
		s.noEvent(m, fleet.ReasonDisconnected)
	})
}

// leader waits until a pod other than the given one holds the hub's Lease, and returns its name.
func (s *scene) leader(other string) (pod string) {
	s.Helper()
	s.until("one of the hubs to lead", func(ctx context.Context) (bool, string) {
		lease, err := s.hub.kube.CoordinationV1().Leases(systemNamespace).Get(ctx, hubLease, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		if lease.Spec.HolderIdentity == nil {
			return false, "nobody leads"
		}
		pods, err := s.hub.pods(ctx, systemNamespace, hubPods)
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return strings.HasPrefix(*lease.Spec.HolderIdentity, p.Name) })
		if err != nil || i < 0 {
			return seen(err, false, *lease.Spec.HolderIdentity+" leads, which is no pod any more")
		}
		pod = pods[i].Name
		return pod != other, pod + " leads"
	})
	return pod
}

// noEvent looks that no event of that reason was written about the Cluster.
func (s *scene) noEvent(e *enrolled, reason string) {
	s.Helper()
	events, err := s.hub.kube.CoreV1().Events(e.namespace).List(s.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + e.name})
	s.fail(err)
	for _, event := range events.Items {
		if event.Reason == reason {
			s.Errorf("%s: event %s: %s", e, event.Reason, event.Message)
		}
	}
}
