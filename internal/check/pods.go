package check

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// newest returns the pod that was created last. The list must not be empty.
func newest(pods []corev1.Pod) *corev1.Pod {
	pod := slices.MaxFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return &pod
}

// scheduleProblem describes why a pod has no node; "" if it has one.
func scheduleProblem(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return ""
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("Pod %s is on no node: %s: %s", pod.Name, c.Reason, c.Message)
		}
	}
	return fmt.Sprintf("Pod %s is on no node, and no scheduler has written a condition", pod.Name)
}

var imageReasons = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError"}

// imageProblem describes why an image of a pod cannot be pulled; "" if nothing is wrong.
func imageProblem(pod *corev1.Pod) string {
	for _, c := range containers(pod) {
		if w := c.State.Waiting; w != nil && slices.Contains(imageReasons, w.Reason) {
			return fmt.Sprintf("Pod %s: image %s: %s: %s", pod.Name, c.Image, w.Reason, w.Message)
		}
	}
	return ""
}

// containerProblem describes why a container of a pod does not run; "" if all run or have ended without an error.
func containerProblem(pod *corev1.Pod) string {
	all := containers(pod)
	if len(all) == 0 {
		return fmt.Sprintf("Pod %s is %s on node %s: the kubelet reports no container", pod.Name, pod.Status.Phase, pod.Spec.NodeName)
	}
	for _, c := range all {
		last := ""
		if t := c.LastTerminationState.Terminated; t != nil {
			last = strings.TrimRight(fmt.Sprintf("; it ended with exit code %d (%s) after %d restarts: %s", t.ExitCode, t.Reason, c.RestartCount, t.Message), ": ")
		}
		switch {
		case c.State.Waiting != nil:
			return fmt.Sprintf("Pod %s: container %s waits: %s: %s%s", pod.Name, c.Name, c.State.Waiting.Reason, c.State.Waiting.Message, last)
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			return fmt.Sprintf("Pod %s: container %s ended with exit code %d (%s)", pod.Name, c.Name, c.State.Terminated.ExitCode, c.State.Terminated.Reason)
		}
	}
	return ""
}

func containers(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}
