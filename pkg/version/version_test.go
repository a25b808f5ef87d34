package version

import (
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOfModule(t *testing.T) {
	other := debug.Module{Path: "example.com/server", Version: "v9.0.0"}
	muster := func(version string) debug.Module { return debug.Module{Path: module, Version: version} }
	replaced := func(by debug.Module) *debug.Module {
		m := muster("v0.3.1")
		m.Replace = &by
		return &m
	}
	dependency := muster("v0.3.1")
	for name, row := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"go install of a release":                {debug.BuildInfo{Main: muster("v0.3.1"), Deps: []*debug.Module{&other}}, "v0.3.1"},
		"a build without a version":              {debug.BuildInfo{Main: muster("(devel)")}, "dev"},
		"a build of a modified checkout":         {debug.BuildInfo{Main: muster("v0.3.1+dirty")}, "dev"},
		"embedded in another program":            {debug.BuildInfo{Main: other, Deps: []*debug.Module{&other, &dependency}}, "v0.3.1"},
		"embedded, replaced by another version":  {debug.BuildInfo{Main: other, Deps: []*debug.Module{replaced(debug.Module{Path: "example.com/fork", Version: "v0.4.0"})}}, "v0.4.0"},
		"embedded, replaced by a folder":         {debug.BuildInfo{Main: other, Deps: []*debug.Module{replaced(debug.Module{Path: "../muster"})}}, "dev"},
		"a program that has nothing of Muster's": {debug.BuildInfo{Main: other}, "dev"},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, row.want, ofModule(&row.info)) })
	}
}

// Go ignores a misspelt name in -ldflags -X, and every release would call itself "dev".
func TestVersion(t *testing.T) {
	assert.Equal(t, "dev", Version, "a test has no version")
	program := filepath.Join(t.TempDir(), "program")
	build := exec.Command("go", "build", "-o", program,
		"-ldflags", "-X github.com/muster-fleet/muster/pkg/version.Version=v1.2.3", "./testdata/print")
	output, err := build.CombinedOutput()
	require.NoError(t, err, string(output))
	output, err = exec.Command(program).Output()
	require.NoError(t, err)
	assert.Equal(t, "v1.2.3\n", string(output), "as scripts/build sets it")
}
