//go:build e2e

package local

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/e2e/clusters"
	"github.com/muster-fleet/muster/e2e/clusters/command"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(environmentOwner); dir != "" {
		own(dir)
		return
	}
	os.Exit(guard.Run(m))
}

// guard removes the clusters if the tests are interrupted.
var guard clusters.Guard

// environmentOwner makes this test binary a process that creates a cluster, prints that, and waits to be killed.
const environmentOwner = "MUSTER_E2E_TEST_OWNER"

func own(dir string) {
	provider, err := New(Options{Binaries: os.Getenv(environmentBinaries), Dir: dir, Log: os.Stderr})
	if err == nil {
		_, err = provider.Create(context.Background(), "orphan")
	}
	fmt.Println("up:", err)
	select {}
}

func TestCloseLeavesNothing(t *testing.T) {
	before := takeStock(t)
	o := options(t)
	provider := open(t, o)
	c, err := provider.Create(t.Context(), "hub")
	require.NoError(t, err)
	require.NoError(t, c.Load(t.Context(), callerArchive(t)))
	client := clientOf(t, c)
	caller(t, client, "running", "default")
	require.Eventually(t, func() bool {
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), "running", metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning
	}, soon, pollInterval)
	require.NotEmpty(t, takeStock(t).since(before))

	require.NoError(t, provider.Close())
	requireNothingNew(t, before)
	requireEmpty(t, o.Dir)
	require.NoError(t, provider.Close(), "for the second time")
	_, err = provider.Create(t.Context(), "late")
	require.ErrorContains(t, err, "closed")
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	before := takeStock(t)
	o := options(t)
	o.Binaries = withBrokenKubelet(t, o.Binaries)
	provider := open(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), probeTimeout)
	defer cancel()
	_, err := provider.Create(ctx, "hub")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	logs := t.TempDir()
	require.NoError(t, provider.Collect(t.Context(), logs))
	require.FileExists(t, filepath.Join(logs, "hub", "logs", "kubelet.log"))

	require.NoError(t, provider.Close())
	requireNothingNew(t, before)
	requireEmpty(t, o.Dir)
}

func TestLeftoversOfAKilledProcess(t *testing.T) {
	before := takeStock(t)
	o := options(t)
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), environmentOwner+"="+o.Dir, environmentBinaries+"="+o.Binaries)
	owner.Stderr = t.Output()
	output, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	t.Cleanup(func() { _ = owner.Process.Kill() })
	line, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "up: <nil>\n", line)
	require.NotEmpty(t, takeStock(t).since(before))

	require.NoError(t, owner.Process.Kill())
	require.Error(t, owner.Wait())
	require.Eventually(t, func() bool {
		return len(stock{theirs: strangers(t)}.since(before)) == 0
	}, soon, pollInterval, "processes end by themselves")

	other := options(t)
	provider := open(t, other)
	requireEmpty(t, o.Dir)
	require.NoError(t, provider.Close())
	requireNothingNew(t, before)
	requireEmpty(t, other.Dir)
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func withBrokenKubelet(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs() {
		require.NoError(t, os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)))
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "kubelet")))
	require.NoError(t, os.Symlink("/bin/false", filepath.Join(dir, "kubelet")))
	return dir
}

// stock lists the resources of this machine that clusters can leave behind.
type stock struct {
	ours   []string // cgroups, directories, links and packet rules, which no other program creates
	theirs []string // processes in other namespaces and mounts, which other programs also create for a moment
}

func takeStock(t *testing.T) stock {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	hierarchy, err := findHierarchy(cgroupMount)
	require.NoError(t, err)
	s := stock{ours: hierarchy.namesWithPrefix("muster-e2e"), theirs: append(strangers(t), strings.Split(string(mounts), "\n")...)}
	s.ours = append(s.ours, strings.Split(output(t, "ip", "-brief", "link")+output(t, "iptables-save"), "\n")...)
	for _, dir := range []string{"/run", "/var/lib", "/var/log", "/etc/cni/net.d", "/run/netns"} {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			s.ours = append(s.ours, filepath.Join(dir, entry.Name()))
		}
	}
	s.ours = slices.DeleteFunc(s.ours, func(path string) bool { return slices.Contains(lockFiles(), path) || path == "/run/xtables.lock" })
	return s
}

// since lists the resources that did not exist before.
func (s stock) since(before stock) []string {
	known := slices.Concat(before.ours, before.theirs)
	return slices.DeleteFunc(slices.Concat(s.ours, s.theirs), func(line string) bool { return slices.Contains(known, line) })
}

// requireNothingNew checks immediately for resources that only clusters create, because Close must have removed them. It waits for
// those that other programs also create.
func requireNothingNew(t *testing.T, before stock) {
	t.Helper()
	require.Empty(t, stock{ours: takeStock(t).ours}.since(before))
	var left []string
	require.Eventually(t, func() bool {
		left = takeStock(t).since(before)
		return len(left) == 0
	}, soon, pollInterval, "left: %v", &left)
}

// strangers are the processes in other pid or network namespaces.
func strangers(t *testing.T) []string {
	t.Helper()
	var found []string
	processes, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, process := range processes {
		for _, namespace := range []string{"pid", "net"} {
			theirs, err := os.Readlink(filepath.Join(process, "ns", namespace))
			ours, _ := os.Readlink("/proc/self/ns/" + namespace)
			if err == nil && theirs != ours {
				found = append(found, process)
				break
			}
		}
	}
	return found
}

func output(t *testing.T, args ...string) string {
	t.Helper()
	data, err := command.Run(t.Context(), nil, args...)
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") { // comments of iptables-save contain the time
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
