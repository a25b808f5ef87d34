package local

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnImageArchiveIsWhatDockerSaveWrites(t *testing.T) {
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

func TestTheSameProgramIsTheSameImage(t *testing.T) {
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
