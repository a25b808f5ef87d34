package localpods

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/controlplane"
)

func TestDeployment(t *testing.T) {
	e := newEnv(t)
	e.deploy("web", "polite")
	e.ready("web", 1)

	pod := e.pod(isReady)
	require.Equal(t, e.options.Node, pod.Spec.NodeName)
	require.Equal(t, corev1.PodRunning, pod.Status.Phase)
	require.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
	for _, c := range pod.Status.Conditions {
		require.Equal(t, corev1.ConditionTrue, c.Status, c.Type)
	}
	s := e.said(pod.Name, 1)
	require.Empty(t, s.Problem)
	require.Equal(t, "system:serviceaccount:"+e.namespace+":web", s.User, "its own token")
	require.Equal(t, []string{"--one", "--two"}, s.Args)
	home := s.Environment["HOME"]
	require.Equal(t, map[string]string{
		"HOME": home, "TMPDIR": filepath.Join(home, "tmp"), "KUBECONFIG": filepath.Join(home, "kubeconfig"),
		"HOSTNAME": pod.Name, "NAME": pod.Name, "NAMESPACE": e.namespace, "PLAIN": "text",
	}, s.Environment)
	require.Equal(t, home, s.Dir)
	requirePrivate(t, home, filepath.Join(home, "kubeconfig"), filepath.Join(e.options.Logs, e.namespace+"_"+pod.Name+".log"))
}

// requirePrivate fails if other users of the machine can read the files.
func requirePrivate(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, path)
	}
}

func TestPodWithoutToken(t *testing.T) {
	e := newEnv(t)
	e.deploy("web", "polite", func(d *appsv1.Deployment) { d.Spec.Template.Spec.AutomountServiceAccountToken = ptr.To(false) })
	e.ready("web", 1)
	s := e.said(e.pod(isReady).Name, 1)
	require.NotContains(t, s.Environment, "KUBECONFIG")
	require.NoFileExists(t, filepath.Join(s.Environment["HOME"], "kubeconfig"))
}

func TestChangedTemplate(t *testing.T) {
	e := newEnv(t)
	e.deploy("web", "polite")
	e.ready("web", 1)
	before := e.pod(isReady)
	old := e.said(before.Name, 1)

	e.update("web", func(d *appsv1.Deployment) {
		c := &d.Spec.Template.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: "GENERATION", Value: "2"})
	})
	e.ready("web", 1)
	after := e.pod(func(p corev1.Pod) bool { return p.Name != before.Name && isReady(p) })
	require.Equal(t, "2", e.said(after.Name, 1).Environment["GENERATION"])
	require.Eventually(t, func() bool { return !running(old.Pid) }, soon, tick)
	require.Contains(t, e.log(before.Name), "asked to end")
	require.Eventually(t, func() bool { _, err := os.Stat(old.Dir); return os.IsNotExist(err) }, soon, tick)
}

func TestReplicas(t *testing.T) {
	e := newEnv(t)
	e.deploy("web", "polite", replicas(2))
	e.ready("web", 2)
	pids := map[int]bool{}
	for _, pod := range e.pods() {
		pids[e.said(pod.Name, 1).Pid] = true
	}
	require.Len(t, pids, 2)

	config, err := clientcmd.BuildConfigFromFlags("", e.said(e.pods()[0].Name, 1).Environment["KUBECONFIG"])
	require.NoError(t, err)
	accepted := func() bool {
		// The API server caches for ten seconds that it has accepted a token for the same audiences.
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
			Token: config.BearerToken, Audiences: []string{controlplane.ServiceAccountIssuer, rand.Text()},
		}}
		answer, err := e.client.AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{})
		require.NoError(t, err)
		return answer.Status.Authenticated
	}
	require.True(t, accepted())

	e.update("web", replicas(0))
	e.ready("web", 0)
	require.Eventually(t, func() bool { return !accepted() }, soon, tick, "a token becomes invalid with its pod")
	for pid := range pids {
		require.Eventually(t, func() bool { return !running(pid) }, soon, tick)
	}
	require.Eventually(t, func() bool { return len(e.pods()) == 0 }, soon, tick)
}

func TestDeletionOfAProcessThatIgnoresSIGTERM(t *testing.T) {
	e := newEnv(t)
	e.deploy("web", "stubborn", func(d *appsv1.Deployment) { d.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) })
	e.ready("web", 1)
	pod := e.pod(isReady)
	s := e.said(pod.Name, 1)

	require.NoError(t, e.client.AppsV1().Deployments(e.namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return len(e.pods()) == 0 }, soon, tick, "the pod is deleted")
	require.False(t, running(s.Pid), "after its process has ended")
	require.NotContains(t, e.log(pod.Name), "asked to end\n", "it ignored the signal")
	require.Eventually(t, func() bool { _, err := os.Stat(s.Dir); return os.IsNotExist(err) }, soon, tick)
}

func TestDeletionWithoutGrace(t *testing.T) {
	e := newEnv(t)
	e.deploy("web", "polite")
	e.ready("web", 1)
	pod := e.pod(isReady)
	s := e.said(pod.Name, 1)
	require.NoError(t, e.client.CoreV1().Pods(e.namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	require.Eventually(t, func() bool { return !running(s.Pid) }, soon, tick)
	e.pod(func(p corev1.Pod) bool { return p.Name != pod.Name && isReady(p) })
}

func TestRestarts(t *testing.T) {
	e := newEnv(t)
	e.deploy("web", "crash")
	pod := e.pod(func(p corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount >= 2 &&
			p.Status.ContainerStatuses[0].State.Waiting != nil
	})
	c := pod.Status.ContainerStatuses[0]
	require.Equal(t, "CrashLoopBackOff", c.State.Waiting.Reason)
	require.Contains(t, c.State.Waiting.Message, "before the next start")
	require.EqualValues(t, 3, c.LastTerminationState.Terminated.ExitCode)
	require.Equal(t, "Error", c.LastTerminationState.Terminated.Reason)
	require.False(t, c.Ready)
	require.Contains(t, e.log(pod.Name), "I am going to crash")
}

func TestMissingProgram(t *testing.T) {
	e := newEnv(t, func(o *Options) { o.Binaries = t.TempDir() })
	e.deploy("web", "polite")
	pod := e.pod(func(p corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
	require.Contains(t, pod.Status.ContainerStatuses[0].State.Waiting.Message, `the command of container main is "fleetagent": build it into `+e.options.Binaries)

	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(e.options.Binaries, "fleetagent")))
	e.ready("web", 1)
}

func TestEndOfRun(t *testing.T) {
	e := newEnv(t, func(o *Options) { o.Homes = filepath.Join(t.TempDir(), "homes") })
	e.deploy("web", "polite", replicas(2))
	e.ready("web", 2)
	var all []saying
	for _, pod := range e.pods() {
		all = append(all, e.said(pod.Name, 1))
	}
	e.stop()
	for _, s := range all {
		require.False(t, running(s.Pid))
	}
	for _, dir := range []string{os.TempDir(), e.options.Homes} {
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

func TestSecondRun(t *testing.T) {
	e := newEnv(t)
	e.deploy("web", "polite")
	e.ready("web", 1)
	pod := e.pod(isReady)
	first := e.said(pod.Name, 1)
	e.stop()
	e.start()
	second := e.said(pod.Name, 2)
	require.NotEqual(t, first.Pid, second.Pid)
	require.Equal(t, pod.Name, e.pod(isReady).Name)
}
