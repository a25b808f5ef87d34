// Package recording reads the recordings in testdata/wire of what unchanged peers do.
package recording

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// placeholder stands for a time in the recordings.
var placeholder = regexp.MustCompile(`\bTIME-\d+\b`)

// Stages returns the stages of a scene, one for each document of the file.
func Stages[Stage any](t testing.TB, file string) (stages []Stage) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	data = placeholder.ReplaceAll(data, []byte("2026-01-02T12:00:00Z"))
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return stages
		}
		require.NoError(t, err)
		var stage Stage
		require.NoError(t, yaml.Unmarshal(document, &stage))
		stages = append(stages, stage)
	}
}
