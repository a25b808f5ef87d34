// Package lifetime tests agents from their installation to the deletion of their Cluster, with a real hub and with agents that are
// processes of the real program, which localpods runs for the Deployments of their clusters.
package lifetime

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/binaries"
	"github.com/muster-fleet/muster/internal/helminstall"
	"github.com/muster-fleet/muster/pkg/registration"
)

// programs is the directory with the programs of the pods.
var programs string

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(installAt); kubeconfig != "" {
		os.Exit(install(kubeconfig))
	}
	os.Exit(binaries.RunTests(m, &programs, "fleetagent", "muster"))
}

// installAt is the variable with a kubeconfig with which this test binary installs the agent's chart as helm does, with values from standard input, and
// exits. It needs its own process because Helm has the name of its field manager in a global variable, which the hub has set.
const installAt = "MUSTER_TEST_INSTALL_AT"

func install(kubeconfig string) int {
	err := func() error {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return err
		}
		document, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		values := map[string]any{}
		if err := yaml.Unmarshal(document, &values); err != nil {
			return err
		}
		return helminstall.Install(context.Background(), config, registration.DefaultSystemNamespace, charts.Agent, values)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
