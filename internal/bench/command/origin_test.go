package command

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAFieldIsTheFirstOfItsName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpuinfo")
	require.NoError(t, os.WriteFile(file, []byte("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: another\n"), 0o600))
	assert.Equal(t, "A CPU @ 2 GHz", field(file, "model name"))
	assert.Empty(t, field(file, "model"))
	assert.Empty(t, field(file+"-gone", "model name"))
}

func TestAProgramSaysWhatItWasBuiltFrom(t *testing.T) {
	program := filepath.Join(t.TempDir(), "hub")
	says := func(text string) string {
		require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+text), 0o700))
		return version(program)
	}
	assert.Equal(t, "v1.2-3-gabc-dirty", says("echo hub version v1.2-3-gabc-dirty"))
	assert.Empty(t, says("true"))
	assert.Empty(t, says("echo v1; exit 1"))
	assert.Empty(t, version("/nowhere"))
	assert.Contains(t, machine(), "CPUs")
	assert.Contains(t, goVersion(), "go")
}
