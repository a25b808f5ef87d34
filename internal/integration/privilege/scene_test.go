package privilege

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const agentNamespace = "cattle-fleet-local-system"

// scene is a hub that the chart installed, with two registered clusters and its own cluster, and a deployment to each.
type scene struct {
	*testenv.Stage
	values       registration.Values
	own, other   testenv.Registered
	ownContent   []string
	otherContent []string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	hub, _ := testenv.Clusters(t)
	install := hub.InstallChart(t, chartValues(hub, false))
	s := &scene{Stage: &testenv.Stage{Hub: hub, Namespace: hub.Namespace(t)}}
	s.Running = hub.Hub(t, install)
	hub.AwaitAdmission(t)
	s.values = s.Token(t, "shared-tok")
	s.own, s.other = s.register(t, "own"), s.register(t, "other")
	s.ownContent, s.otherContent = s.deploy(t, "own", s.own), s.deploy(t, "other", s.other)
	return s
}

func chartValues(hub *testenv.Cluster, localAgentDisabled bool) map[string]any {
	return map[string]any{
		"apiServerURL": hub.URL(), "apiServerCA": string(hub.CA()),
		"members":   testenv.MembersOnLoopback(),
		"bootstrap": map[string]any{"agentNamespace": agentNamespace, "localAgentDisabled": localAgentDisabled},
	}
}

// register registers a cluster in place of an agent that renews its credential.
func (s *scene) register(t *testing.T, clientID string) testenv.Registered {
	t.Helper()
	return s.RegisterRenewing(t, s.values, clientID, "random")
}

// deploy deploys a Bundle to one cluster only, and returns the names of all Contents in the BundleDeployments of its agent.
func (s *scene) deploy(t *testing.T, name string, to testenv.Registered) (contents []string) {
	t.Helper()
	testenv.Create(t, s.Hub.Fleet.Bundles(s.Namespace).Create, &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: bundleOf(name)},
		Spec: fleet.BundleSpec{
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{
				DefaultNamespace: "default", Helm: &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"password": name}}},
			},
			Resources: []fleet.BundleResource{{Name: "cm.yaml", Content: fmt.Sprintf("kind: ConfigMap\napiVersion: v1\nmetadata: {name: %s}", name)}},
			Targets:   []fleet.BundleTarget{{ClusterName: to.Request.Status.ClusterName}},
		},
	})
	testenv.Eventually(t, func() (bool, string) {
		list, err := s.Hub.Fleet.BundleDeployments(to.ClusterNamespace()).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		contents = nil
		there := false
		for _, d := range list.Items { // the BundleDeployment of the agent may be one of them
			contents = append(contents, d.Labels[fleet.ContentNameLabel])
			there = there || d.Name == bundleOf(name) && !d.Spec.WaitingForValues
		}
		return there, "BundleDeployment " + bundleOf(name) + " is not there"
	})
	return contents
}

// bundleOf is the name of the Bundle for one cluster alone, and of the Secret with its Helm values.
func bundleOf(cluster string) string { return "bundle-of-" + cluster }
