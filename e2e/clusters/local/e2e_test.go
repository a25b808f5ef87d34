//go:build e2e

package local

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/e2e/clusters"
)

// pair has the clusters of all parts of TestTwoClusters, because creating them takes most of the time.
type pair struct {
	provider            clusters.Provider
	hub, member         clusters.Cluster
	hubClient, onMember kubernetes.Interface
	hubToken            string
	hubCA               []byte
}

func TestTwoClusters(t *testing.T) {
	p := newPair(t)
	t.Run("a pod of a loaded image reaches the API server of its cluster", p.inCluster)
	t.Run("a pod reaches the API server of the other cluster", p.acrossClusters)
	t.Run("a cut cluster does not respond until the cut ends", p.cut)
	t.Run("a second address has a certificate of another authority", p.move)
	t.Run("a killed container is started again", p.kill)
	t.Run("a crash loses no data", p.crash)
	t.Run("a cut outlives a crash", p.cutAndCrash)
	t.Run("logs of programs and containers are collected", p.collect)
	t.Run("invalid arguments", p.refusals)
}

func newPair(t *testing.T) *pair {
	provider := open(t, options(t))
	p := &pair{provider: provider}
	var both errgroup.Group
	for name, into := range map[string]*clusters.Cluster{"hub": &p.hub, "member": &p.member} {
		both.Go(func() (err error) {
			*into, err = provider.Create(t.Context(), name)
			return err
		})
	}
	archive := callerArchive(t)
	require.NoError(t, both.Wait())
	require.NoError(t, p.hub.Load(t.Context(), archive))
	require.NoError(t, p.member.Load(t.Context(), archive))
	p.hubClient, p.onMember = clientOf(t, p.hub), clientOf(t, p.member)
	p.hubToken = reader(t, p.hubClient, "reader")
	var err error
	p.hubCA, err = os.ReadFile(p.hub.(*cluster).node.path(fileCA))
	require.NoError(t, err)
	return p
}

func (p *pair) inCluster(t *testing.T) {
	caller(t, p.hubClient, "in-cluster", "reader")
	requireSays(t, p.hubClient, "in-cluster", "ok")
}

func (p *pair) acrossClusters(t *testing.T) {
	url := p.hub.(*cluster).node.apiServer()
	caller(t, p.onMember, "across", "default", toServer(url, p.hubToken, p.hubCA)...)
	requireSays(t, p.onMember, "across", "ok")
	caller(t, p.onMember, "stranger", "default", toServer(url, "nonsense", p.hubCA)...)
	requireSays(t, p.onMember, "stranger", "refused: 401")
}

// cut requires that connections hang and do not fail.
func (p *pair) cut(t *testing.T) {
	for _, direction := range [][2]clusters.Cluster{{p.hub, p.member}, {p.member, p.hub}} {
		heal, err := direction[0].Cut(t.Context(), direction[1])
		require.NoError(t, err)
		requireSays(t, p.onMember, "across", "hangs")
		requireSays(t, p.hubClient, "in-cluster", "ok")
		require.NoError(t, heal())
		requireSays(t, p.onMember, "across", "ok")
		require.NoError(t, heal(), "for the second time")
	}
}

func (p *pair) move(t *testing.T) {
	url, ca, err := p.hub.Move(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, p.hubCA, ca)
	caller(t, p.onMember, "moved", "default", toServer(url, p.hubToken, ca)...)
	requireSays(t, p.onMember, "moved", "ok")
	caller(t, p.onMember, "unmoved", "default", toServer(url, p.hubToken, p.hubCA)...)
	requireSays(t, p.onMember, "unmoved", "refused: ")
	requireSays(t, p.onMember, "across", "ok")
}

func (p *pair) kill(t *testing.T) {
	pod, err := p.hubClient.CoreV1().Pods("default").Get(t.Context(), "in-cluster", metav1.GetOptions{})
	require.NoError(t, err)
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "//")
	require.NoError(t, p.hub.Kill(t.Context(), id))
	require.Eventually(t, func() bool { return restarts(t, p.hubClient, "in-cluster") > 0 }, soon, pollInterval)
	pod, err = p.hubClient.CoreV1().Pods("default").Get(t.Context(), "in-cluster", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 128+syscall.SIGKILL, pod.Status.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode)
	requireSays(t, p.hubClient, "in-cluster", "ok")
}

func (p *pair) crash(t *testing.T) {
	_, err := p.hubClient.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	before := restarts(t, p.hubClient, "in-cluster")
	require.NoError(t, p.hub.Crash(t.Context()))
	require.ErrorContains(t, p.hub.Crash(t.Context()), "is down")
	require.ErrorContains(t, p.hub.Load(t.Context(), "/dev/null"), "is down")
	requireUnreachable(t, p.hub)

	require.NoError(t, p.hub.Restart(t.Context()))
	kept, err := p.hubClient.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "b", kept.Data["a"])
	require.Eventually(t, func() bool { return restarts(t, p.hubClient, "in-cluster") > before }, soon, pollInterval)
	requireSays(t, p.hubClient, "in-cluster", "ok")
	requireSays(t, p.onMember, "across", "ok")
	require.ErrorContains(t, p.hub.Restart(t.Context()), "already running")
}

func requireUnreachable(t *testing.T, c clusters.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
	defer cancel()
	address := strings.TrimPrefix(c.(*cluster).node.apiServer(), "https://")
	_, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	require.Error(t, err)
}

func restarts(t *testing.T, client kubernetes.Interface, pod string) int32 {
	t.Helper()
	found, err := client.CoreV1().Pods("default").Get(t.Context(), pod, metav1.GetOptions{})
	require.NoError(t, err)
	if len(found.Status.ContainerStatuses) == 0 {
		return 0
	}
	return found.Status.ContainerStatuses[0].RestartCount
}

func (p *pair) cutAndCrash(t *testing.T) {
	heal, err := p.hub.Cut(t.Context(), p.member)
	require.NoError(t, err)
	require.NoError(t, p.hub.Crash(t.Context()))
	require.NoError(t, p.hub.Restart(t.Context()))
	requireSays(t, p.onMember, "across", "hangs")
	require.NoError(t, heal())
	requireSays(t, p.onMember, "across", "ok")
}

func (p *pair) collect(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, p.provider.Collect(t.Context(), dir))
	for _, pattern := range []string{
		"hub/logs/kubelet.log", "hub/logs/containerd.log", "hub/logs/kube-apiserver.log", "hub/iptables.txt", "hub/containers.txt",
		"hub/pods/default_in-cluster_*/caller/*.log", "member/pods/default_across_*/caller/*.log",
	} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
	}
}

func (p *pair) refusals(t *testing.T) {
	_, err := p.provider.Create(t.Context(), "hub")
	require.ErrorContains(t, err, "already exists")
	_, err = p.provider.Create(t.Context(), "Not_A_Label")
	require.Error(t, err)
	_, err = p.hub.Cut(t.Context(), p.hub)
	require.Error(t, err)
	require.ErrorIs(t, p.hub.Load(t.Context(), "/nowhere"), os.ErrNotExist)
}
