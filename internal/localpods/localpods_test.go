package localpods

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestRunErrors(t *testing.T) {
	o := Options{RESTConfig: &rest.Config{Host: "http://127.0.0.1:1"}, Binaries: "b", Logs: t.TempDir()}
	require.ErrorContains(t, Run(t.Context(), o), "create Node local")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, Run(ended, o))
	o.Logs = "/dev/null/logs"
	require.ErrorContains(t, Run(t.Context(), o), "/dev/null")
}

func testPod(change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-1", Namespace: "ns", UID: "uid",
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "account", NodeName: "node",
			Containers: []corev1.Container{{
				Name: "main", Image: "image:v1", Command: []string{"/usr/bin/tool", "--flag"},
				VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: tokenPath}},
			}},
		},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func fromField(path string) []corev1.EnvVar {
	return []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}}
}

func TestCommandFor(t *testing.T) {
	dir := binaries(t, "tool")
	c, err := commandFor(testPod(func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"more"} }), dir, "/home")
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "tool"), c.Path)
	assert.Equal(t, []string{"--flag", "more"}, c.Args)
	assert.Equal(t, "/home", c.Dir)
	assert.Contains(t, c.Env, "KUBECONFIG=/home/kubeconfig")
}

func TestCommandForErrors(t *testing.T) {
	tests := map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"two containers":    {func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{}) }, "exactly one container"},
		"an init container": {func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{}} }, "no init container"},
		"no command":        {func(p *corev1.Pod) { p.Spec.Containers[0].Command = nil }, "container main has no command"},
		"a missing program": {func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"sh"} }, `the command of container main is "sh": build it into`},
		"envFrom":           {func(p *corev1.Pod) { p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{}} }, "uses envFrom"},
		"a Secret's value": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}}}
		}, "environment variable V has neither"},
		"an unknown field": {func(p *corev1.Pod) { p.Spec.Containers[0].Env = fromField("spec.moon") }, `environment variable V refers to field "spec.moon"`},
	}
	dir := binaries(t, "tool")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := commandFor(testPod(test.change), dir, "/home")
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestValueOfField(t *testing.T) {
	tests := map[string]string{
		"metadata.name": "web-1", "metadata.namespace": "ns", "metadata.uid": "uid", "spec.nodeName": "node",
		"spec.serviceAccountName": "account", "status.podIP": "127.0.0.1",
	}
	for path, want := range tests {
		value, err := valueOf(testPod(nil), fromField(path)[0])
		require.NoError(t, err, path)
		assert.Equal(t, want, value, path)
	}
}

func TestValueOfAddress(t *testing.T) {
	tests := map[string]struct{ variable, given, want string }{
		"an address of all":       {"FLEET_HEALTH_BIND_ADDRESS", ":8081", "127.0.0.1:0"},
		"an address of loopback":  {"FLEET_METRICS_BIND_ADDRESS", "127.0.0.1:8080", "127.0.0.1:0"},
		"nothing is served":       {"FLEET_HEALTH_BIND_ADDRESS", "", ""},
		"it is no such a setting": {"BIND_ADDRESS_OF_OTHERS", ":8081", ":8081"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			value, err := valueOf(testPod(nil), corev1.EnvVar{Name: test.variable, Value: test.given})
			require.NoError(t, err)
			assert.Equal(t, test.want, value)
		})
	}
}

func TestEnvironmentOfThePodTakesPrecedence(t *testing.T) {
	env, err := environment(testPod(nil), corev1.Container{Env: []corev1.EnvVar{{Name: "HOME", Value: "/elsewhere"}}}, "/bin", "/home")
	require.NoError(t, err)
	require.Equal(t, "HOME=/elsewhere", env[len(env)-1], "the last value counts")
}

func TestPodStatus(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := map[string]struct {
		happened func(*state)
		phase    corev1.PodPhase
		ready    corev1.ConditionStatus
		restarts int32
		waiting  string
	}{
		"nothing yet":       {func(*state) {}, corev1.PodPending, corev1.ConditionFalse, 0, "ContainerCreating"},
		"it cannot start":   {func(s *state) { s.waiting(reasonConfigError, errors.New("x")) }, corev1.PodPending, corev1.ConditionFalse, 0, "CreateContainerConfigError"},
		"it runs":           {func(s *state) { s.started(now) }, corev1.PodRunning, corev1.ConditionTrue, 0, ""},
		"it ended":          {func(s *state) { s.started(now); s.ended(1, now, time.Second) }, corev1.PodRunning, corev1.ConditionFalse, 0, "CrashLoopBackOff"},
		"it runs again":     {func(s *state) { s.started(now); s.ended(0, now, time.Second); s.started(now) }, corev1.PodRunning, corev1.ConditionTrue, 1, ""},
		"a new node counts": {func(s *state) { s.restarts = 4; s.started(now) }, corev1.PodRunning, corev1.ConditionTrue, 4, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var s state
			test.happened(&s)
			status := podStatus(testPod(nil), s, now)
			c := status.ContainerStatuses[0]
			assert.Equal(t, test.phase, status.Phase)
			assert.Equal(t, test.ready, status.Conditions[3].Status)
			assert.Equal(t, test.restarts, c.RestartCount)
			if test.waiting == "" {
				assert.NotNil(t, c.State.Running)
				return
			}
			require.NotNil(t, c.State.Waiting)
			assert.Equal(t, test.waiting, c.State.Waiting.Reason)
		})
	}
}

func TestPodStatusKeepsTimes(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pod := testPod(nil)
	var s state
	s.started(now)
	pod.Status = podStatus(pod, s, now)
	later := podStatus(pod, s, now.Add(time.Hour))
	assert.Equal(t, pod.Status, later, "no change")
	s.ended(1, now.Add(time.Hour), time.Second)
	later = podStatus(pod, s, now.Add(time.Hour))
	assert.Equal(t, now.Add(time.Hour), later.Conditions[3].LastTransitionTime.Time)
	assert.Equal(t, now, later.Conditions[0].LastTransitionTime.Time)
}

func TestGrace(t *testing.T) {
	seconds := func(s int64) *int64 { return &s }
	tests := map[string]struct {
		pod, deletion *int64
		want          time.Duration
	}{
		"nothing said":           {nil, nil, 10 * time.Second},
		"a short one of the pod": {seconds(2), nil, 2 * time.Second},
		"a long one of the pod":  {seconds(60), nil, 10 * time.Second},
		"the deletion's":         {seconds(60), seconds(1), time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorker(&node{}, testPod(func(p *corev1.Pod) {
				p.Spec.TerminationGracePeriodSeconds, p.DeletionGracePeriodSeconds = test.pod, test.deletion
			}))
			require.Equal(t, test.want, w.grace())
		})
	}
}

func TestKubeconfigFor(t *testing.T) {
	data, err := kubeconfigFor(&rest.Config{Host: "https://x", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca")}, BearerToken: "admin"}, "ns", "own")
	require.NoError(t, err)
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	require.NoError(t, err)
	assert.Equal(t, "own", config.BearerToken)
	assert.Equal(t, "ca", string(config.CAData))
	assert.NotContains(t, string(data), "admin", "not the credential of the administrator")
	parsed, err := clientcmd.NewClientConfigFromBytes(data)
	require.NoError(t, err)
	namespace, _, err := parsed.Namespace()
	require.NoError(t, err)
	assert.Equal(t, "ns", namespace)
}

func TestUpdateKeepsTheNewest(t *testing.T) {
	w := newWorker(&node{}, testPod(nil))
	for range 3 {
		w.update(testPod(nil))
	}
	last := testPod(func(p *corev1.Pod) { p.ResourceVersion = "9" })
	w.update(last)
	require.Same(t, last, <-w.updates)
	require.Empty(t, w.updates)
}

func TestTakes(t *testing.T) {
	n := &node{options: Options{Namespaces: []string{"ns"}}}
	n.options.Node = "node"
	tests := map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"ours":                 {nil, true},
		"not bound":            {func(p *corev1.Pod) { p.Spec.NodeName = "" }, true},
		"of another node":      {func(p *corev1.Pod) { p.Spec.NodeName = "other" }, false},
		"of another namespace": {func(p *corev1.Pod) { p.Namespace = "other" }, false},
		"failed":               {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, n.takes(testPod(test.change))) })
	}
}

func TestReplace(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the workers end immediately
	n := &node{workers: map[types.UID]*worker{}}
	n.options.Node = "node"
	old := testPod(func(p *corev1.Pod) { p.Status.Phase = "" })
	n.workers[old.UID] = newWorker(n, old)
	first := n.workers[old.UID]
	again := testPod(func(p *corev1.Pod) { p.UID = "another"; p.Spec.NodeName = "other" })
	n.replace(ctx, old, again)
	_, open := <-first.updates
	require.False(t, open, "the old worker ends")
	require.Empty(t, n.workers, "a pod of another node is not taken")
}
