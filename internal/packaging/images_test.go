// Package packaging tests the images that scripts/package builds: their content, and that two builds are identical.
package packaging

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// repository is the root of the repository, from the folder of this package.
const repository = "../.."

const (
	version  = "v1.2.3-test"
	revision = "0123456789abcdef0123456789abcdef01234567"
	epoch    = "1000000000"
	created  = "2001-09-09T01:46:40Z"
)

// wanted is an image, and the value of a chart with its name.
type wanted struct {
	name, program string
	chart, value  string
}

var images = []wanted{
	{name: "fleet", program: "fleetcontroller", chart: "fleet", value: "image"},
	{name: "fleet-agent", program: "fleetagent", chart: "fleet-agent", value: "image"},
	{name: "fleet-agent", program: "fleetagent", chart: "fleet", value: "agentImage"},
}

// The second build has another folder, umask, time zone and GOFLAGS than the first, as on another machine.
func TestImages(t *testing.T) {
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("buildah is not installed, so no image can be built here: apt-get install --no-install-recommends buildah")
	}
	checkout, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "some", "other", "place")
	copyRepository(t, checkout)
	require.NoError(t, os.CopyFS(elsewhere, os.DirFS(checkout)))
	first := build(t, checkout, "umask 022", "GOFLAGS=", "TZ=UTC")
	second := build(t, elsewhere, "umask 077", "GOFLAGS=-buildvcs=auto", "TZ=Asia/Tokyo")

	for _, want := range images {
		t.Run(want.value+" of chart "+want.chart, func(t *testing.T) {
			got := readImage(t, filepath.Join(first, want.name+".tar"))
			t.Run("identical when built elsewhere", func(t *testing.T) {
				again := readImage(t, filepath.Join(second, want.name+".tar"))
				require.Equal(t, got.config, again.config)
				require.Equal(t, got.listing(), again.listing())
				require.Equal(t, got.id, again.id)
			})
			t.Run("name as in the chart", func(t *testing.T) { checkName(t, want, got) })
			t.Run("unprivileged user", func(t *testing.T) { checkConfig(t, want, got) })
			t.Run("labels", func(t *testing.T) { checkLabels(t, want, got) })
			t.Run("files", func(t *testing.T) { checkFiles(t, want, got) })
			t.Run("static program", func(t *testing.T) { checkStatic(t, want, got) })
			t.Run("program starts in a root file system with only these files", func(t *testing.T) { checkStart(t, want, got) })
			t.Run("SBOM", func(t *testing.T) { checkSBOM(t, want, got, first) })
			t.Run("licences", func(t *testing.T) { checkLicences(t, want, got) })
			t.Run("certificate authorities", func(t *testing.T) { checkAuthorities(t, got) })
		})
	}
}

// build runs scripts/package of a checkout and returns the folder with the archives.
func build(t *testing.T, checkout, before string, environment ...string) string {
	t.Helper()
	output := t.TempDir()
	started := time.Now()
	command := exec.Command("bash", "-c", before+`; exec scripts/package --engine buildah --output "$1"`, "package", output)
	command.Dir = checkout
	command.Env = append(os.Environ(), "VERSION="+version, "REVISION="+revision, "SOURCE_DATE_EPOCH="+epoch)
	command.Env = append(command.Env, environment...)
	said, err := command.CombinedOutput()
	require.NoError(t, err, string(said))
	t.Logf("built in %s:\n%s", time.Since(started).Round(time.Millisecond), said)
	return output
}

// A node looks for docker.io/NAME when a pod names an image without a registry.
func checkName(t *testing.T, want wanted, got image) {
	data, err := os.ReadFile(filepath.Join(repository, "charts", want.chart, "values.yaml"))
	require.NoError(t, err)
	var values map[string]any
	require.NoError(t, yaml.Unmarshal(data, &values))
	named := values[want.value].(map[string]any)
	require.Equal(t, []string{"docker.io/" + named["repository"].(string) + ":" + named["tag"].(string)}, got.names)
}

func checkConfig(t *testing.T, want wanted, got image) {
	require.Equal(t, "1000:1000", got.config.Config.User, "runAsNonRoot requires a number")
	require.Equal(t, []string{"/usr/bin/" + want.program}, got.config.Config.Entrypoint)
	require.Empty(t, got.config.Config.Cmd)
	require.ElementsMatch(t, []string{"PATH=/usr/bin", "HOME=/tmp"}, got.config.Config.Env, "the Deployments run %s without a path", want.program)
	require.Equal(t, "linux", got.config.OS)
	require.Equal(t, runtime.GOARCH, got.config.Architecture)
	require.Equal(t, created, got.config.Created.Format(time.RFC3339))
}

func checkLabels(t *testing.T, want wanted, got image) {
	labels := got.config.Config.Labels
	require.NotEmpty(t, labels["org.opencontainers.image.description"])
	delete(labels, "org.opencontainers.image.description")
	require.Equal(t, map[string]string{
		"org.opencontainers.image.title":    want.program,
		"org.opencontainers.image.source":   "https://github.com/muster-fleet/muster",
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.revision": revision,
		"org.opencontainers.image.created":  created,
	}, labels)
}

func checkFiles(t *testing.T, want wanted, got image) {
	const folder, data, program = "drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"
	require.Equal(t, map[string]string{
		"etc":                                folder,
		"etc/ssl":                            folder,
		"etc/ssl/certs":                      folder,
		"etc/ssl/certs/ca-certificates.crt":  data,
		"usr":                                folder,
		"usr/bin":                            folder,
		"usr/bin/" + want.program:            program,
		"usr/share":                          folder,
		"usr/share/licenses":                 folder,
		"usr/share/licenses/" + want.program: folder,
		licencesOf(want):                     data,
		"usr/share/sbom":                     folder,
		"usr/share/sbom/" + sbomOf(want):     data,
	}, got.listing())
	for path, content := range got.files {
		require.Zero(t, content.header.Uid, "%s: the user of the image could change it", path)
		require.Zero(t, content.header.Gid, path)
		require.Equal(t, created, content.header.ModTime.UTC().Format(time.RFC3339), path)
	}
}

func sbomOf(want wanted) string { return want.program + ".cdx.json" }

func licencesOf(want wanted) string { return "usr/share/licenses/" + want.program + "/LICENSES" }

// Licences such as MIT, BSD and Apache require that their text and notices are distributed with the program.
func checkLicences(t *testing.T, want wanted, got image) {
	texts := string(got.files[licencesOf(want)].data)
	for _, module := range linked(t, got.files["usr/bin/"+want.program].data) {
		if version, isGo := strings.CutPrefix(module, "std "); !isGo {
			require.Contains(t, texts, "\n"+module+": ")
		} else {
			require.Contains(t, texts, "\nGo's standard library go"+version+": LICENSE\n")
		}
	}
	for _, file := range []string{"LICENSE", "NOTICE"} {
		own, err := os.ReadFile(filepath.Join(repository, file))
		require.NoError(t, err)
		require.Contains(t, texts, "\ngithub.com/muster-fleet/muster: "+file+"\n")
		require.Contains(t, texts, strings.TrimSpace(string(own)))
	}
	require.Contains(t, texts, "\ngolang.org/x/crypto/x509roots/fallback v")
}

func checkStatic(t *testing.T, want wanted, got image) {
	program, err := elf.NewFile(bytes.NewReader(got.files["usr/bin/"+want.program].data))
	require.NoError(t, err)
	for _, part := range program.Progs {
		require.NotEqual(t, elf.PT_INTERP, part.Type, "it requires a dynamic linker, which the image does not have")
	}
	libraries, err := program.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
}

// checkStart runs the program as the user of the image, in a root file system with only the files of the image.
func checkStart(t *testing.T, want wanted, got image) {
	if os.Getuid() != 0 {
		t.Skip("only root can give a program another root file system")
	}
	root := t.TempDir()
	got.unpack(t, root)
	require.NoError(t, os.Chmod(root, 0o755))
	command := exec.Command("/usr/bin/"+want.program, "--version")
	command.Dir, command.Env = "/", got.config.Config.Env
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	said, err := command.CombinedOutput()
	require.NoError(t, err, string(said))
	require.Contains(t, string(said), version)
}

// sbom is the part of a CycloneDX document that the test compares.
type sbom struct {
	Metadata struct {
		Timestamp string
		Component struct {
			Name, Version string
			Hashes        []struct{ Alg, Content string }
		}
	}
	Components []struct{ Name, Version string }
}

func checkSBOM(t *testing.T, want wanted, got image, folder string) {
	inside := got.files["usr/share/sbom/"+sbomOf(want)].data
	beside, err := os.ReadFile(filepath.Join(folder, want.name+".cdx.json"))
	require.NoError(t, err)
	require.Equal(t, string(inside), string(beside))

	var list sbom
	require.NoError(t, json.Unmarshal(inside, &list))
	program := got.files["usr/bin/"+want.program].data
	sum := sha256.Sum256(program)
	require.Equal(t, created, list.Metadata.Timestamp)
	require.Equal(t, want.program, list.Metadata.Component.Name)
	require.Equal(t, version, list.Metadata.Component.Version)
	require.Equal(t, hex.EncodeToString(sum[:]), list.Metadata.Component.Hashes[0].Content)

	var listed []string
	for _, component := range list.Components {
		listed = append(listed, component.Name+" "+component.Version)
	}
	roots := listed[len(listed)-1]
	require.True(t, strings.HasPrefix(roots, "golang.org/x/crypto/x509roots/fallback v"), roots)
	require.ElementsMatch(t, linked(t, program), listed[:len(listed)-1])
}

// linked lists the modules of a program, as go version -m does, and Go's own library.
func linked(t *testing.T, program []byte) []string {
	t.Helper()
	build, err := buildinfo.Read(bytes.NewReader(program))
	require.NoError(t, err)
	require.Greater(t, len(build.Deps), 50)
	modules := []string{"std " + strings.TrimPrefix(build.GoVersion, "go")}
	for _, module := range build.Deps {
		for module.Replace != nil {
			module = module.Replace
		}
		modules = append(modules, module.Path+" "+module.Version)
	}
	require.False(t, slices.ContainsFunc(build.Settings, isVCS), "the version contains the state of git, which otherwise differs between clones")
	return modules
}

func isVCS(setting debug.BuildSetting) bool { return strings.HasPrefix(setting.Key, "vcs") }

func checkAuthorities(t *testing.T, got image) {
	var names []string
	for data := got.files["etc/ssl/certs/ca-certificates.crt"].data; len(data) > 0; {
		var block *pem.Block
		block, data = pem.Decode(data)
		require.NotNil(t, block)
		certificate, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		names = append(names, certificate.Subject.CommonName)
	}
	require.Greater(t, len(names), 50)
	require.Contains(t, names, "ISRG Root X1")
	require.Contains(t, names, "DigiCert Global Root G2")
}
