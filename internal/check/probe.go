package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	probeName = registration.AgentName + "-probe"
	// probeTimeout limits the time from the creation of the Job to its result.
	probeTimeout = time.Minute
	// probeTTL is the time after which the member itself deletes the finished Job, if this program was killed before it deleted it.
	probeTTL = 5 * time.Minute
	// maxProbeLog is the number of bytes that are read from the pod's log.
	maxProbeLog = 1 << 20
)

// wayProbe runs the checks in a Job on the member, with the image, the proxy, the CA and the node selection of the agent, and stores their
// results in probed. It always deletes the Job.
func wayProbe(ctx context.Context, k *knowledge) (found Finding) {
	if !k.Probe {
		return doesNotApply()
	}
	deployment, err := k.member.core.AppsV1().Deployments(k.agentNamespace()).Get(ctx, registration.AgentName, metav1.GetOptions{})
	if err != nil {
		return failed("Deployment "+registration.AgentName, err)
	}
	jobs := k.member.core.BatchV1().Jobs(k.agentNamespace())
	job, err := jobs.Create(ctx, probeJob(deployment.Spec.Template), metav1.CreateOptions{})
	if err != nil {
		return failed("creating the Job of the probe", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		err := jobs.Delete(ctx, job.Name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)})
		if err != nil && found.Verdict == Pass {
			found = warn("Job %s/%s could not be deleted (%s): the member deletes it %s after its end", job.Namespace, job.Name, err, short(probeTTL))
		}
	}()

	pod, err := k.awaitProbe(ctx, job)
	if err != nil {
		return failed(fmt.Sprintf("Job %s/%s", job.Namespace, job.Name), err)
	}
	output, err := k.member.core.CoreV1().Pods(pod.Namespace).
		GetLogs(pod.Name, &corev1.PodLogOptions{Container: registration.AgentName, LimitBytes: ptr.To[int64](maxProbeLog)}).DoRaw(ctx)
	if err != nil {
		return failed("the log of Pod "+pod.Name, err)
	}
	var d Diagnosis
	if _, document, is := bytes.Cut(output, []byte("{")); !is || json.Unmarshal(append([]byte("{"), document...), &d) != nil || len(d.Checks) == 0 {
		return fail("Pod %s printed no results: fleetagent in the image %s is another program, or of another release than this muster: %s", pod.Name, pod.Spec.Containers[0].Image, output)
	}
	k.probed = map[string]Line{}
	for _, line := range d.Checks {
		k.probed[line.ID] = line
	}
	return pass("Pod %s on node %s", pod.Name, pod.Spec.NodeName)
}

// probeJob returns a Job that runs fleetagent check once, in a pod like those of the agent. The pod has another label app, because the agent's
// Deployment selects its pods by that label.
func probeJob(template corev1.PodTemplateSpec) *batchv1.Job {
	template = *template.DeepCopy()
	podLabels := labels.Merge(template.Labels, labels.Set{"app": probeName})
	container := template.Spec.Containers[0]
	container.Name, container.Command, container.Args = registration.AgentName, []string{"fleetagent", "check", "--output", "json"}, nil
	container.Ports, container.LivenessProbe, container.ReadinessProbe, container.StartupProbe, container.Lifecycle = nil, nil, nil, nil, nil
	template.Spec.Containers = []corev1.Container{container}
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{GenerateName: probeName + "-", Labels: map[string]string{"app": probeName}},
		Spec: batchv1.JobSpec{
			BackoffLimit: ptr.To[int32](0), ActiveDeadlineSeconds: ptr.To(int64(2 * probeTimeout / time.Second)),
			TTLSecondsAfterFinished: ptr.To(int32(probeTTL / time.Second)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: podLabels, Annotations: template.Annotations}, Spec: template.Spec,
			},
		},
	}
}

// awaitProbe waits until the container of the Job has ended. The error contains the reason why it has not.
func (k *knowledge) awaitProbe(ctx context.Context, job *batchv1.Job) (ended *corev1.Pod, err error) {
	state := "the controller manager of the member has not created its pod"
	err = wait.PollUntilContextTimeout(ctx, time.Second, k.probeTimeout, true, func(ctx context.Context) (bool, error) {
		pods, err := k.member.core.CoreV1().Pods(job.Namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job.Name})
		if err != nil {
			return false, err
		}
		if len(pods.Items) == 0 {
			events, err := k.member.core.CoreV1().Events(job.Namespace).List(ctx, metav1.ListOptions{
				FieldSelector: fields.Set{"involvedObject.name": job.Name, "type": corev1.EventTypeWarning}.String(),
			})
			if err == nil && len(events.Items) > 0 {
				state = events.Items[0].Reason + ": " + events.Items[0].Message
			}
			return false, nil
		}
		pod := newest(pods.Items)
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == registration.AgentName && c.State.Terminated != nil {
				ended = pod
				return true, nil
			}
		}
		switch problem, image := scheduleProblem(pod), imageProblem(pod); {
		case problem != "":
			state = problem
		case image != "":
			return false, errors.New(image)
		default:
			state = fmt.Sprintf("Pod %s is %s on node %s", pod.Name, pod.Status.Phase, pod.Spec.NodeName)
		}
		return false, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return nil, fmt.Errorf("it has no result after %s: %s", k.probeTimeout, state)
	}
	return ended, err
}
