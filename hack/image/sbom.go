package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// specification is the newest version of CycloneDX that common scanners read.
const specification = cdx.SpecVersion1_6

// program is a Go program in an image.
type program struct {
	build  *debug.BuildInfo
	sha256 string
}

func inspect(file string) (*program, error) {
	if file == "" {
		return nil, errors.New("no program: pass -program FILE")
	}
	build, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s has no build information of Go: %w", file, err)
	}
	sum, err := sumOf(file)
	if err != nil {
		return nil, err
	}
	return &program{build: build, sha256: sum}, nil
}

func sumOf(file string) (string, error) {
	opened, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer opened.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, opened); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// writeSBOM writes the software bill of materials of a program and, unless roots is nil, of the certificate authorities in its image.
func writeSBOM(out io.Writer, inside *program, roots *debug.Module, version string, created time.Time) error {
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: created.UTC().Format(time.RFC3339),
		Component: subject(inside, version),
	}
	components := append([]cdx.Component{standardLibrary(inside.build)}, modules(inside.build)...)
	if roots != nil {
		components = append(components, authorities(roots))
	}
	bom.Components = &components
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(bom, specification)
}

// subject is the program itself. Its build information has no version if it was built from a checkout.
func subject(inside *program, version string) *cdx.Component {
	main := inside.build.Main.Path
	url := packageURL(main, version)
	if command := strings.TrimPrefix(inside.build.Path, main+"/"); command != inside.build.Path {
		url += "#" + command
	}
	return &cdx.Component{
		BOMRef:     url,
		Type:       cdx.ComponentTypeApplication,
		Name:       path.Base(inside.build.Path),
		Version:    version,
		PackageURL: url,
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: inside.sha256}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
}

// standardLibrary is Go's standard library as a module, because most advisories about Go programs are about it.
func standardLibrary(build *debug.BuildInfo) cdx.Component {
	return library("std", strings.TrimPrefix(build.GoVersion, "go"), "")
}

func modules(build *debug.BuildInfo) []cdx.Component {
	components := make([]cdx.Component, 0, len(build.Deps))
	for _, module := range build.Deps {
		components = append(components, moduleComponent(cmp.Or(module.Replace, module)))
	}
	return components
}

func moduleComponent(module *debug.Module) cdx.Component {
	return library(module.Path, module.Version, module.Sum)
}

// authorities is the module with the certificate authorities, so that scanners see its version.
func authorities(module *debug.Module) cdx.Component {
	component := moduleComponent(module)
	component.Description = "the certificate authorities in /etc/ssl/certs/ca-certificates.crt"
	return component
}

// library describes a Go module. The sum from go.sum is a hash of the hashes of all files, so it is a property and not a hash of the
// component, which a scanner would compare.
func library(name, version, sum string) cdx.Component {
	url := packageURL(name, version)
	component := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: url}
	if sum != "" {
		component.Properties = &[]cdx.Property{{Name: "go.sum", Value: sum}}
	}
	return component
}

// packageURL is the name with which scanners find a module. A plus sign, as in +incompatible, would be read as a space.
func packageURL(name, version string) string {
	url := "pkg:golang/" + name
	if version != "" {
		url += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return url
}
