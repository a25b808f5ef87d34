//go:build e2e

package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/muster-fleet/muster/internal/inventory"
)

const (
	agentRelease   = "fleet-agent"
	controllerName = "fleet-controller"

	registrationNamespace = "cattle-fleet-clusters-system"
	localNamespace        = "fleet-local"
)

// takeChart waits until no other scene has an agent that the chart installed on the member: there can be one per cluster.
func (s *scene) takeChart() {
	s.Helper()
	s.chart.Lock()
	s.Cleanup(s.chart.Unlock)
}

// installAgent installs the chart fleet-agent on the member as documented, and returns the Cluster that the agent will register. With
// --wait it returns when the agent's pod is ready.
func (s *scene) installAgent(cluster, clientID, values string, more ...string) *enrolled {
	s.Helper()
	e := &enrolled{s: s, on: s.member, namespace: s.id, name: cluster, agentNamespace: systemNamespace, clientID: clientID, how: charted}
	s.enrolled = append(s.enrolled, e)
	s.helm(s.member, append([]string{
		"install", "--values", values, "--values", "testdata/agent.yaml",
		"--set", "image.tag=" + s.options.tag, "--set", "clientID=" + clientID,
		agentRelease, filepath.Join(charts, agentRelease),
	}, more...)...)
	return e
}

var charted = manner{leave: leaveChart, tidy: tidyChart}

// leaveChart does nothing for an agent that never registered: it has no Cluster, and is removed with the release.
func leaveChart(ctx context.Context, e *enrolled) error {
	if _, err := e.get(ctx); apierrors.IsNotFound(err) {
		return nil
	}
	if err := e.s.deleteCluster(ctx, e.namespace, e.name); err != nil {
		return err
	}
	return e.on.nothingLeft(ctx, systemNamespace, inventory.OfNamespace, ofHelm, elsewhere)
}

// tidyChart removes the release and the namespace. The objects of an agent that never registered are deleted with the namespace.
func tidyChart(ctx context.Context, e *enrolled) error {
	_, err := e.s.suite.helm(ctx, e.on, "uninstall", "--ignore-not-found", "--wait", agentRelease)
	err = errors.Join(err, e.on.deleteNamespaces(ctx, systemNamespace))
	if err != nil {
		return err
	}
	return e.on.nothingLeft(ctx, systemNamespace, elsewhere)
}

// ofHelm are the records of the release.
func ofHelm(t inventory.Thing) bool {
	return t.Kind == "Secret" && strings.HasPrefix(t.Name, "sh.helm.release.v1."+agentRelease+".")
}

// elsewhere matches the objects of other scenes, whose agents have namespaces of their own.
func elsewhere(t inventory.Thing) bool {
	return t.Namespace != "" && t.Namespace != systemNamespace || t.Namespace == "" && strings.Contains(t.Name, scenePrefix)
}
