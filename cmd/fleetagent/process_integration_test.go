package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/muster-fleet/muster/internal/binaries"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
)

// programs is the folder with the compiled program.
var programs string

func TestMain(m *testing.M) { os.Exit(binaries.RunTests(m, &programs, "fleetagent")) }

// process runs the program with exactly the given environment.
func process(t *testing.T, env []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	output := &bytes.Buffer{}
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "fleetagent"), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, output, output
	return cmd, output
}

func answer(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	return string(body)
}

func TestProcessReleasesItsLeaseOnSIGTERM(t *testing.T) {
	plane := controlplane.Shared(t, "member")
	core, err := kubernetes.NewForConfig(plane.RESTConfig())
	require.NoError(t, err)
	namespace := testenv.Create(t, core.CoreV1().Namespaces().Create, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "agent-"}})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, plane.Kubeconfig(), 0o600))

	address := testenv.UnusedAddress(t)
	cmd, output := process(t, []string{
		"NAMESPACE=" + namespace.Name, "KUBECONFIG=" + kubeconfig, "POD_NAME=pod-7", "FLEET_HEALTH_BIND_ADDRESS=" + address,
	})
	require.NoError(t, cmd.Start())
	holder := func() string {
		lease, err := core.CoordinationV1().Leases(namespace.Name).Get(t.Context(), "fleet-agent", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		return *lease.Spec.HolderIdentity
	}
	require.Eventually(t, func() bool { return holder() == "pod-7" }, 2*time.Minute, 50*time.Millisecond)
	require.Equal(t, "ok\n", answer(t, "http://"+address+"/healthz"))
	require.Equal(t, "ok\n", answer(t, "http://"+address+"/readyz"), "an agent is ready before it is registered")
	require.Eventually(t, func() bool {
		return strings.HasPrefix(answer(t, "http://"+address+"/readyz?verbose"), "there is no bootstrap Secret to register with")
	}, 2*time.Minute, 50*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "exit code 0 after SIGTERM: %s", output)
	assert.Empty(t, holder())
}

func TestProcessFailsWithOneLine(t *testing.T) {
	cmd, output := process(t, nil, "--nonsense")
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &exit)
	assert.Equal(t, 1, exit.ExitCode())
	assert.Contains(t, output.String(), "-nonsense; see --help")
	assert.Equal(t, 1, bytes.Count(output.Bytes(), []byte("\n")), output.String())
}

func TestProcessPrintsItsVersion(t *testing.T) {
	cmd, output := process(t, nil, "--version")
	require.NoError(t, cmd.Run())
	assert.Equal(t, "fleetagent version dev\n", output.String())
}
