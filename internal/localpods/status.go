package localpods

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Reasons of a kubelet for a container that does not run.
const (
	reasonCreating    = "ContainerCreating"
	reasonConfigError = "CreateContainerConfigError"
	reasonBackOff     = "CrashLoopBackOff"
	reasonError       = "Error"
	reasonCompleted   = "Completed"
)

// state is the state of a process.
type state struct {
	running   bool
	startedAt time.Time
	notBefore time.Time // of the next start
	starts    int
	restarts  int // also by earlier nodes
	reason    string
	message   string
	last      *corev1.ContainerStateTerminated
}

func (s *state) started(now time.Time) {
	if s.starts > 0 {
		s.restarts++
	}
	s.starts++
	s.running, s.startedAt, s.reason, s.message = true, now, "", ""
}

func (s *state) ended(code int, now time.Time, delay time.Duration) {
	s.running = false
	s.notBefore = now.Add(delay)
	s.last = &corev1.ContainerStateTerminated{
		ExitCode: int32(code), Reason: reasonError, //nolint:gosec // an exit code has 8 bits
		StartedAt: metav1.NewTime(s.startedAt), FinishedAt: metav1.NewTime(now),
	}
	if code == 0 {
		s.last.Reason = reasonCompleted
	}
	s.waiting(reasonBackOff, fmt.Errorf("back-off %s before the next start", delay))
}

func (s *state) waiting(reason string, why error) { s.reason, s.message = reason, why.Error() }

// container returns the status of the container.
func (s *state) container(c corev1.Container) corev1.ContainerStatus {
	status := corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, Ready: s.running, Started: ptr.To(s.running),
		RestartCount: int32(s.restarts), //nolint:gosec // fewer than an int32 can count
	}
	status.LastTerminationState.Terminated = s.last
	switch {
	case s.running:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(s.startedAt)}
	case s.reason == "":
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonCreating}
	default:
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: s.reason, Message: s.message}
	}
	return status
}

// podStatus returns the status of a pod. Conditions that do not change keep their time.
func podStatus(pod *corev1.Pod, s state, now time.Time) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodPending, StartTime: pod.Status.StartTime, Conditions: conditions(pod, s, now)}
	if status.StartTime == nil {
		status.StartTime = &metav1.Time{Time: now.Truncate(time.Second)}
	}
	if s.starts > 0 {
		status.Phase = corev1.PodRunning
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, s.container(c))
	}
	return status
}

func conditions(pod *corev1.Pod, s state, now time.Time) []corev1.PodCondition {
	ready, reason := corev1.ConditionFalse, "ContainersNotReady"
	if s.running {
		ready, reason = corev1.ConditionTrue, ""
	}
	all := []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
		{Type: corev1.ContainersReady, Status: ready, Reason: reason},
		{Type: corev1.PodReady, Status: ready, Reason: reason},
	}
	for i := range all {
		all[i].LastTransitionTime = transition(pod.Status.Conditions, all[i], now)
	}
	return all
}

func transition(before []corev1.PodCondition, c corev1.PodCondition, now time.Time) metav1.Time {
	for _, b := range before {
		if b.Type == c.Type && b.Status == c.Status {
			return b.LastTransitionTime
		}
	}
	return metav1.NewTime(now.Truncate(time.Second))
}

// report writes the status if it has changed.
func (w *worker) report(ctx context.Context) error {
	status := podStatus(w.pod, w.state, time.Now())
	if equality.Semantic.DeepEqual(status, w.written) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.pod.UID}, "status": status})
	if err != nil {
		return err
	}
	pod, err := w.node.client.CoreV1().Pods(w.pod.Namespace).
		Patch(ctx, w.pod.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err != nil {
		return ignoreGone(err)
	}
	w.pod, w.written = pod, podStatus(pod, w.state, time.Now())
	return nil
}
