package localpods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/process"
)

// retryDelay is the pause after something went wrong that is not the process itself.
const retryDelay = time.Second

// worker runs one pod's process. Its own goroutine alone touches it, except for the channel.
type worker struct {
	node *node
	seen chan *corev1.Pod // holds the newest state not yet looked at; closed when the pod is gone

	pod     *corev1.Pod
	home    string // private folder of the process; empty before its first start
	process *process.Process
	state   state
	backoff *flowcontrol.Backoff
	wake    *time.Timer // something is to be tried again
	renew   *time.Timer // the token needs to be replaced
	written corev1.PodStatus
}

func newWorker(n *node, pod *corev1.Pod) *worker {
	return &worker{
		node:    n,
		seen:    make(chan *corev1.Pod, 1),
		pod:     pod,
		state:   state{restarts: restartsOf(pod)},
		backoff: flowcontrol.NewBackOff(n.options.RestartDelay, n.options.RestartDelayMax),
		wake:    stoppedTimer(),
		renew:   stoppedTimer(),
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// tell replaces what the worker has not looked at yet.
func (w *worker) tell(pod *corev1.Pod) {
	select {
	case <-w.seen:
	default:
	}
	w.seen <- pod
}

func (w *worker) run(ctx context.Context) {
	defer w.cleanUp()
	for {
		if err := w.step(ctx); err != nil && ctx.Err() == nil {
			w.node.options.Log.Warnf("Pod %s/%s: %v", w.pod.Namespace, w.pod.Name, err)
			w.wake.Reset(retryDelay)
		}
		select {
		case <-ctx.Done():
			return
		case pod, exists := <-w.seen:
			if !exists {
				return
			}
			w.pod = pod
		case <-w.process.Exited():
			w.exited()
		case <-w.renew.C:
			w.renewToken(ctx)
		case <-w.wake.C:
		}
	}
}

// step does the next thing the pod needs. Most calls find nothing to do.
func (w *worker) step(ctx context.Context) error {
	switch {
	case over(w.pod):
		w.process.Stop(w.grace())
		return nil
	case w.pod.DeletionTimestamp != nil:
		return w.terminate(ctx)
	case w.pod.Spec.NodeName == "":
		return w.bind(ctx)
	case w.process == nil && w.due():
		w.start(ctx)
	}
	return w.report(ctx)
}

func (w *worker) bind(ctx context.Context) error {
	err := w.node.client.CoreV1().Pods(w.pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.pod.Namespace, Name: w.pod.Name, UID: w.pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: w.node.options.Node},
	}, metav1.CreateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // somebody else was faster; the watch tells what happened
	}
	return err
}

// due says whether the pause after the last end is over.
func (w *worker) due() bool {
	wait := time.Until(w.state.notBefore)
	if wait > 0 {
		w.wake.Reset(wait)
	}
	return wait <= 0
}

func (w *worker) start(ctx context.Context) {
	p, err := w.launch(ctx)
	if err != nil {
		w.state.waiting(reasonConfigError, err)
		w.state.notBefore = time.Now().Add(retryDelay)
		w.wake.Reset(retryDelay)
		return
	}
	w.process = p
	w.state.started(time.Now())
}

func (w *worker) launch(ctx context.Context) (*process.Process, error) {
	if err := w.makeHome(); err != nil {
		return nil, err
	}
	c, err := commandFor(w.pod, w.node.options.Binaries, w.home)
	if err != nil {
		return nil, err
	}
	if mountsToken(w.pod) {
		if err := w.writeAccess(ctx); err != nil {
			return nil, err
		}
	}
	c.Log = filepath.Join(w.node.options.Logs, w.pod.Namespace+"_"+w.pod.Name+".log")
	return process.Start(c)
}

func (w *worker) makeHome() error {
	if w.home != "" {
		return nil
	}
	home, err := os.MkdirTemp(w.node.options.Homes, "localpods-")
	if err != nil {
		return err
	}
	w.home = home
	return os.Mkdir(filepath.Join(home, tmpFolder), 0o700)
}

// exited plans the next start.
func (w *worker) exited() {
	now := time.Now()
	w.backoff.Next(w.home, now)
	delay := w.backoff.Get(w.home)
	w.state.ended(w.process.ExitCode(), now, delay)
	w.process = nil
}

// terminate ends the process and then the pod, which Kubernetes keeps until its node says that this has happened.
func (w *worker) terminate(ctx context.Context) error {
	w.process.Stop(w.grace())
	err := w.node.client.CoreV1().Pods(w.pod.Namespace).Delete(ctx, w.pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0),
		Preconditions:      &metav1.Preconditions{UID: &w.pod.UID},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// grace is the pod's own, but not longer than ours.
func (w *worker) grace() time.Duration {
	seconds := w.pod.DeletionGracePeriodSeconds
	if seconds == nil {
		seconds = w.pod.Spec.TerminationGracePeriodSeconds
	}
	return min(w.node.options.Grace, time.Duration(ptr.Deref(seconds, 30))*time.Second)
}

func (w *worker) cleanUp() {
	w.process.Stop(w.grace())
	w.wake.Stop()
	w.renew.Stop()
	if w.home == "" {
		return
	}
	if err := os.RemoveAll(w.home); err != nil {
		w.node.options.Log.Warn(fmt.Errorf("remove the folder of pod %s/%s: %w", w.pod.Namespace, w.pod.Name, err))
	}
}
