// Package localpods runs the pods of a cluster as processes of this machine, where there are no containers. It replaces a node with its
// kubelet. Everything else is done by the controllers of the cluster, so rollouts, replicas, deletion and the output of kubectl are real.
//
// A process differs from a container:
//   - The image is ignored. The program is the file with the name of the command in one directory of programs.
//   - The token of the ServiceAccount is in a kubeconfig, whose path is in $KUBECONFIG, and not below /var/run.
//   - Volumes, security contexts, resources and probes are ignored. A pod is ready while its process runs.
//   - All processes share the network of the machine, so an address in a variable *_BIND_ADDRESS becomes a free port of 127.0.0.1.
//   - A pod has exactly one container. Its environment variables have texts or fields of the pod.
package localpods

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Options describes the pods to run. RESTConfig, Binaries and Logs are required.
type Options struct {
	// RESTConfig has the credential of an administrator of the cluster.
	RESTConfig *rest.Config
	// Node is the name of the Node that is created, and to which the pods are bound; empty means "local".
	Node string
	// Namespaces are the namespaces whose pods run; none means all.
	Namespaces []string
	// Binaries is the directory with the programs.
	Binaries string
	// Logs is the directory for the logs, NAMESPACE_POD.log, to which a restarted process appends.
	Logs string
	// Homes is the directory for a private directory of each pod; empty means the system's temporary directory.
	Homes string
	// RestartDelay is the delay before a process that has ended is started again. It doubles up to RestartDelayMax, and is reset when the
	// process has run for twice that time. 0 means 1 second, and 1 minute.
	RestartDelay, RestartDelayMax time.Duration
	// Log receives errors of this package; nil means the standard logger.
	Log logrus.FieldLogger
}

const (
	fieldManager = "localpods"
	// heartbeat is shorter than the 50 seconds after which the controller manager marks a node as unreachable.
	heartbeat = 10 * time.Second
)

// Run runs pods until ctx ends, and returns when all processes have ended and their directories are removed. The Pods in the API stay, as
// the Pods of a node that is down. Run returns an error only if it cannot start.
func Run(ctx context.Context, o Options) error {
	o.Node = cmp.Or(o.Node, "local")
	o.RestartDelay, o.RestartDelayMax = cmp.Or(o.RestartDelay, time.Second), cmp.Or(o.RestartDelayMax, time.Minute)
	if o.Log == nil {
		o.Log = logrus.StandardLogger()
	}
	for _, dir := range []string{o.Logs, cmp.Or(o.Homes, os.TempDir())} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	client, err := kubernetes.NewForConfig(o.RESTConfig)
	if err != nil {
		return err
	}
	n := &node{options: o, client: client, workers: map[types.UID]*worker{}}
	if err := n.announce(ctx); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return fmt.Errorf("create Node %s: %w", o.Node, err)
	}

	factory := informers.NewSharedInformerFactory(client, 0)
	// AddEventHandler fails only for an informer that was stopped.
	_, _ = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { n.observe(ctx, asPod(object)) },
		UpdateFunc: func(old, object any) { n.replace(ctx, asPod(old), asPod(object)) },
		DeleteFunc: func(object any) { n.forget(asPod(object)) },
	})
	factory.StartWithContext(ctx)
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			if err := n.announce(ctx); err != nil && ctx.Err() == nil {
				o.Log.Warnf("Heartbeat of Node %s: %v", o.Node, err)
			}
		}
	}
	factory.Shutdown() // after this, no handler starts another worker
	n.running.Wait()
	return nil
}

// node has one worker for each pod. The key is the UID, because a new pod can have the name of one whose process still runs.
type node struct {
	options Options
	client  kubernetes.Interface
	workers map[types.UID]*worker // used only by the handler of the informer
	running sync.WaitGroup
}

// announce creates the Node or renews its Ready condition. The controller manager deletes the pods of a node that is not ready.
func (n *node) announce(ctx context.Context) error {
	nodes := n.client.CoreV1().Nodes()
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	desired := corev1apply.Node(n.options.Node).WithLabels(map[string]string{
		corev1.LabelHostname: n.options.Node, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
	})
	if _, err := nodes.Apply(ctx, desired, options); err != nil {
		return err
	}
	ready := corev1apply.NodeCondition().
		WithType(corev1.NodeReady).WithStatus(corev1.ConditionTrue).
		WithReason("ProcessesRun").WithMessage("pods run as processes of the machine").
		WithLastHeartbeatTime(metav1.Now())
	status := corev1apply.NodeStatus().WithConditions(ready).
		WithAddresses(corev1apply.NodeAddress().WithType(corev1.NodeInternalIP).WithAddress("127.0.0.1"))
	_, err := nodes.ApplyStatus(ctx, corev1apply.Node(n.options.Node).WithStatus(status), options)
	return err
}

func asPod(object any) *corev1.Pod {
	if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = deleted.Obj
	}
	pod, _ := object.(*corev1.Pod)
	return pod
}

// observe passes the pod to its worker, which it starts if there is none.
func (n *node) observe(ctx context.Context, pod *corev1.Pod) {
	w, known := n.workers[pod.UID]
	switch {
	case known:
		w.update(pod)
	case n.takes(pod):
		w = newWorker(n, pod)
		n.workers[pod.UID] = w
		n.running.Go(func() { w.run(ctx) })
	}
}

// replace handles an update between two pods with the same name, which happens if the watch was interrupted.
func (n *node) replace(ctx context.Context, old, pod *corev1.Pod) {
	if old.UID != pod.UID {
		n.forget(old)
	}
	n.observe(ctx, pod)
}

func (n *node) forget(pod *corev1.Pod) {
	if w, known := n.workers[pod.UID]; known {
		delete(n.workers, pod.UID)
		close(w.updates)
	}
}

// takes reports whether the pod runs on this node.
func (n *node) takes(pod *corev1.Pod) bool {
	return !hasEnded(pod) &&
		(pod.Spec.NodeName == "" || pod.Spec.NodeName == n.options.Node) &&
		(len(n.options.Namespaces) == 0 || slices.Contains(n.options.Namespaces, pod.Namespace))
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
