//go:build e2e

package local

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// soon limits waits that usually take seconds. A machine can be very busy.
const soon = 2 * time.Minute

const callerImage = "localhost/muster-e2e/caller:1"

// environmentBinaries names the directory with the programs of Kubernetes. Without it they are built.
const environmentBinaries = "MUSTER_E2E_BINARIES"

func options(t *testing.T) Options {
	t.Helper()
	return Options{Binaries: binaries(t), Dir: t.TempDir(), Log: t.Output()}
}

// open creates a provider that is closed at the end of the test. A provider that stays open keeps its lane, for which later providers wait.
func open(t *testing.T, o Options) clusters.Provider {
	t.Helper()
	provider, err := New(o)
	require.NoError(t, err)
	guard.Add(provider)
	t.Cleanup(func() {
		if dir := os.Getenv("MUSTER_E2E_OUTPUT"); t.Failed() && dir != "" {
			assert.NoError(t, provider.Collect(context.Background(), filepath.Join(dir, t.Name())))
		}
		require.NoError(t, provider.Close())
	})
	return provider
}

func binaries(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv(environmentBinaries); dir != "" {
		return dir
	}
	output, err := exec.CommandContext(t.Context(), "../../../scripts/kube", "pods").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(output))
}

// callerArchive is an image of the program in testdata/caller.
func callerArchive(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, command.Build(t.Context(), command.Run, dir, "./testdata/caller"))
	program, err := os.ReadFile(filepath.Join(dir, "caller"))
	require.NoError(t, err)
	var archive bytes.Buffer
	require.NoError(t, writeImage(&archive, callerImage, program))
	path := filepath.Join(dir, "caller.tar")
	require.NoError(t, os.WriteFile(path, archive.Bytes(), 0o600))
	return path
}

func clientOf(t *testing.T, c clusters.Cluster) kubernetes.Interface {
	t.Helper()
	client, err := c.(*cluster).client()
	require.NoError(t, err)
	return client
}

// reader creates a ServiceAccount that is an administrator, and returns a token for it.
func reader(t *testing.T, client kubernetes.Interface, name string) string {
	t.Helper()
	ctx := t.Context()
	_, err := client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: name, Namespace: "default"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	return token.Status.Token
}

// caller runs testdata/caller as a pod.
func caller(t *testing.T, client kubernetes.Interface, name, serviceAccount string, environment ...corev1.EnvVar) {
	t.Helper()
	_, err := client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			ServiceAccountName:            serviceAccount,
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers:                    []corev1.Container{{Name: "caller", Image: callerImage, Env: environment}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func toServer(url, token string, ca []byte) []corev1.EnvVar {
	return []corev1.EnvVar{{Name: "SERVER", Value: url}, {Name: "TOKEN", Value: token}, {Name: "CA", Value: string(ca)}}
}

// requireSays waits until the last line of a pod's log begins with want.
func requireSays(t *testing.T, client kubernetes.Interface, pod, want string) {
	t.Helper()
	var last string
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
		defer cancel()
		data, err := client.CoreV1().Pods("default").GetLogs(pod, &corev1.PodLogOptions{TailLines: ptr.To[int64](1)}).DoRaw(ctx)
		if last = string(data); err != nil {
			last = err.Error()
		}
		return strings.HasPrefix(last, want)
	}, soon, pollInterval, "pod %s", pod)
	t.Logf("the last line of %s is %q", pod, strings.TrimSpace(last))
}
