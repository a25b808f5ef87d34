package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPackageErrors(t *testing.T) {
	tests := map[string]struct {
		arguments []string
		want      string
	}{
		"an unknown option":  {[]string{"--registry", "x"}, "--registry is unknown"},
		"an option's value":  {[]string{"--tag"}, "--tag needs a value"},
		"a tag with a colon": {[]string{"--tag", "fleet:dev"}, "--tag fleet:dev: a tag has"},
		"no tag":             {[]string{"--tag", ""}, "a tag has"},
		"an unknown engine":  {[]string{"--engine", "kaniko"}, "--engine kaniko: it must be buildah, docker or none"},
		"a missing engine":   {[]string{"--engine", "docker"}, "--engine docker: it is not installed"},
		"no engine":          {nil, "neither buildah nor a running docker was found: apt-get install"},
		"no architecture":    {[]string{"--engine", "none", "--arch", ","}, "--arch names no architecture"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			command := exec.Command("/bin/bash", append([]string{"scripts/package", "--output", t.TempDir()}, test.arguments...)...)
			command.Dir = repository
			command.Env = []string{"PATH=" + pathWithoutEngines(t), "HOME=" + os.Getenv("HOME")}
			said, err := command.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(said), test.want)
			require.NotContains(t, string(said), "build:")
		})
	}
}

// pathWithoutEngines is a folder with the programs that the script needs, and no container engine.
func pathWithoutEngines(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, program := range []string{"bash", "date", "dirname", "env", "git", "go", "mktemp", "rm", "sed"} {
		path, err := exec.LookPath(program)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(folder, program)))
	}
	return folder
}

var copied = regexp.MustCompile(`(?m)^COPY (\S+) (\S+)$`)

// docker build gets only the files that .dockerignore permits, of the requested architecture.
func TestDockerfiles(t *testing.T) {
	ignore, err := os.ReadFile(filepath.Join(repository, ".dockerignore"))
	require.NoError(t, err)
	require.Contains(t, string(ignore), "\n*\n!bin/linux-*\n")
	for _, name := range []string{"Dockerfile.controller", "Dockerfile.agent"} {
		data, err := os.ReadFile(filepath.Join(repository, name))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count("\n"+string(data), "\nFROM "))
		require.Contains(t, string(data), "\nFROM scratch\n")
		found := copied.FindAllStringSubmatch(string(data), -1)
		require.Len(t, found, 4)
		for _, one := range found {
			assert.True(t, strings.HasPrefix(one[1], "bin/linux-${TARGETARCH}/"), one[0])
		}
	}
}

// The program that writes the certificate authorities and the SBOMs is a module of its own, which `go test ./...` does not include.
func TestImageModule(t *testing.T) {
	command := exec.Command("go", "test", ".")
	command.Dir = filepath.Join(repository, "hack", "image")
	said, err := command.CombinedOutput()
	require.NoError(t, err, string(said))
}
