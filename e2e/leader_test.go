//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// hubLease is the Lease of the hub.
const hubLease = "fleet-agentmanagement-lock"

func TestLeaderLoss(t *testing.T) {
	s := beginAlone(t)
	s.workspace()
	m, _ := s.importAndAwait("m")
	s.step("a person wants two hubs", func() {
		s.configure("--set", "controller.replicas=2")
		s.hubsReady(2)
	})
	var leader corev1.Pod
	s.step("one of them leads", func() { leader, _ = s.leader("") })
	var late *enrolled
	uncordon := s.cordon(s.member)
	s.step("a registration is half done", func() {
		late = s.enrol("late")
		late.at(installed)
	})
	var lost *coordinationv1.Lease
	s.step("the leader is killed, and its Lease still names it", func() {
		s.killPod(s.hub, leader)
		lost = s.lease()
		s.deletePod(s.hub, leader, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}) // or it would be started again
		s.held(leader, lost)
	})
	s.step("another replica takes over when the Lease has expired", func() {
		_, taken := s.leader(leader.Name)
		s.ranOut(lost, taken)
	})
	s.step("the registration completes", func() {
		s.fail(uncordon(s.Context()))
		late.registered()
	})
	s.step("a new registration completes", func() { s.enrol("later").registered() })
	s.step("no Cluster was reported as disconnected", func() {
		m.condition(fleet.ConditionConnected, "True")
		s.noEvent(m, fleet.ReasonDisconnected)
	})
}

// leader waits until a pod other than the given one holds the hub's Lease, and returns both.
func (s *scene) leader(other string) (pod corev1.Pod, lease *coordinationv1.Lease) {
	s.Helper()
	s.until("one of the hubs to lead", func(ctx context.Context) (bool, string) {
		latest, err := s.hub.kube.CoordinationV1().Leases(systemNamespace).Get(ctx, hubLease, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		holder := ptr.Deref(latest.Spec.HolderIdentity, "")
		pods, err := s.hub.pods(ctx, systemNamespace, hubPods)
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return strings.HasPrefix(holder, p.Name) })
		if err != nil || i < 0 {
			return seen(err, false, "the holder is not an existing pod: "+holder)
		}
		pod, lease = pods[i], latest
		return pod.Name != other, pod.Name + " leads"
	})
	return pod, lease
}

func (s *scene) lease() *coordinationv1.Lease {
	s.Helper()
	lease, err := s.hub.kube.CoordinationV1().Leases(systemNamespace).Get(s.Context(), hubLease, metav1.GetOptions{})
	s.fail(err)
	return lease
}

// held fails if the hub released its Lease, which it must not do when it is killed.
func (s *scene) held(by corev1.Pod, lease *coordinationv1.Lease) {
	s.Helper()
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); !strings.HasPrefix(holder, by.Name) {
		s.Fatalf("%s was killed, and the holder of the Lease is %q", by.Name, holder)
	}
}

// ranOut fails if the Lease was acquired before it expired.
func (s *scene) ranOut(lost, taken *coordinationv1.Lease) {
	s.Helper()
	waited := taken.Spec.AcquireTime.Sub(lost.Spec.RenewTime.Time)
	s.Logf("it was taken %s after the last renewal", waited)
	if term := time.Duration(*lost.Spec.LeaseDurationSeconds) * time.Second; waited < term {
		s.Errorf("the Lease lasts %s", term)
	}
}

// noEvent checks that there is no event with that reason about the Cluster.
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
