// Package version says which version of Muster a binary is.
package version

// Version is the version of this build, such as v0.3.1 or v0.3.1-4-g1a2b3c4 for a build between releases. scripts/build sets it
// through the linker, from git; it is "dev" in every other build. Nothing assigns it at run time.
var Version = "dev"
