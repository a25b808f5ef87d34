package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTailReturnsTheLastLines(t *testing.T) {
	tests := map[string]struct {
		content string
		want    string
	}{
		"empty":                        {"", ""},
		"fewer lines than asked for":   {"a\n", "a"},
		"more lines than asked for":    {"a\nb\nc\n", "b\nc"},
		"blank lines at the end":       {"a\nb\n\n\n", "a\nb"},
		"no newline at the end":        {"a\nb\nc", "b\nc"},
		"more than the window can see": {strings.Repeat("x", tailWindow) + "\nb\nc\n", "b\nc"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			require.NoError(t, os.WriteFile(path, []byte(test.content), 0o600))
			require.Equal(t, test.want, Tail(path, 2))
		})
	}
}

func TestTailOfAMissingLogSaysSo(t *testing.T) {
	require.Contains(t, Tail("/nowhere/etcd.log", 2), "/nowhere/etcd.log")
}
