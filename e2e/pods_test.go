//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	hubPods   = "app=fleet-controller"
	agentPods = "app=fleet-agent"
)

func (c *cluster) pods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	list, err := c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// restartPods replaces pods as a rollout does: they are terminated gracefully and can release their Lease.
func (s *scene) restartPods(c *cluster, namespace, selector string) {
	s.Helper()
	for _, pod := range s.somePods(c, namespace, selector) {
		s.deletePod(c, pod, metav1.DeleteOptions{})
	}
}

func (s *scene) somePods(c *cluster, namespace, selector string) []corev1.Pod {
	s.Helper()
	pods, err := c.pods(s.Context(), namespace, selector)
	s.fail(err)
	if len(pods) == 0 {
		s.Fatalf("there is no pod %s in namespace %s of %s", selector, namespace, c.Name())
	}
	return pods
}

func (s *scene) deletePod(c *cluster, pod corev1.Pod, options metav1.DeleteOptions) {
	s.Helper()
	err := c.kube.CoreV1().Pods(pod.Namespace).Delete(s.Context(), pod.Name, options)
	if !apierrors.IsNotFound(err) {
		s.fail(err)
	}
}

// killPod ends the process of a pod with SIGKILL, so that its Lease stays as after a power cut. A forced deletion sends SIGTERM first, and
// the process would release the Lease. The kubelet restarts the container.
func (s *scene) killPod(c *cluster, pod corev1.Pod) {
	s.Helper()
	if len(pod.Status.ContainerStatuses) != 1 {
		s.Fatalf("pod %s has %d containers, not one", pod.Name, len(pod.Status.ContainerStatuses))
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "//")
	s.fail(c.Kill(s.Context(), id))
}

// hubsReady waits until the hub has exactly this number of pods, and all are ready.
func (s *scene) hubsReady(count int) {
	s.Helper()
	s.until(fmt.Sprintf("%d ready pods of the hub", count), func(ctx context.Context) (bool, string) {
		pods, err := s.hub.pods(ctx, systemNamespace, hubPods)
		if err != nil {
			return false, err.Error()
		}
		ready := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !isReady(p) })
		return len(ready) == count && len(pods) == count, fmt.Sprintf("%d pods, %d of them ready", len(pods), len(ready))
	})
}

func isReady(p corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
