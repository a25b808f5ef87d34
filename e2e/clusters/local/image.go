package local

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// load sends an archive to containerd as a stream, because the node does not see all directories of this machine.
func (c *cluster) load(ctx context.Context, archive io.Reader) error {
	return c.ctr(ctx, archive, "images", "import", "-")
}

// loadPause imports the pause image before the first pod, because containerd would otherwise pull it from a registry.
func (c *cluster) loadPause(ctx context.Context) error {
	archive, err := pauseArchive(c.node.system.helpers)
	if err != nil {
		return err
	}
	return c.load(ctx, bytes.NewReader(archive))
}

// ctr runs containerd's client on the node, in the containerd namespace of the kubelet.
func (c *cluster) ctr(ctx context.Context, input io.Reader, args ...string) error {
	p, err := c.running()
	if err != nil {
		return err
	}
	_, err = command.Run(ctx, input, onNode(p.Pid(), append([]string{"ctr", "--namespace=k8s.io"}, args...)...)...)
	return err
}

// buildHelpers builds the helper programs into dir: the first process of a node, the proxy at the second address of its API server, and
// pause.
func buildHelpers(ctx context.Context, dir string) error {
	const clusters = "github.com/muster-fleet/muster/e2e/clusters/"
	return command.Build(ctx, command.Run, dir, clusters+"local/init", clusters+"front", clusters+"local/pause")
}

// pauseArchive is the image of the pause container.
func pauseArchive(helpers string) ([]byte, error) {
	program, err := os.ReadFile(filepath.Join(helpers, "pause"))
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	err = writeImage(&archive, pauseImage, program)
	return archive.Bytes(), err
}

// writeImage writes an image with one static program, in the format of docker save.
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
