package evidence

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// logs writes the logs of all containers, and of their previous instances.
func (c collector) logs(ctx context.Context) error {
	pods, err := c.core.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		errs = append(errs, c.podLogs(ctx, &pods.Items[i]))
	}
	return errors.Join(errs...)
}

func (c collector) podLogs(ctx context.Context, pod *corev1.Pod) error {
	var errs []error
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		errs = append(errs, c.containerLog(ctx, pod, status.Name, false))
		if status.RestartCount > 0 {
			errs = append(errs, c.containerLog(ctx, pod, status.Name, true))
		}
	}
	return errors.Join(errs...)
}

func (c collector) containerLog(ctx context.Context, pod *corev1.Pod, container string, previous bool) error {
	options := &corev1.PodLogOptions{Container: container, Previous: previous, Timestamps: true}
	text, err := c.core.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("the log of container %s of pod %s/%s: %w", container, pod.Namespace, pod.Name, err)
	}
	suffix := ".log"
	if previous {
		suffix = ".previous.log"
	}
	return c.write("logs/"+pod.Namespace+"/"+pod.Name+"."+container+suffix, text)
}
