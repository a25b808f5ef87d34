package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/process"
)

// startDeadline limits the start of a cluster. On an idle machine it takes 5 to 10 seconds.
const startDeadline = 5 * time.Minute

// cluster implements clusters.Cluster.
type cluster struct {
	provider *provider
	node     node

	mutex   sync.Mutex       // guards the fields below
	process *process.Process // the first process of the node; nil when it is down
	cuts    map[string]int   // number of cuts by address
	closed  bool             // it cannot be started again
}

// Name is the name that Create was called with.
func (c *cluster) Name() string { return c.node.cluster }

// Kubeconfig is the file with the administrator's kubeconfig.
func (c *cluster) Kubeconfig() string { return c.node.path(fileAdmin) }

func (c *cluster) create(ctx context.Context) error {
	if err := os.MkdirAll(c.node.dir, 0o700); err != nil {
		return err
	}
	if err := c.node.write(time.Now()); err != nil {
		return err
	}
	return c.boot(ctx, step{"images", c.loadPause})
}

// step is a part of a start.
type step struct {
	name string
	do   func(context.Context) error
}

// boot starts the node and waits until it runs pods. The given steps happen once its containerd answers.
func (c *cluster) boot(ctx context.Context, steps ...step) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	ready, err := c.readiness()
	if err != nil {
		return err
	}
	all := append([]step{{"node", c.start}, {"containerd", c.waitForContainerd}}, steps...)
	started, times := time.Now(), ""
	for _, s := range append(all, ready...) {
		if err := s.do(ctx); err != nil {
			return err
		}
		times += fmt.Sprintf(", %s %.1f", s.name, time.Since(started).Seconds())
	}
	c.provider.logf("%s runs pods at %s; seconds from the start%s", c.Name(), c.node.apiServer(), times)
	return nil
}

// start starts the node's first process and connects its network interface. Cuts take effect before the first packet.
func (c *cluster) start(ctx context.Context) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.closed {
		return errors.New("it is being removed")
	}
	if c.process.Alive() {
		return errors.New("it is already running")
	}
	if err := c.node.system.cgroups.create(c.node.cgroup()); err != nil {
		return err
	}
	p, err := process.Start(process.Command{
		Path: filepath.Join(c.node.system.helpers, "init"), Args: []string{c.node.path(fileMachine)},
		Dir: c.node.dir, Log: c.node.log("init"), Namespaces: namespaces,
	})
	if err != nil {
		return err
	}
	c.process = p
	for address := range c.cuts {
		if err := c.drop(ctx, address); err != nil {
			return err
		}
	}
	return c.provider.network.plug(ctx, c.node.addresses, p.Pid())
}

// running is the first process of the node, or an error if there is none.
func (c *cluster) running() (*process.Process, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.process == nil {
		return nil, fmt.Errorf("cluster %q is down", c.Name())
	}
	if !c.process.Alive() {
		return nil, c.process.Death()
	}
	return c.process, nil
}

// stop ends the node permanently. Its directory stays.
func (c *cluster) stop() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.closed = true
	return c.kill()
}

// kill ends the node and removes its cgroups: a kubelet that finds cgroups of pods from before a crash waits three seconds for each of
// them, in every hierarchy, before it runs the first pod. The caller holds the mutex.
func (c *cluster) kill() error {
	if c.process != nil {
		c.process.Kill()
		c.process = nil
	}
	return c.node.system.cgroups.remove(c.node.cgroup())
}

// Load imports an image archive into the node's containerd.
func (c *cluster) Load(ctx context.Context, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	return c.load(ctx, file)
}

const (
	pollInterval = 100 * time.Millisecond
	// probeTimeout limits one request during a start: a request that is sent too early may never be answered.
	probeTimeout = 5 * time.Second
)

// waitFor polls until reached returns nil. It fails with the last error when ctx ends, and immediately when the node has ended.
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

// readiness are the steps from a started node to one that runs pods. The status of nodes and pods in the API can be from before a
// crash. A new pod that runs proves that API server, controllers, scheduler, kubelet, containerd and network work.
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

// tryPod creates a pod, waits until it runs, and deletes it.
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
	config.QPS = -1 // a client-side limit would look like a slow cluster
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

// probe is a pod with only the pause container. Each start uses another name, because a pod from before a crash proves nothing.
func (n node) probe(now time.Time) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("probe-%d", now.UnixNano()), Namespace: metav1.NamespaceSystem,
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: ptr.To(false),
			DNSPolicy:                    corev1.DNSDefault, // otherwise there is an event about the missing cluster DNS
			Containers:                   []corev1.Container{{Name: "pause", Image: pauseImage}},
		},
	}
}

// podRuns creates the pod if it does not exist. The API server rejects it until its namespace has a ServiceAccount.
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
