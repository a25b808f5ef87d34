package packaging

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/release"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

const releaseVersion = "v1.2.3-rc.1"

// The dry run makes everything twice and compares it. One platform is enough for the steps; hack/release tests the index of several.
func TestReleaseDryRun(t *testing.T) {
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Skip("buildah is not installed, so no image can be built here: apt-get install --no-install-recommends buildah")
	}
	platform, folder := "linux/"+runtime.GOARCH, t.TempDir()
	said := runRelease(t, "--dry-run", "--platform", platform, "--registry", "registry.example.com", "--output", folder, releaseVersion)
	require.Contains(t, said, "both runs made the same 10 files")
	require.Contains(t, said, "not done, which only .github/workflows/release.yml does: push")

	muster := "muster_" + releaseVersion + "_linux_" + runtime.GOARCH
	t.Run("checksums of every file", func(t *testing.T) {
		sums, err := os.ReadFile(filepath.Join(folder, "checksums.txt"))
		require.NoError(t, err)
		entries, err := os.ReadDir(folder)
		require.NoError(t, err)
		for _, entry := range entries {
			if name := entry.Name(); name != "checksums.txt" && name != "muster.krew.yaml" {
				data, err := os.ReadFile(filepath.Join(folder, name))
				require.NoError(t, err)
				sum := sha256.Sum256(data)
				require.Contains(t, string(sums), hex.EncodeToString(sum[:])+"  "+name+"\n")
			}
		}
	})
	t.Run("program of the archive", func(t *testing.T) {
		unpacked := t.TempDir()
		out, err := exec.Command("tar", "-xzf", filepath.Join(folder, muster+".tar.gz"), "-C", unpacked).CombinedOutput()
		require.NoError(t, err, string(out))
		out, err = exec.Command(filepath.Join(unpacked, "muster"), "--version").CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), releaseVersion)
		for _, file := range []string{"LICENSE", "LICENSES", "README.md"} {
			require.FileExists(t, filepath.Join(unpacked, file))
		}
	})
	t.Run("manifest for krew", func(t *testing.T) {
		manifest, err := os.ReadFile(filepath.Join(folder, "muster.krew.yaml"))
		require.NoError(t, err)
		require.Contains(t, string(manifest), "/releases/download/"+releaseVersion+"/"+muster+".tar.gz\n")
	})
	t.Run("charts install the images of the release", func(t *testing.T) { installRelease(t, folder) })
}

// installRelease installs the charts of a release in a cluster, and requires that the Deployment and the configuration of the hub name the
// images of the release.
func installRelease(t *testing.T, folder string) {
	plane := controlplane.Shared(t, "member")
	for _, name := range []string{charts.CRD, charts.Hub} {
		chart, err := loader.LoadFile(filepath.Join(folder, name+"-"+strings.TrimPrefix(releaseVersion, "v")+".tgz"))
		require.NoError(t, err)
		require.Equal(t, "true", chart.Metadata.Annotations["artifacthub.io/prerelease"], name)
		require.NotContains(t, chart.Metadata.Annotations["artifacthub.io/images"], ":dev", name)
		configuration, err := release.Configuration(plane.RESTConfig(), registration.DefaultSystemNamespace)
		require.NoError(t, err)
		install := action.NewInstall(configuration)
		install.ReleaseName, install.Namespace, install.CreateNamespace = name, registration.DefaultSystemNamespace, true
		install.WaitStrategy = kube.HookOnlyStrategy // no kubelet runs the pods
		_, err = install.RunWithContext(t.Context(), chart, map[string]any{})
		require.NoError(t, err, name)
	}
	client, err := kubernetes.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	deployment, err := client.AppsV1().Deployments(registration.DefaultSystemNamespace).Get(t.Context(), "fleet-controller", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, referenceOf(t, folder, "fleet"), deployment.Spec.Template.Spec.Containers[0].Image)
	document, err := client.CoreV1().ConfigMaps(registration.DefaultSystemNamespace).Get(t.Context(), registration.HubConfigMap, metav1.GetOptions{})
	require.NoError(t, err)
	hub, _, err := config.ParseHub(document.Data["config"])
	require.NoError(t, err)
	require.Equal(t, referenceOf(t, folder, "fleet-agent"), hub.AgentImage)
	list, err := os.ReadFile(filepath.Join(folder, "images.txt"))
	require.NoError(t, err)
	require.Equal(t, deployment.Spec.Template.Spec.Containers[0].Image+"\n"+hub.AgentImage+"\n", string(list))
}

// referenceOf is the reference of an image of the release, with the digest of the index in its OCI layout.
func referenceOf(t *testing.T, folder, name string) string {
	t.Helper()
	unpacked := t.TempDir()
	out, err := exec.Command("tar", "-xf", filepath.Join(folder, name+"-"+releaseVersion+".oci.tar"), "-C", unpacked).CombinedOutput()
	require.NoError(t, err, string(out))
	root := readIndex(t, filepath.Join(unpacked, "index.json"))
	require.Len(t, root.Manifests, 1)
	digest := root.Manifests[0].Digest
	images := readIndex(t, filepath.Join(unpacked, "blobs", "sha256", digest.Encoded()))
	require.Equal(t, ocispec.MediaTypeImageIndex, images.MediaType)
	require.Len(t, images.Manifests, 1)
	require.Equal(t, &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, images.Manifests[0].Platform)
	reference := "registry.example.com/muster-fleet/" + name + ":" + releaseVersion
	require.Equal(t, reference, root.Manifests[0].Annotations[ocispec.AnnotationRefName])
	return reference + "@" + digest.String()
}

func readIndex(t *testing.T, file string) (index ocispec.Index) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &index))
	return index
}

func runRelease(t *testing.T, arguments ...string) string {
	t.Helper()
	command := exec.Command("scripts/release", arguments...)
	command.Dir = repository
	command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+epoch, "REVISION="+revision)
	said, err := command.CombinedOutput()
	require.NoError(t, err, string(said))
	return string(said)
}

func TestReleaseErrors(t *testing.T) {
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "file"), nil, 0o600))
	for want, arguments := range map[string][]string{
		"no version: a version of a release is like v1.2.3": nil,
		"1.2.3: a version of a release is like v1.2.3":      {"1.2.3"},
		"v2.0.0: only one version can be given":             {"v1.0.0", "v2.0.0"},
		"--sign is unknown":                                 {"--sign", "v1.0.0"},
		"--platform plan9/amd64: it must be linux, darwin":  {"--platform", "plan9/amd64", "v1.0.0"},
		"names no platform of linux":                        {"--platform", "darwin/arm64", "v1.0.0"},
		"is not empty":                                      {"--output", full, "v1.0.0"},
	} {
		command := exec.Command("scripts/release", arguments...)
		command.Dir = repository
		said, err := command.CombinedOutput()
		require.Error(t, err, want)
		require.Contains(t, string(said), want)
	}
}

// The module that makes archives and indexes is not part of `go test ./...`.
func TestReleaseModule(t *testing.T) {
	command := exec.Command("go", "test", ".")
	command.Dir = filepath.Join(repository, "hack", "release")
	said, err := command.CombinedOutput()
	require.NoError(t, err, string(said))
}

// workflow is the part of the release workflow that the test checks.
type workflow struct {
	Permissions map[string]string
	Jobs        map[string]struct {
		Permissions map[string]string
		Steps       []struct{ Name, Uses, Run string }
	}
}

var (
	pinned     = regexp.MustCompile(`@[0-9a-f]{40}$`)
	scriptName = regexp.MustCompile(`(?:^|[\s"])((?:scripts|\.ci)/[a-z0-9-]+)`)
)

// The workflow runs only on GitHub. What can be wrong without it is found here.
func TestReleaseWorkflow(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(repository, ".github", "workflows", "release.yml"))
	require.NoError(t, err)
	var parsed workflow
	require.NoError(t, yaml.Unmarshal(data, &parsed))
	require.NotNil(t, parsed.Permissions)
	require.Empty(t, parsed.Permissions, "each job has its own")
	scripts := map[string]bool{}
	for name, job := range parsed.Jobs {
		if name != "publish" {
			require.Equal(t, map[string]string{"contents": "read"}, job.Permissions, name)
		}
		for _, step := range job.Steps {
			require.NotContains(t, step.Run, "${{", "%s: the text of an expression would be run; pass it in the environment", step.Name)
			if step.Uses != "" {
				require.Regexp(t, pinned, step.Uses, "an action is named by its commit")
			}
			out, err := exec.CommandContext(t.Context(), "bash", "-n", "-c", step.Run).CombinedOutput()
			require.NoError(t, err, "%s: %s", step.Name, out)
			for _, found := range scriptName.FindAllStringSubmatch(step.Run, -1) {
				scripts[found[1]] = true
				info, err := os.Stat(filepath.Join(repository, found[1]))
				require.NoError(t, err)
				require.NotZero(t, info.Mode()&0o111, found[1])
			}
		}
	}
	require.Equal(t, map[string]bool{".ci/run": true, "scripts/release": true}, scripts)
}
