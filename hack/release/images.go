package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeImages joins the images in archives of docker save, one for each architecture, to an index, and writes it as an archive of an OCI
// layout. It prints the digest of the index, by which nodes of each architecture find their image.
func writeImages(out io.Writer, output, name string, archives []string, modified time.Time) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, archive := range archives {
		image, err := ociImage(archive)
		if err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			return fmt.Errorf("%s: %w", archive, err)
		}
		platform := &v1.Platform{OS: config.OS, Architecture: config.Architecture}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	folder, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	written, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	if err := written.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": name})); err != nil {
		return err
	}
	files, err := filesBelow(folder)
	if err != nil {
		return err
	}
	if err := writeArchive(output, files, modified); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, digest)
	return err
}

// ociImage returns the image of an archive with the media types of OCI. Its layers are compressed here, so that the digest does not depend
// on the program that built the image.
func ociImage(archive string) (v1.Image, error) {
	source, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return nil, err
	}
	config, err := source.ConfigFile()
	if err != nil {
		return nil, err
	}
	layers, err := source.Layers()
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, layer := range layers {
		compressed, err := tarball.LayerFromOpener(layer.Uncompressed, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, compressed); err != nil {
			return nil, err
		}
	}
	return mutate.ConfigFile(image, config)
}

// filesBelow lists the files of a folder as NAME=FILE.
func filesBelow(folder string) (files []string, err error) {
	err = filepath.WalkDir(folder, func(path string, found fs.DirEntry, err error) error {
		if err != nil || found.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		files = append(files, filepath.ToSlash(name)+"="+path)
		return err
	})
	return files, err
}
