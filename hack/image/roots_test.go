package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func TestWriteRoots(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run([]string{"roots"}, &out))
	written := certificates(t, out.Bytes())
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			require.Contains(t, written, string(root.Certificate))
		} else {
			require.NotContains(t, written, string(root.Certificate), "a PEM file cannot contain a constraint")
		}
	}
	for der := range written {
		certificate, err := x509.ParseCertificate([]byte(der))
		require.NoError(t, err)
		require.True(t, certificate.IsCA, certificate.Subject)
	}
}

// certificates returns the certificates of a PEM file that contains only certificates.
func certificates(t *testing.T, data []byte) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for len(data) > 0 {
		var block *pem.Block
		block, data = pem.Decode(data)
		require.NotNil(t, block)
		found[string(block.Bytes)] = true
	}
	return found
}

func TestWriteRootsToAFullDisk(t *testing.T) {
	require.ErrorContains(t, writeRoots(fullDisk{}), "certificate authority 1: no space left")
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestRootsModule(t *testing.T) {
	roots := &debug.Module{Path: rootsPath, Version: "v1"}
	found, err := rootsModule(&debug.BuildInfo{Deps: []*debug.Module{{Path: "other"}, roots}})
	require.NoError(t, err)
	require.Same(t, roots, found)

	_, err = rootsModule(&debug.BuildInfo{Deps: []*debug.Module{{Path: "other"}}})
	require.ErrorContains(t, err, rootsPath)
}
