package localpods

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/controlplane"
)

const (
	// soon does not measure speed: a machine can be very busy.
	soon = 2 * time.Minute
	tick = 20 * time.Millisecond
)

// env is a namespace of a shared cluster whose pods run here.
type env struct {
	t         *testing.T
	client    kubernetes.Interface
	namespace string
	options   Options
	stop      func()
}

// binaries returns a directory in which every program is this test binary.
func binaries(t *testing.T, names ...string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	for _, name := range names {
		require.NoError(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	return dir
}

func newEnv(t *testing.T, change ...func(*Options)) *env {
	t.Helper()
	plane := controlplane.Shared(t, "member")
	e := &env{t: t, client: kubernetes.NewForConfigOrDie(plane.RESTConfig())}
	namespace, err := e.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pods-"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	e.namespace = namespace.Name
	log := logrus.New()
	log.SetOutput(t.Output())
	e.options = Options{
		RESTConfig: plane.RESTConfig(), Node: "node-" + e.namespace, Namespaces: []string{e.namespace},
		Binaries: binaries(t, "fleetagent"), Logs: t.TempDir(), RestartDelay: 50 * time.Millisecond, Log: log,
	}
	for _, f := range change {
		f(&e.options)
	}
	t.Setenv("TMPDIR", t.TempDir()) // to find leftovers
	e.start()
	return e
}

func (e *env) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, e.options) }()
	stopped := false
	e.stop = func() {
		e.t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(e.t, <-done)
	}
	e.t.Cleanup(func() { e.stop() })
}

// deploy creates a Deployment with one container that runs the program.
func (e *env) deploy(name, program string, change ...func(*appsv1.Deployment)) *appsv1.Deployment {
	e.t.Helper()
	_, err := e.client.CoreV1().ServiceAccounts(e.namespace).Create(e.t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(e.t, err)
	d := deployment(name, program)
	for _, f := range change {
		f(d)
	}
	d, err = e.client.AppsV1().Deployments(e.namespace).Create(e.t.Context(), d, metav1.CreateOptions{})
	require.NoError(e.t, err)
	return d
}

func deployment(name, program string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	fromField := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					ServiceAccountName: name,
					Containers: []corev1.Container{{
						Name: "main", Image: "example.com/whatever:v1", Command: []string{"fleetagent", "--one"}, Args: []string{"--two"},
						Env: []corev1.EnvVar{
							{Name: envProgram, Value: program},
							{Name: "PLAIN", Value: "text"},
							{Name: "NAMESPACE", ValueFrom: fromField("metadata.namespace")},
							{Name: "NAME", ValueFrom: fromField("metadata.name")},
						},
					}},
				},
			},
		},
	}
}

func (e *env) update(name string, change func(*appsv1.Deployment)) {
	e.t.Helper()
	require.Eventually(e.t, func() bool {
		d, err := e.client.AppsV1().Deployments(e.namespace).Get(e.t.Context(), name, metav1.GetOptions{})
		require.NoError(e.t, err)
		change(d)
		_, err = e.client.AppsV1().Deployments(e.namespace).Update(e.t.Context(), d, metav1.UpdateOptions{})
		return err == nil
	}, soon, tick)
}

// ready waits until the Deployment is rolled out.
func (e *env) ready(name string, replicas int32) {
	e.t.Helper()
	require.Eventually(e.t, func() bool {
		d, err := e.client.AppsV1().Deployments(e.namespace).Get(e.t.Context(), name, metav1.GetOptions{})
		require.NoError(e.t, err)
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.Replicas == replicas && s.ReadyReplicas == replicas &&
			s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas && s.UnavailableReplicas == 0
	}, soon, tick)
}

func (e *env) pods() []corev1.Pod {
	e.t.Helper()
	list, err := e.client.CoreV1().Pods(e.namespace).List(e.t.Context(), metav1.ListOptions{})
	require.NoError(e.t, err)
	return list.Items
}

// pod waits until there is one pod for which wanted returns true.
func (e *env) pod(wanted func(corev1.Pod) bool) corev1.Pod {
	e.t.Helper()
	var pods []corev1.Pod
	require.Eventually(e.t, func() bool {
		pods = e.pods()
		return len(pods) == 1 && wanted(pods[0])
	}, soon, tick)
	return pods[0]
}

func (e *env) log(pod string) string {
	data, _ := os.ReadFile(filepath.Join(e.options.Logs, e.namespace+"_"+pod+".log"))
	return string(data)
}

// said waits until the program of a pod has printed its report the given number of times, and returns the last one.
func (e *env) said(pod string, times int) saying {
	e.t.Helper()
	var all []saying
	require.Eventually(e.t, func() bool {
		all = nil
		for line := range strings.Lines(e.log(pod)) {
			var s saying
			if bytes.HasPrefix([]byte(line), []byte("{")) && json.Unmarshal([]byte(line), &s) == nil {
				all = append(all, s)
			}
		}
		return len(all) >= times
	}, soon, tick)
	return all[len(all)-1]
}

func running(pid int) bool { return syscall.Kill(pid, 0) == nil }

func isReady(pod corev1.Pod) bool {
	return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].Ready
}

func replicas(n int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(n) }
}
