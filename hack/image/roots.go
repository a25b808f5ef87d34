package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootsPath is the module with the certificate authorities: Mozilla's list, published by the Go project.
const rootsPath = "golang.org/x/crypto/x509roots/fallback"

// writeRoots writes the certificate authorities as PEM, without those that Mozilla trusts only with constraints: a PEM file cannot contain
// a constraint.
func writeRoots(out io.Writer) error {
	count := 0
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		count++
		if err := pem.Encode(out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return fmt.Errorf("certificate authority %d: %w", count, err)
		}
	}
	if count == 0 {
		return errors.New("module " + rootsPath + " has no certificate authority without constraints")
	}
	return nil
}

// rootsModule returns the module with the certificate authorities from the build information of a program.
func rootsModule(program *debug.BuildInfo) (*debug.Module, error) {
	for _, module := range program.Deps {
		if module.Path == rootsPath {
			return module, nil
		}
	}
	return nil, fmt.Errorf("module %s is not part of this program", rootsPath)
}
