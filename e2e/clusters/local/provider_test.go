package local

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHiddenDirectoriesAreRefused(t *testing.T) {
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
				require.ErrorContains(t, err, "choose another directory")
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestMissingPrograms(t *testing.T) {
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

func TestCNIDirectory(t *testing.T) {
	some, all := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(some, "bridge"), nil, 0o700))
	for _, name := range []string{"bridge", "host-local", "loopback", "portmap"} {
		require.NoError(t, os.WriteFile(filepath.Join(all, name), nil, 0o700))
	}
	found, err := cniFolder(some, all)
	require.NoError(t, err)
	require.Equal(t, all, found)
}

func TestRootIsRequired(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("runs as root")
	}
	_, err := New(Options{Binaries: t.TempDir()})
	require.ErrorContains(t, err, "need root")
}

func TestWriteImage(t *testing.T) {
	var archive bytes.Buffer
	require.NoError(t, writeImage(&archive, "localhost/some/image:1", []byte("program")))
	files := untar(t, archive.Bytes())

	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	require.NoError(t, json.Unmarshal(files["manifest.json"], &manifest))
	require.Len(t, manifest, 1)
	require.Equal(t, []string{"localhost/some/image:1"}, manifest[0].RepoTags)
	require.Equal(t, digest(files[manifest[0].Config])+".json", manifest[0].Config)

	var config struct {
		OS     string
		Config struct{ Entrypoint []string }
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	require.NoError(t, json.Unmarshal(files[manifest[0].Config], &config))
	require.Equal(t, "linux", config.OS)
	require.Equal(t, []string{"/program"}, config.Config.Entrypoint)
	require.Len(t, manifest[0].Layers, 1)
	layer := files[manifest[0].Layers[0]]
	require.Equal(t, []string{"sha256:" + digest(layer)}, config.Rootfs.DiffIDs)
	require.Equal(t, map[string][]byte{"program": []byte("program")}, untar(t, layer))
}

func TestWriteImageIsReproducible(t *testing.T) {
	var one, other bytes.Buffer
	require.NoError(t, writeImage(&one, "image:1", []byte("program")))
	require.NoError(t, writeImage(&other, "image:1", []byte("program")))
	require.Equal(t, one.Bytes(), other.Bytes())
}

func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	reader := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[header.Name], err = io.ReadAll(reader)
		require.NoError(t, err)
	}
}

func TestCopyFiles(t *testing.T) {
	from := files(t, map[string]string{"kubelet.log": "a", "default_pod_1/container/0.log": "b"})
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(from, "link.log")))
	to := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, copyFiles(from, to))
	require.Equal(t, "a", content(t, to, "kubelet.log"))
	require.Equal(t, "b", content(t, to, "default_pod_1/container/0.log"))
	require.NoFileExists(t, filepath.Join(to, "link.log"))
}

func TestCopyMissingDirectory(t *testing.T) {
	require.NoError(t, copyFiles(filepath.Join(t.TempDir(), "missing"), t.TempDir()))
}
