package main

import (
	"bufio"
	_ "embed"
	"fmt"
	"io"
	"os"
	"strings"
	"text/template"
)

//go:embed krew.yaml
var krewTemplate string

// krewPlatform is an archive that the manifest offers.
type krewPlatform struct {
	OS, Arch, Archive, SHA256, Program string
}

// writeKrew fills in the manifest by which krew installs muster as a plugin of kubectl. It offers the archives of muster in a file with
// checksums, in the form of sha256sum.
func writeKrew(out io.Writer, version, checksums string) error {
	opened, err := os.Open(checksums)
	if err != nil {
		return err
	}
	defer opened.Close()
	var platforms []krewPlatform
	for lines := bufio.NewScanner(opened); lines.Scan(); {
		sum, archive, _ := strings.Cut(lines.Text(), "  ")
		base, ok := strings.CutPrefix(archive, "muster_"+version+"_")
		if !ok {
			continue
		}
		base = strings.TrimSuffix(strings.TrimSuffix(base, ".zip"), ".tar.gz")
		system, architecture, ok := strings.Cut(base, "_")
		if !ok || strings.Contains(architecture, ".") {
			continue // an SBOM
		}
		program := "muster"
		if system == "windows" {
			program = "muster.exe"
		}
		platforms = append(platforms, krewPlatform{OS: system, Arch: architecture, Archive: archive, SHA256: sum, Program: program})
	}
	if len(platforms) == 0 {
		return fmt.Errorf("%s: no archive of muster %s is in it", checksums, version)
	}
	manifest, err := template.New("krew.yaml").Parse(krewTemplate)
	if err != nil {
		return err
	}
	return manifest.Execute(out, struct {
		Version   string
		Platforms []krewPlatform
	}{version, platforms})
}
