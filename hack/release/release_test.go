package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const created = "1000000000"

func TestArchive(t *testing.T) {
	for _, kind := range []string{".tar", ".tar.gz", ".zip"} {
		t.Run(kind, func(t *testing.T) {
			first, second := filepath.Join(t.TempDir(), "a"+kind), filepath.Join(t.TempDir(), "b"+kind)
			program, licence := write(t, "program", 0o600), write(t, "licence", 0o600)
			require.NoError(t, run([]string{"archive", "-created", created, first, "muster=" + program, "LICENSE=" + licence}, io.Discard))
			program, licence = write(t, "program", 0o755), write(t, "licence", 0o444)
			require.NoError(t, os.Chtimes(program, time.Now(), time.Now().Add(time.Hour)))
			require.NoError(t, run([]string{"archive", "-created", created, second, "LICENSE=" + licence, "muster=" + program}, io.Discard))

			data, err := os.ReadFile(first)
			require.NoError(t, err)
			again, err := os.ReadFile(second)
			require.NoError(t, err)
			require.Equal(t, data, again, "times, modes and the order of the arguments do not matter")
			require.Equal(t, []string{"LICENSE -rw-r--r-- 2001 licence", "muster -rwxr-xr-x 2001 program"}, listing(t, kind, data))
		})
	}
}

func write(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(text), mode))
	return file
}

func listing(t *testing.T, kind string, data []byte) (lines []string) {
	t.Helper()
	add := func(info os.FileInfo, content io.Reader) {
		text, err := io.ReadAll(content)
		require.NoError(t, err)
		lines = append(lines, strings.Join([]string{info.Name(), info.Mode().String(), info.ModTime().UTC().Format("2006"), string(text)}, " "))
	}
	if kind == ".zip" {
		archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		require.NoError(t, err)
		for _, file := range archive.File {
			opened, err := file.Open()
			require.NoError(t, err)
			add(file.FileInfo(), opened)
		}
		return lines
	}
	var from io.Reader = bytes.NewReader(data)
	if kind == ".tar.gz" {
		decompressed, err := gzip.NewReader(from)
		require.NoError(t, err)
		from = decompressed
	}
	for archive := tar.NewReader(from); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		require.NoError(t, err)
		add(header.FileInfo(), archive)
	}
}

func TestImages(t *testing.T) {
	const reference = "docker.io/muster-fleet/fleet:v1.2.3"
	amd64, arm64 := dockerArchive(t, "amd64"), dockerArchive(t, "arm64")
	var digests [2]strings.Builder
	var outputs [2]string
	for i := range 2 {
		outputs[i] = filepath.Join(t.TempDir(), "fleet.oci.tar")
		require.NoError(t, run([]string{"images", "-created", created, "-name", reference, outputs[i], amd64, arm64}, &digests[i]))
	}
	first, err := os.ReadFile(outputs[0])
	require.NoError(t, err)
	second, err := os.ReadFile(outputs[1])
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.Equal(t, digests[0].String(), digests[1].String())

	folder := t.TempDir()
	unpack(t, first, folder)
	root, err := layout.ImageIndexFromPath(folder)
	require.NoError(t, err)
	manifest, err := root.IndexManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Manifests, 1)
	require.Equal(t, digests[0].String(), manifest.Manifests[0].Digest.String()+"\n")
	require.Equal(t, reference, manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
	index, err := root.ImageIndex(manifest.Manifests[0].Digest)
	require.NoError(t, err)
	manifest, err = index.IndexManifest()
	require.NoError(t, err)
	require.Equal(t, types.OCIImageIndex, manifest.MediaType)
	require.Len(t, manifest.Manifests, 2)
	for i, archive := range []string{amd64, arm64} {
		requireSame(t, index, manifest.Manifests[i], archive)
	}
}

// requireSame requires that the image of an index has the configuration and files of the image in the archive.
func requireSame(t *testing.T, index v1.ImageIndex, descriptor v1.Descriptor, archive string) {
	t.Helper()
	require.Equal(t, types.OCIManifestSchema1, descriptor.MediaType)
	image, err := index.Image(descriptor.Digest)
	require.NoError(t, err)
	source, err := tarball.ImageFromPath(archive, nil)
	require.NoError(t, err)
	want, err := source.ConfigFile()
	require.NoError(t, err)
	got, err := image.ConfigFile()
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, want.Architecture, descriptor.Platform.Architecture)
	layers, err := image.Layers()
	require.NoError(t, err)
	require.Len(t, layers, len(want.RootFS.DiffIDs))
	for i, layer := range layers {
		kind, err := layer.MediaType()
		require.NoError(t, err)
		require.Equal(t, types.OCILayer, kind)
		content, err := layer.DiffID()
		require.NoError(t, err)
		require.Equal(t, want.RootFS.DiffIDs[i], content)
	}
}

func dockerArchive(t *testing.T, architecture string) string {
	t.Helper()
	image, err := random.Image(1000, 2)
	require.NoError(t, err)
	config, err := image.ConfigFile()
	require.NoError(t, err)
	config.OS, config.Architecture, config.Config.User = "linux", architecture, "1000:1000"
	image, err = mutate.ConfigFile(image, config)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "image.tar")
	require.NoError(t, tarball.WriteToFile(file, name.MustParseReference("muster-fleet/fleet:v1.2.3"), image))
	return file
}

func unpack(t *testing.T, data []byte, folder string) {
	t.Helper()
	for archive := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		target := filepath.Join(folder, filepath.FromSlash(header.Name))
		require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o755))
		content, err := io.ReadAll(archive)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(target, content, 0o644))
	}
}

func TestKrew(t *testing.T) {
	sums := write(t, strings.Join([]string{
		"aa  fleet-v1.2.3.oci.tar", "bb  muster_v1.2.3_linux_amd64.cdx.json", "cc  muster_v1.2.3_linux_amd64.tar.gz", "dd  muster_v1.2.3_windows_arm64.zip",
	}, "\n"), 0o644)
	var out strings.Builder
	require.NoError(t, run([]string{"krew", "-version", "v1.2.3", "-checksums", sums}, &out))
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				Selector struct {
					MatchLabels map[string]string `yaml:"matchLabels"`
				}
				URI, SHA256, Bin string
				Files            []struct{ From, To string }
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(out.String()), &manifest))
	require.Equal(t, "v1.2.3", manifest.Spec.Version)
	require.Len(t, manifest.Spec.Platforms, 2)
	linux, windows := manifest.Spec.Platforms[0], manifest.Spec.Platforms[1]
	require.Equal(t, map[string]string{"os": "linux", "arch": "amd64"}, linux.Selector.MatchLabels)
	require.Equal(t, "https://github.com/muster-fleet/muster/releases/download/v1.2.3/muster_v1.2.3_linux_amd64.tar.gz", linux.URI)
	require.Equal(t, "cc", linux.SHA256)
	require.Equal(t, "muster.exe", windows.Bin)
	require.Equal(t, "muster.exe", windows.Files[0].From)

	require.ErrorContains(t, run([]string{"krew", "-version", "v2.0.0", "-checksums", sums}, io.Discard), "no archive of muster v2.0.0")
}

func TestUsage(t *testing.T) {
	for _, arguments := range [][]string{nil, {"archive"}, {"images", "out", "in"}, {"sign"}, {"krew", "x"}} {
		require.ErrorContains(t, run(arguments, io.Discard), "usage: release archive", "%v", arguments)
	}
	require.ErrorContains(t, run([]string{"archive", "a.rar", "x=y"}, io.Discard), "an archive ends in")
}
