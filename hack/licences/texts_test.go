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

// written creates a directory with files.
func written(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for file, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
	}
	return root
}

func TestCollect(t *testing.T) {
	first := written(t, map[string]string{"LICENSE": mit, "NOTICE": "Made by A.", "license.go": "package a", "README.md": "no"})
	second := written(t, map[string]string{
		"LICENSE.txt": strings.ReplaceAll(mit, "\n", "\r\n") + "\n", "PATENTS": "A grant.",
		"forked/LICENSE": "Of somebody else.", "forked/deep/a.go": "package deep", "unused/LICENSE": "Of what is not linked.",
	})
	texts, err := collect([]*module{
		{Path: "a", Version: "v1", Dir: first, packages: []string{first}},
		{Path: "b", Version: "v2", Dir: second, packages: []string{filepath.Join(second, "forked", "deep")}},
		{Path: "a", Version: "v1", Dir: first, packages: []string{first}},
	})
	require.NoError(t, err)
	files := map[string][]string{}
	for _, text := range texts {
		files[text.text] = text.files
	}
	assert.Equal(t, map[string][]string{
		strings.TrimRight(mit, "\n"): {"a v1: LICENSE", "b v2: LICENSE.txt"},
		"Made by A.":                 {"a v1: NOTICE"},
		"A grant.":                   {"b v2: PATENTS"},
		"Of somebody else.":          {"b v2: forked/LICENSE"},
	}, files)

	_, err = collect([]*module{{Path: "a", Version: "v1", Dir: written(t, map[string]string{"NOTICE": "Made by A."})}})
	assert.ErrorContains(t, err, "a v1: it has no file with a licence")
}

func TestParseList(t *testing.T) {
	modules, err := parseList([]byte(`{"Dir":"/go/src/fmt"} {"Dir":"/c/x","Module":{"Path":"b","Replace":{"Path":"c","Version":"v3","Dir":"/c"}}}
		{"Dir":"/a","Module":{"Path":"a","Version":"v1","Dir":"/a"}} {"Dir":"/self","Module":{"Path":"self","Dir":"/self","Main":true}}`))
	require.NoError(t, err)
	assert.Equal(t, []*module{
		{Path: "self", Dir: "/self", Main: true, packages: []string{"/self"}},
		{Path: "a", Version: "v1", Dir: "/a", packages: []string{"/a"}},
		{Path: "c", Version: "v3", Dir: "/c", packages: []string{"/c/x"}},
	}, modules)
	_, err = parseList([]byte("a"))
	assert.Error(t, err)
}

func TestWriteTexts(t *testing.T) {
	// This module has no licence file, so the package is one of a dependency.
	arguments := []string{"texts", "-arch=arm64", ".", "github.com/google/licensecheck", "--", ".", "github.com/google/licensecheck"}
	var first, second bytes.Buffer
	require.NoError(t, run(arguments, &first))
	require.NoError(t, run(arguments, &second))
	assert.Equal(t, first.String(), second.String())
	assert.Contains(t, first.String(), "\ngithub.com/google/licensecheck v0.3.1: LICENSE\n")
	assert.Contains(t, first.String(), "\nGo's standard library go1.")
	assert.ErrorContains(t, run([]string{"texts", ".", "./nothing"}, &first), "go list")
}
