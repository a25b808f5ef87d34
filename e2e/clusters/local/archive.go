package local

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"runtime"
)

// writeImage writes an archive, as docker save does, of an image that consists of one static program.
func writeImage(w io.Writer, image string, program []byte) error {
	const entrypoint = "/program"
	var layer bytes.Buffer
	if err := writeTar(&layer, file{name: entrypoint[1:], mode: 0o755, data: program}); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{entrypoint}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer.Bytes())}},
	})
	if err != nil {
		return err
	}
	configName := digest(config) + ".json"
	manifest, err := json.Marshal([]map[string]any{{
		"Config": configName, "RepoTags": []string{image}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	return writeTar(w,
		file{name: "layer.tar", mode: 0o644, data: layer.Bytes()},
		file{name: configName, mode: 0o644, data: config},
		file{name: "manifest.json", mode: 0o644, data: manifest})
}

type file struct {
	name string
	mode int64
	data []byte
}

func writeTar(w io.Writer, files ...file) error {
	archive := tar.NewWriter(w)
	for _, f := range files {
		if err := archive.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return err
		}
		if _, err := archive.Write(f.data); err != nil {
			return err
		}
	}
	return archive.Close()
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
