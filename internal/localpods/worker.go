package localpods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/process"
	"github.com/muster-fleet/muster/pkg/transport"
)

const (
	// retryDelay is the delay after an error other than the end of the process.
	retryDelay = time.Second
	// maxGrace limits the grace period of a pod.
	maxGrace = 10 * time.Second
	// tokenPath is where the API server mounts the token of the ServiceAccount, unless automountServiceAccountToken is false.
	tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenLife is the lifetime of tokens, which are not renewed. It is as long as that of the certificates of package pki.
	tokenLife = 30 * 24 * time.Hour
)

// worker runs the process of one pod. Only its own goroutine uses it, except for the channel.
type worker struct {
	node    *node
	updates chan *corev1.Pod // has the newest version that was not handled yet; closed when the pod is deleted

	pod     *corev1.Pod
	home    string // private directory of the process; empty before the first start
	process *process.Process
	state   state
	backoff *flowcontrol.Backoff
	wake    *time.Timer // fires when a step has to be repeated
	written corev1.PodStatus
}

func newWorker(n *node, pod *corev1.Pod) *worker {
	w := &worker{
		node: n, updates: make(chan *corev1.Pod, 1), pod: pod,
		backoff: flowcontrol.NewBackOff(n.options.RestartDelay, n.options.RestartDelayMax),
		wake:    time.NewTimer(time.Hour),
	}
	w.wake.Stop()
	if len(pod.Status.ContainerStatuses) > 0 { // from an earlier node
		w.state.restarts = int(pod.Status.ContainerStatuses[0].RestartCount)
	}
	return w
}

// update replaces a version that was not handled yet.
func (w *worker) update(pod *corev1.Pod) {
	select {
	case <-w.updates:
	default:
	}
	w.updates <- pod
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
		case pod, exists := <-w.updates:
			if !exists {
				return
			}
			w.pod = pod
		case <-w.process.Exited():
			now := time.Now()
			w.backoff.Next(w.home, now)
			w.state.ended(w.process.ExitCode(), now, w.backoff.Get(w.home))
			w.process = nil
		case <-w.wake.C:
		}
	}
}

// step does the next step for the pod, if there is one, and reports the status.
func (w *worker) step(ctx context.Context) error {
	pods := w.node.client.CoreV1().Pods(w.pod.Namespace)
	switch {
	case hasEnded(w.pod):
		w.process.Stop(w.grace())
		return nil
	case w.pod.DeletionTimestamp != nil:
		// Kubernetes keeps the pod until its node has ended the process and deletes it.
		w.process.Stop(w.grace())
		return ignoreGone(pods.Delete(ctx, w.pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &w.pod.UID},
		}))
	case w.pod.Spec.NodeName == "":
		return ignoreGone(pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.pod.Namespace, Name: w.pod.Name, UID: w.pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: w.node.options.Node},
		}, metav1.CreateOptions{}))
	case w.process != nil:
	case time.Until(w.state.notBefore) > 0:
		w.wake.Reset(time.Until(w.state.notBefore))
	default:
		if err := w.start(ctx); err != nil {
			w.state.waiting(reasonConfigError, err)
			w.state.notBefore = time.Now().Add(retryDelay)
			w.wake.Reset(retryDelay)
		} else {
			w.state.started(time.Now())
		}
	}
	return w.report(ctx)
}

// ignoreGone ignores that the pod was changed or deleted. The watch reports the change.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func (w *worker) start(ctx context.Context) (err error) {
	if w.home == "" {
		if w.home, err = os.MkdirTemp(w.node.options.Homes, "localpods-"); err != nil {
			return err
		}
		if err := os.Mkdir(filepath.Join(w.home, tmpDir), 0o700); err != nil {
			return err
		}
	}
	c, err := commandFor(w.pod, w.node.options.Binaries, w.home)
	if err != nil {
		return err
	}
	if mountsToken(w.pod) {
		if err := w.writeKubeconfig(ctx); err != nil {
			return err
		}
	}
	c.Log = filepath.Join(w.node.options.Logs, w.pod.Namespace+"_"+w.pod.Name+".log")
	w.process, err = process.Start(c)
	return err
}

// grace returns the grace period of the pod, up to maxGrace.
func (w *worker) grace() time.Duration {
	seconds := w.pod.DeletionGracePeriodSeconds
	if seconds == nil {
		seconds = w.pod.Spec.TerminationGracePeriodSeconds
	}
	return min(maxGrace, time.Duration(ptr.Deref(seconds, 30))*time.Second)
}

func (w *worker) cleanUp() {
	w.process.Stop(w.grace())
	w.wake.Stop()
	if w.home == "" {
		return
	}
	if err := os.RemoveAll(w.home); err != nil {
		w.node.options.Log.Warn(fmt.Errorf("remove the directory of pod %s/%s: %w", w.pod.Namespace, w.pod.Name, err))
	}
}

// mountsToken reports whether the pod has a token of its ServiceAccount.
func mountsToken(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenPath })
}

// writeKubeconfig writes a kubeconfig with a token of the ServiceAccount. The token is bound to the pod, so it becomes invalid with it.
func (w *worker) writeKubeconfig(ctx context.Context) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(tokenLife.Seconds())),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: w.pod.Name, UID: w.pod.UID},
	}}
	account := w.pod.Spec.ServiceAccountName
	issued, err := w.node.client.CoreV1().ServiceAccounts(w.pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of ServiceAccount %s/%s: %w", w.pod.Namespace, account, err)
	}
	kubeconfig, err := kubeconfigFor(w.node.options.RESTConfig, w.pod.Namespace, issued.Status.Token)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.home, kubeconfigFile), kubeconfig, 0o600)
}

// kubeconfigFor returns a kubeconfig with the server of config and a token.
func kubeconfigFor(config *rest.Config, namespace, token string) ([]byte, error) {
	tls := rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(tls); err != nil {
		return nil, err
	}
	return transport.Kubeconfig(config.Host, tls.CAData, token, namespace)
}
