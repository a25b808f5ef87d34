package evidence

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZ2VudCJ9.c2lnbmF0dXJl"

func clusterWith(objects ...runtime.Object) *fake.Clientset { return fake.NewClientset(objects...) }

func fleetWith(objects ...runtime.Object) *fakedynamic.FakeDynamicClient {
	lists := map[schema.GroupVersionResource]string{}
	for _, kind := range kinds() {
		lists[kind] = kind.Resource + "List"
	}
	return fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
}

func read(t *testing.T, elements ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elements...))
	require.NoError(t, err)
	return string(data)
}

func TestContainerLogs(t *testing.T) {
	dir := t.TempDir()
	core := clusterWith(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "hub"},
		Status: corev1.PodStatus{
			InitContainerStatuses:      []corev1.ContainerStatus{{Name: "begun"}},
			ContainerStatuses:          []corev1.ContainerStatus{{Name: "steady"}, {Name: "crashed", RestartCount: 2}},
			EphemeralContainerStatuses: []corev1.ContainerStatus{{Name: "debugger"}},
		},
	})

	require.NoError(t, collect(t.Context(), core, fleetWith(), dir))

	logs, err := filepath.Glob(filepath.Join(dir, "logs/a/*"))
	require.NoError(t, err)
	for i, file := range logs {
		logs[i] = filepath.Base(file)
	}
	require.Equal(t, []string{"hub.begun.log", "hub.crashed.log", "hub.crashed.previous.log", "hub.debugger.log", "hub.steady.log"}, logs)
}

func TestSecretsAreRedacted(t *testing.T) {
	dir := t.TempDir()
	core := clusterWith(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "fleet-agent"},
		Data:       map[string][]byte{"token": []byte("very secret"), "kubeconfig": []byte("as well")},
	})

	require.NoError(t, collect(t.Context(), core, fleetWith(), dir))

	text := read(t, dir, "secrets.txt")
	require.Contains(t, text, "a/fleet-agent")
	require.Contains(t, text, "[kubeconfig token]")
	require.NotContains(t, text, "secret ")
	require.NotContains(t, text, "as well")
}

func TestObjectsAreRedacted(t *testing.T) {
	dir := t.TempDir()
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fleet.cattle.io/v1alpha1", "kind": "ClusterRegistration",
		"metadata": map[string]any{"namespace": "a", "name": "request-1", "annotations": map[string]any{"leaked": "Bearer " + token}},
		"spec":     map[string]any{"clientID": "0123456789abcdef", "clientRandom": "short", "clusterLabels": map[string]any{"env": "test"}},
	}}

	require.NoError(t, collect(t.Context(), clusterWith(), fleetWith(request), dir))

	text := read(t, dir, "clusterregistrations.yaml")
	require.Contains(t, text, "name: request-1")
	require.Contains(t, text, "env: test")
	require.Contains(t, text, "clientID: 0123... (redacted)")
	require.NotContains(t, text, "456789abcdef")
	require.NotContains(t, text, "short")
	require.NotContains(t, text, token)
}

func TestEventOrder(t *testing.T) {
	dir := t.TempDir()
	event := func(name string, second int) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Reason: name,
			LastTimestamp: metav1.Unix(int64(second), 0),
		}
	}
	newer := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "middle"}, Reason: "middle", EventTime: metav1.NewMicroTime(metav1.Unix(2, 0).Time)}

	require.NoError(t, collect(t.Context(), clusterWith(event("last", 3), newer, event("first", 1)), fleetWith(), dir))

	require.Regexp(t, `(?s)first.*middle.*last`, read(t, dir, "events.txt"))
}

func TestMissingEvidence(t *testing.T) {
	dir := t.TempDir()
	core := clusterWith()
	core.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("etcd is away")
	})

	err := collect(context.Background(), core, fleetWith(), dir)

	require.ErrorContains(t, err, "etcd is away")
	require.FileExists(t, filepath.Join(dir, "secrets.txt"))
	require.FileExists(t, filepath.Join(dir, "pods.yaml"))
}

func TestRedactDoesNotChangeItsArgument(t *testing.T) {
	object := map[string]any{"items": []any{map[string]any{"token": "0123456789"}}, "count": int64(2)}

	require.Equal(t, map[string]any{"items": []any{map[string]any{"token": "0123... (redacted)"}}, "count": int64(2)}, redact(object))
	require.Equal(t, "0123456789", object["items"].([]any)[0].(map[string]any)["token"])
}
