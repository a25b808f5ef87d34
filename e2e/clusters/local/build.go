package local

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	"github.com/muster-fleet/muster/e2e/clusters/command"
)

// buildHelpers builds our own programs into dir: the first process of a node, the second address of its API server, and pause.
func buildHelpers(ctx context.Context, dir string) error {
	const clusters = "github.com/muster-fleet/muster/e2e/clusters/"
	return command.Build(ctx, command.Run, dir, clusters+"local/init", clusters+"front", clusters+"local/pause")
}

// pauseArchive makes the image of the pause container.
func pauseArchive(helpers string) ([]byte, error) {
	program, err := os.ReadFile(filepath.Join(helpers, "pause"))
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	err = writeImage(&archive, pauseImage, program)
	return archive.Bytes(), err
}
