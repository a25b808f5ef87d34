package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
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

// unusedAddress is an address without a listener. Its port is below those that Linux uses for outgoing connections and those of
// control planes, so that no other process takes it before the test listens.
func unusedAddress(t *testing.T) string {
	t.Helper()
	for {
		listener, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10000+rand.IntN(10000)))
		if err != nil {
			continue
		}
		require.NoError(t, listener.Close())
		return listener.Addr().String()
	}
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
	namespace, err := core.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "agent-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, plane.Kubeconfig(), 0o600))

	address := unusedAddress(t)
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
	require.Equal(t, "ok\n", answer(t, "http://"+address+"/readyz"), "an agent that nobody has let in yet is ready")
	require.Eventually(t, func() bool {
		return strings.HasPrefix(answer(t, "http://"+address+"/readyz?verbose"), "there is no bootstrap Secret to register with")
	}, 2*time.Minute, 50*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "SIGTERM is no error: %s", output)
	assert.Empty(t, holder())
}

func TestProcessFailsWithOneLine(t *testing.T) {
	for name, row := range map[string]struct {
		env, args []string
		want      string
	}{
		"no namespace":    {nil, nil, "NAMESPACE"},
		"no cluster":      {[]string{"NAMESPACE=ns"}, nil, "pass --kubeconfig"},
		"an unknown flag": {nil, []string{"--nonsense"}, "-nonsense; see --help"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, output := process(t, row.env, row.args...)
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Run(), &exit)
			assert.Equal(t, 1, exit.ExitCode())
			assert.Contains(t, output.String(), row.want)
			assert.Equal(t, 1, bytes.Count(output.Bytes(), []byte("\n")), output.String())
		})
	}
}

func TestProcessPrintsItsVersion(t *testing.T) {
	cmd, output := process(t, nil, "--version")
	require.NoError(t, cmd.Run())
	assert.Equal(t, "fleetagent version dev\n", output.String())
}
