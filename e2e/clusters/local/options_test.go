package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFoldersThatNodesHideAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		refused bool
	}{
		"anywhere":              {Options{Binaries: "/srv/bin", Dir: "/srv/clusters"}, false},
		"clusters in /var/lib":  {Options{Binaries: "/srv/bin", Dir: "/var/lib/clusters"}, true},
		"clusters in /run":      {Options{Binaries: "/srv/bin", Dir: "/run"}, true},
		"binaries in /var/log":  {Options{Binaries: "/var/log/bin", Dir: "/srv/clusters"}, true},
		"only a similar prefix": {Options{Binaries: "/runner/bin", Dir: "/var/library"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.options.checkFolders()
			if test.refused {
				require.ErrorContains(t, err, "choose another folder")
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestWhatIsMissingIsNamedWithTheWayToGetIt(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etcd"), nil, 0o700))
	err := present(dir, []string{"etcd", "kubelet", "kube-proxy"})
	require.ErrorContains(t, err, "has no kubelet, kube-proxy: build them with scripts/kube pods")

	t.Setenv("PATH", dir)
	require.NoError(t, installed([]string{"etcd"}))
	require.ErrorContains(t, installed([]string{"etcd", "containerd", "runc"}), "containerd, runc: run scripts/e2e-deps")

	_, err = cniFolder(dir, "/nowhere")
	require.ErrorContains(t, err, "run scripts/e2e-deps")
}

func TestTheCNIPluginsAreWhereAllOfThemAre(t *testing.T) {
	some, all := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(some, "bridge"), nil, 0o700))
	for _, name := range []string{"bridge", "host-local", "loopback", "portmap"} {
		require.NoError(t, os.WriteFile(filepath.Join(all, name), nil, 0o700))
	}
	found, err := cniFolder(some, all)
	require.NoError(t, err)
	require.Equal(t, all, found)
}

func TestAnythingButRootIsRefused(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("only somebody else than root can see this")
	}
	_, err := New(Options{Binaries: t.TempDir()})
	require.ErrorContains(t, err, "need root")
}
