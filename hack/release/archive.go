package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name, file string
	mode       int64
}

// writeArchive writes a .tar, .tar.gz or .zip with the given files, NAME=FILE each. Names are sorted; times, owners and modes do not depend on
// the files. muster and files that end in .exe get mode 0755, all others 0644.
func writeArchive(output string, files []string, modified time.Time) error {
	var entries []entry
	for _, file := range files {
		name, path, ok := strings.Cut(file, "=")
		if !ok {
			return fmt.Errorf("%s: a file of an archive is given as NAME=FILE", file)
		}
		entries = append(entries, entry{name: name, file: path, mode: modeOf(name)})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	write := writeTar
	switch {
	case strings.HasSuffix(output, ".zip"):
		write = writeZip
	case strings.HasSuffix(output, ".tar.gz"):
		write = writeTarGzip
	case !strings.HasSuffix(output, ".tar"):
		return fmt.Errorf("%s: an archive ends in .zip, .tar.gz or .tar", output)
	}
	opened, err := os.Create(output)
	if err != nil {
		return err
	}
	return errors.Join(write(opened, entries, modified), opened.Close())
}

func modeOf(name string) int64 {
	if strings.HasSuffix(name, ".exe") || name == "muster" {
		return 0o755
	}
	return 0o644
}

func writeTarGzip(out io.Writer, entries []entry, modified time.Time) error {
	compressed := gzip.NewWriter(out)
	if err := writeTar(compressed, entries, modified); err != nil {
		return err
	}
	return compressed.Close()
}

func writeTar(out io.Writer, entries []entry, modified time.Time) error {
	writer := tar.NewWriter(out)
	for _, e := range entries {
		info, err := os.Stat(e.file)
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: info.Size(), ModTime: modified.UTC(), Format: tar.FormatPAX}
		if err := writer.WriteHeader(header); err != nil {
			return err
		}
		if err := copyFile(writer, e.file); err != nil {
			return err
		}
	}
	return writer.Close()
}

func writeZip(out io.Writer, entries []entry, modified time.Time) error {
	writer := zip.NewWriter(out)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: modified.UTC()}
		header.SetMode(os.FileMode(e.mode))
		part, err := writer.CreateHeader(header)
		if err != nil {
			return err
		}
		if err := copyFile(part, e.file); err != nil {
			return err
		}
	}
	return writer.Close()
}

func copyFile(out io.Writer, file string) error {
	opened, err := os.Open(file)
	if err != nil {
		return err
	}
	defer opened.Close()
	_, err = io.Copy(out, opened)
	return err
}
