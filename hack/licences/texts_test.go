package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// written makes a folder with files.
func written(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for file, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
	}
	return root
}

func TestEachTextIsPassedOnOnceWithAllItIsOf(t *testing.T) {
	first := written(t, map[string]string{"LICENSE": mit, "NOTICE": "Made by A.", "license.go": "package a", "README.md": "no"})
	second := written(t, map[string]string{
		"LICENSE.txt": strings.ReplaceAll(mit, "\n", "\r\n") + "\n", "PATENTS": "A grant.",
		"forked/LICENSE": "Of somebody else.", "forked/deep/a.go": "package deep", "unused/LICENSE": "Of what is not linked.",
	})
	var out bytes.Buffer
	texts, err := collect([]source{
		{name: "a v1", root: first, folders: []string{first}},
		{name: "b v2", root: second, folders: []string{filepath.Join(second, "forked", "deep")}},
		{name: "a v1", root: first, folders: []string{first}},
	})
	require.NoError(t, err)
	require.NoError(t, write(texts, &out))
	assert.Equal(t, 1, strings.Count(out.String(), "Permission is hereby granted"))
	assert.Contains(t, out.String(), "\na v1: LICENSE\nb v2: LICENSE.txt\n===")
	assert.Contains(t, out.String(), "\na v1: NOTICE\n===")
	assert.Contains(t, out.String(), "\nb v2: forked/LICENSE\n===")
	assert.Contains(t, out.String(), "A grant.")
	assert.NotContains(t, out.String(), "not linked")
	assert.NotContains(t, out.String(), "package a")
}

func TestWhatHasNoLicenceCannotBePassedOn(t *testing.T) {
	_, err := collect([]source{{name: "a v1", root: written(t, map[string]string{"NOTICE": "Made by A."})}})
	assert.ErrorContains(t, err, "a v1: it has no file with a licence")
}

func TestThePackagesOfAModuleAreFoundAndItsOwnComesFirst(t *testing.T) {
	sources, err := parseSources([]byte(`{"Dir":"/go/src/fmt"} {"Dir":"/c/x","Module":{"Path":"b","Replace":{"Path":"c","Version":"v3","Dir":"/c"}}}
		{"Dir":"/a","Module":{"Path":"a","Version":"v1","Dir":"/a"}} {"Dir":"/self","Module":{"Path":"self","Dir":"/self","Main":true}}`))
	require.NoError(t, err)
	assert.Equal(t, []source{
		{name: "self", root: "/self", folders: []string{"/self"}},
		{name: "a v1", root: "/a", folders: []string{"/a"}},
		{name: "c v3", root: "/c", folders: []string{"/c/x"}},
	}, sources)
	_, err = parseSources([]byte("a"))
	assert.Error(t, err)
}

func TestTheTextsOfAProgramAreTheSameEachTimeAndForItsArchitecture(t *testing.T) {
	// The tests of this module have no program with a licence of its own, so it is one of what they are linked with.
	arguments := []string{"texts", "-arch=arm64", ".", "github.com/google/licensecheck", "--", ".", "github.com/google/licensecheck"}
	var first, second bytes.Buffer
	require.NoError(t, run(arguments, &first))
	require.NoError(t, run(arguments, &second))
	assert.Equal(t, first.String(), second.String())
	assert.Contains(t, first.String(), "\ngithub.com/google/licensecheck v0.3.1: LICENSE\n")
	assert.Contains(t, first.String(), "\nGo's own library go1.")
	assert.ErrorContains(t, run([]string{"texts", ".", "./nothing"}, &first), "go list")
}
