//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
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

// restartPods has pods replaced as in a rollout: they are told to stop and can give up their Lease.
func (s *scene) restartPods(c *cluster, namespace, selector string) {
	s.Helper()
	s.deletePods(c, namespace, selector, metav1.DeleteOptions{})
}

// killPods ends pods as a force deletion does: their names are free at once, and they have two seconds before the signal
// that cannot be caught. A Lease that nobody gives up is what a power cut leaves.
func (s *scene) killPods(c *cluster, namespace, selector string) {
	s.Helper()
	s.deletePods(c, namespace, selector, atOnce())
}

func atOnce() metav1.DeleteOptions { return metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)} }

func (s *scene) deletePods(c *cluster, namespace, selector string, options metav1.DeleteOptions) {
	s.Helper()
	pods, err := c.pods(s.Context(), namespace, selector)
	s.fail(err)
	if len(pods) == 0 {
		s.Fatalf("there is no pod %s in namespace %s of %s", selector, namespace, c.Name())
	}
	for _, pod := range pods {
		s.deletePod(c, namespace, pod.Name, options)
	}
}

func (s *scene) deletePod(c *cluster, namespace, name string, options metav1.DeleteOptions) {
	s.Helper()
	err := c.kube.CoreV1().Pods(namespace).Delete(s.Context(), name, options)
	if !apierrors.IsNotFound(err) {
		s.fail(err)
	}
}

// hubsReady waits until exactly so many pods of the hub are there, all of them ready.
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
