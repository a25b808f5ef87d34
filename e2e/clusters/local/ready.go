package local

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

const (
	pollInterval = 100 * time.Millisecond
	// probeTimeout is for one request while something starts: sent too early, it may hang for ever.
	probeTimeout = 5 * time.Second
)

// waitFor polls until reached returns nil. It gives up with the last reason when ctx ends, and at once when the node is gone.
func (c *cluster) waitFor(ctx context.Context, what string, reached func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if _, err := c.running(); err != nil {
			return false, err
		}
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		last = reached(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the %s (logs are in %s): %w", what, c.node.path(dirLogs), errors.Join(err, last))
	}
	return nil
}

func (c *cluster) waitForContainerd(ctx context.Context) error {
	return c.waitFor(ctx, "answer of containerd", func(ctx context.Context) error { return c.ctr(ctx, nil, "version") })
}

// readiness are the steps from a node that was started to one that runs pods. What the API says of nodes and pods can be from
// before a crash; a new pod that runs has been through the API server, controllers, scheduler, kubelet, containerd and network
// of now.
func (c *cluster) readiness() ([]step, error) {
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	return []step{
		c.waiting("API server", func(ctx context.Context) error {
			return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		}),
		c.waiting("default ServiceAccount", func(ctx context.Context) error {
			_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
			return err
		}),
		c.waiting("node Ready", func(ctx context.Context) error { return nodeReady(ctx, client, c.node.name()) }),
		{"first pod", func(ctx context.Context) error { return c.tryPod(ctx, client) }},
	}, nil
}

func (c *cluster) waiting(what string, reached func(context.Context) error) step {
	return step{what, func(ctx context.Context) error { return c.waitFor(ctx, what, reached) }}
}

// tryPod makes a pod, waits until it runs, and removes it.
func (c *cluster) tryPod(ctx context.Context, client kubernetes.Interface) error {
	probe := c.node.probe(time.Now())
	err := c.waitFor(ctx, "first pod", func(ctx context.Context) error { return podRuns(ctx, client, probe) })
	return errors.Join(err, deleteNow(ctx, client, probe))
}

func (c *cluster) client() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // a wait of the client itself would look like one of the cluster
	return kubernetes.NewForConfig(config)
}

func nodeReady(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not Ready", name)
}

// probe is a pod of nothing but the pause image. Its name differs from start to start: one from before a crash is no proof.
func (n node) probe(now time.Time) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("probe-%d", now.UnixNano()), Namespace: metav1.NamespaceSystem,
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: ptr.To(false),
			DNSPolicy:                    corev1.DNSDefault, // or there is an event about the missing cluster DNS
			Containers:                   []corev1.Container{{Name: "pause", Image: pauseImage}},
		},
	}
}

// podRuns makes the pod when it is not there yet; for some time the API server refuses it, as long as its namespace has no
// ServiceAccount.
func podRuns(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	pods := client.CoreV1().Pods(pod.Namespace)
	found, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		found, err = pods.Create(ctx, pod, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	if found.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("pod %s/%s is %s", pod.Namespace, pod.Name, found.Status.Phase)
	}
	return nil
}

func deleteNow(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
