package packaging

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// image is the content of an image archive.
type image struct {
	names  []string
	id     string // digest of the configuration, which has the digests of the layers
	config imageConfig
	// files are those of all layers, by their paths.
	files map[string]file
}

type file struct {
	header *tar.Header
	data   []byte
}

// imageConfig is the part of the configuration of an image that the tests check.
type imageConfig struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       struct {
		User       string            `json:"User"`
		Env        []string          `json:"Env"`
		Entrypoint []string          `json:"Entrypoint"`
		Cmd        []string          `json:"Cmd"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// manifest is the entry of an archive's manifest.json for one image.
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// readImage reads an archive in the format of docker save.
func readImage(t *testing.T, archive string) image {
	t.Helper()
	opened, err := os.Open(archive)
	require.NoError(t, err)
	defer opened.Close()
	parts := readTar(t, opened)

	var manifests []manifest
	require.NoError(t, json.Unmarshal(parts["manifest.json"].data, &manifests))
	require.Len(t, manifests, 1)
	found := image{names: manifests[0].RepoTags, id: strings.TrimSuffix(manifests[0].Config, ".json"), files: map[string]file{}}
	require.NoError(t, json.Unmarshal(parts[manifests[0].Config].data, &found.config))
	for _, layer := range manifests[0].Layers {
		for path, content := range readTar(t, bytes.NewReader(parts[layer].data)) {
			found.files[path] = content
		}
	}
	return found
}

func readTar(t *testing.T, from io.Reader) map[string]file {
	t.Helper()
	files := map[string]file{}
	for reader := tar.NewReader(from); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		data, err := io.ReadAll(reader)
		require.NoError(t, err)
		files[strings.TrimSuffix(header.Name, "/")] = file{header: header, data: data}
	}
}

// unpack writes the files of an image below a folder, as they would be in a container.
func (i image) unpack(t *testing.T, folder string) {
	t.Helper()
	for path, content := range i.files {
		target := filepath.Join(folder, path)
		if content.header.FileInfo().IsDir() {
			require.NoError(t, os.MkdirAll(target, 0o755))
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o755))
		require.NoError(t, os.WriteFile(target, content.data, content.header.FileInfo().Mode().Perm()))
	}
}

// listing maps the files of an image to their modes.
func (i image) listing() map[string]string {
	lines := map[string]string{}
	for path, content := range i.files {
		lines[path] = content.header.FileInfo().Mode().String()
	}
	return lines
}

// copyRepository copies a checkout without its history and build results.
func copyRepository(t *testing.T, to string) {
	t.Helper()
	entries, err := os.ReadDir(repository)
	require.NoError(t, err)
	for _, entry := range entries {
		switch name := entry.Name(); {
		case name == ".git" || name == "bin" || name == "dist":
		case entry.IsDir():
			require.NoError(t, os.CopyFS(filepath.Join(to, name), os.DirFS(filepath.Join(repository, name))))
		default:
			copyFile(t, filepath.Join(repository, name), filepath.Join(to, name))
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, fs.FileMode(0o644)))
}
