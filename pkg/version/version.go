// Package version has the version of Muster from which a binary was built.
package version

import (
	"runtime/debug"
	"strings"
)

const (
	module      = "github.com/muster-fleet/muster"
	development = "dev"
)

// Version is the version of this build, such as v0.3.1, or v0.3.1-4-g1a2b3c4 for a build between releases. scripts/build sets
// it through the linker, from git. Without that it is the version of the module, which Go records in programs that
// embed the hub and in those that go install builds, and "dev" if Go has recorded none. It does not change at run time.
var Version = development

func init() {
	if info, ok := debug.ReadBuildInfo(); ok && Version == development {
		Version = ofModule(info)
	}
}

// ofModule returns the version of the module, which is the main module or a dependency. Modified sources (v0.3.1+dirty, or a module replaced by a
// folder) have no published version.
func ofModule(info *debug.BuildInfo) string {
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version != "" && m.Version != "(devel)" && !strings.Contains(m.Version, "+") {
			return m.Version
		}
	}
	return development
}
