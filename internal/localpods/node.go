package localpods

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	fieldManager = "localpods"
	// heartbeat is well below the 50 seconds after which the controller manager takes a node for lost.
	heartbeat = 10 * time.Second
)

// node runs one worker for each pod.
type node struct {
	options Options
	client  kubernetes.Interface
	workers map[workerKey]*worker // only the informer's handler touches it
	running sync.WaitGroup
}

// workerKey is the UID, because a pod may come back under its name while the process of the old one still ends.
type workerKey = types.UID

// announce creates the Node, or renews its claim to be alive. Without a Node that is ready, the controller manager deletes
// the pods that are bound to it.
func (n *node) announce(ctx context.Context) error {
	nodes := n.client.CoreV1().Nodes()
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	desired := corev1apply.Node(n.options.Node).WithLabels(map[string]string{
		corev1.LabelHostname: n.options.Node, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
	})
	if _, err := nodes.Apply(ctx, desired, options); err != nil {
		return err
	}
	_, err := nodes.ApplyStatus(ctx, corev1apply.Node(n.options.Node).WithStatus(readyNow()), options)
	return err
}

func readyNow() *corev1apply.NodeStatusApplyConfiguration {
	ready := corev1apply.NodeCondition().
		WithType(corev1.NodeReady).WithStatus(corev1.ConditionTrue).
		WithReason("ProcessesRun").WithMessage("pods run as processes of the machine").
		WithLastHeartbeatTime(metav1.Now())
	return corev1apply.NodeStatus().WithConditions(ready).
		WithAddresses(corev1apply.NodeAddress().WithType(corev1.NodeInternalIP).WithAddress("127.0.0.1"))
}

func (n *node) run(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = n.options.Selector
	}))
	pods := factory.Core().V1().Pods().Informer()
	// It fails only on an informer that was stopped.
	_, _ = pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { n.observe(ctx, asPod(object)) },
		UpdateFunc: func(old, object any) { n.replace(ctx, asPod(old), asPod(object)) },
		DeleteFunc: func(object any) { n.forget(asPod(object)) },
	})
	factory.StartWithContext(ctx)
	n.beat(ctx)
	factory.Shutdown() // no handler starts another worker after this
	n.running.Wait()
}

// beat returns when ctx ends.
func (n *node) beat(ctx context.Context) {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := n.announce(ctx); err != nil && ctx.Err() == nil {
				n.options.Log.Warnf("Heartbeat of Node %s: %v", n.options.Node, err)
			}
		}
	}
}

func asPod(object any) *corev1.Pod {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	pod, _ := object.(*corev1.Pod)
	return pod
}

// observe hands the pod to its worker.
func (n *node) observe(ctx context.Context, pod *corev1.Pod) {
	w, known := n.workers[pod.UID]
	switch {
	case known:
		w.tell(pod)
	case n.takes(pod):
		w = newWorker(n, pod)
		n.workers[pod.UID] = w
		n.running.Go(func() { w.run(ctx) })
	}
}

// replace notices that a pod was deleted and made again under its name while the watch was interrupted.
func (n *node) replace(ctx context.Context, old, pod *corev1.Pod) {
	if old.UID != pod.UID {
		n.forget(old)
	}
	n.observe(ctx, pod)
}

func (n *node) forget(pod *corev1.Pod) {
	if w, known := n.workers[pod.UID]; known {
		delete(n.workers, pod.UID)
		close(w.seen)
	}
}

func (n *node) takes(pod *corev1.Pod) bool {
	return !over(pod) &&
		(pod.Spec.NodeName == "" || pod.Spec.NodeName == n.options.Node) &&
		(len(n.options.Namespaces) == 0 || slices.Contains(n.options.Namespaces, pod.Namespace))
}

// over says whether the pod has come to its end and will never run again.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
