// Package lifetime has the tests of an agent's whole life: a hub wired as in production, and agents that are processes of the
// real program, run as the Deployments of their clusters say and restarted when those change.
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

// programs is the folder with the programs that the pods run.
var programs string

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(installAt); kubeconfig != "" {
		os.Exit(install(kubeconfig))
	}
	os.Exit(binaries.RunTests(m, &programs, "fleetagent", "muster"))
}

// installAt has this program be a person's helm install of the agent's chart, at the cluster of that kubeconfig and with the
// values from its input, instead of running tests. It takes a process of its own because Helm keeps the name under which it
// applies in one variable for the whole process, and the hub has set that.
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
