// Package golden compares texts with files. The flag -update of go test writes the files.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// Equal checks that a file, such as testdata/x.yaml, has this text.
func Equal(t testing.TB, file, got string) {
	t.Helper()
	assert.Equal(t, Want(t, file, got), got, "if the change is intended, run the test with -update and read the difference")
}

// Want returns the text of a file for tests that compare only a part of it. With -update, it first writes the file.
func Want(t testing.TB, file, got string) string {
	t.Helper()
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run the test with -update")
	return string(want)
}
