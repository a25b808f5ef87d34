package lifetime

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/internal/inventory"
	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

const system = registration.DefaultSystemNamespace

// scene is a hub and a member for one test.
type scene struct {
	hub, member *testenv.Cluster
	running     *testenv.Running // the running hub
	ns          string           // of the Clusters
	settings    map[string]any   // the hub's configuration
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{}
	s.hub, s.member = testenv.BorrowedCluster(t, "hub"), testenv.BorrowedCluster(t, "member")
	s.settings = s.hub.Reachable()
	s.settings["agentCheckinInterval"] = "1s"
	s.configure(t, nil)
	s.startHub(t)
	s.ns = s.hub.Namespace(t)
	s.member.Node(t, programs)
	return s
}

// configure changes some of the hub's settings.
func (s *scene) configure(t *testing.T, change map[string]any) {
	t.Helper()
	for key, value := range change {
		s.settings[key] = value
	}
	s.hub.Configure(t, s.settings)
}

func (s *scene) startHub(t *testing.T) {
	t.Helper()
	s.running = s.hub.Hub(t, func(o *muster.Options) { o.FarewellGrace = testenv.Patience })
}

// imported is a manager-initiated Cluster whose agent has deployed its own Bundle.
func (s *scene) imported(t *testing.T) *fleet.Cluster {
	t.Helper()
	s.hub.Import(t, s.ns, "managed", s.member)
	return s.adopted(t, "managed")
}

// installed is an agent-initiated Cluster whose agent was installed with the chart.
func (s *scene) installed(t *testing.T, values map[string]any) *fleet.Cluster {
	t.Helper()
	s.installChart(t, values)
	return s.adopted(t, registration.ClusterName("edge"))
}

func (s *scene) installChart(t *testing.T, values map[string]any) {
	t.Helper()
	document, err := yaml.Marshal(s.hub.Token(t, s.ns, "tok", fleet.ClusterRegistrationTokenSpec{}))
	require.NoError(t, err)
	all := map[string]any{}
	require.NoError(t, yaml.Unmarshal(document, &all))
	for key, value := range values {
		all[key] = value
	}
	all["clientID"] = "edge"
	document, err = yaml.Marshal(all)
	require.NoError(t, err)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, s.member.Kubeconfig(), 0o600))
	self, err := os.Executable()
	require.NoError(t, err)
	helm := exec.CommandContext(t.Context(), self)
	helm.Env, helm.Stdin = append(os.Environ(), installAt+"="+kubeconfig), bytes.NewReader(document)
	output, err := helm.CombinedOutput()
	require.NoError(t, err, string(output))
}

// adopted waits until the agent of a Cluster has deployed its own Bundle and all Bundles are ready.
func (s *scene) adopted(t *testing.T, name string) *fleet.Cluster {
	t.Helper()
	return s.until(t, name, func(c *fleet.Cluster) (bool, string) {
		summary := c.Status.Summary
		return registration.IsManagedGeneration(c.Status.Agent.Generation) && summary.DesiredReady > 0 && summary.Ready == summary.DesiredReady,
			fmt.Sprintf("generation %q, bundles %s, Ready %s", c.Status.Agent.Generation, c.Status.Display.ReadyBundles,
				testenv.Condition(c.Status.Conditions, fleet.ConditionReady))
	})
}

// until waits until as returns true for a Cluster.
func (s *scene) until(t *testing.T, name string, as func(*fleet.Cluster) (bool, string)) (found *fleet.Cluster) {
	t.Helper()
	testenv.EventuallyWithin(t, 2*testenv.Patience, func() (bool, string) {
		cluster, err := s.hub.Fleet.Clusters(s.ns).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		found = cluster
		ok, why := as(cluster)
		return ok, why + conditions(cluster)
	})
	return found
}

func conditions(c *fleet.Cluster) (all string) {
	for _, condition := range c.Status.Conditions {
		all += fmt.Sprintf("\n\t%s=%s %s %s", condition.Type, condition.Status, condition.Reason, condition.Message)
	}
	return all
}

func (s *scene) patch(t *testing.T, name, patch string) {
	t.Helper()
	testenv.Merge(t, s.hub.Fleet.Clusters(s.ns).Patch, name, patch)
}

// identity is the credential and the requests of an agent. An update must not change them.
type identity struct {
	credential types.UID
	token      string
	requests   []string
}

func (s *scene) identity(t *testing.T) (i identity) {
	t.Helper()
	secret := testenv.RequireThere(t, s.member.Kubernetes.CoreV1().Secrets(system).Get, registration.CredentialSecret)
	i.credential = secret.UID
	var kubeconfig struct {
		Users []struct {
			User struct {
				Token string `json:"token"`
			} `json:"user"`
		} `json:"users"`
	}
	require.NoError(t, yaml.Unmarshal(secret.Data[registration.CredentialKubeconfig], &kubeconfig))
	require.Len(t, kubeconfig.Users, 1)
	i.token = kubeconfig.Users[0].User.Token
	requests := testenv.List(t, s.hub.Fleet.ClusterRegistrations(s.ns).List, metav1.ListOptions{})
	for _, r := range requests.Items {
		i.requests = append(i.requests, r.Name)
	}
	return i
}

// deployment is the Deployment of the agent.
func (s *scene) deployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	d := testenv.RequireThere(t, s.member.Kubernetes.AppsV1().Deployments(system).Get, registration.AgentName)
	return d
}

func env(d *appsv1.Deployment, name string) string {
	for _, v := range d.Spec.Template.Spec.Containers[0].Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// rollouts is the number of pod templates that the agent's Deployment has had.
func (s *scene) rollouts(t *testing.T) int {
	t.Helper()
	sets := testenv.List(t, s.member.Kubernetes.AppsV1().ReplicaSets(system).List, metav1.ListOptions{LabelSelector: "app=fleet-agent"})
	return len(sets.Items)
}

// killAgents kills the processes of the agent at an interval until stop is called. killed waits until that number of further Pods was deleted.
func (s *scene) killAgents(t *testing.T, every time.Duration) (killed func(more int32), stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var deleted atomic.Int32
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		now := int64(0)
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				pods := s.member.Kubernetes.CoreV1().Pods(system)
				if list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=fleet-agent"}); err == nil {
					for _, pod := range list.Items {
						if pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}) == nil {
							deleted.Add(1)
						}
					}
				}
			}
		}
	}()
	killed = func(more int32) {
		t.Helper()
		until := deleted.Load() + more
		testenv.Eventually(t, func() (bool, string) {
			return deleted.Load() >= until, fmt.Sprint(deleted.Load(), " Pods were killed, not yet ", until)
		})
	}
	return killed, func() { cancel(); <-ended }
}

// workload creates a Bundle with a ConfigMap and a Deployment for all Clusters of the namespace, unless it exists.
func (s *scene) workload(t *testing.T) {
	t.Helper()
	_, err := s.hub.Fleet.Bundles(s.ns).Create(t.Context(), &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "hello"},
		Spec: fleet.BundleSpec{
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: "hello"},
			Resources:               []fleet.BundleResource{{Name: "hello.yaml", Content: hello}},
			Targets:                 []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}},
		},
	}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

const hello = `apiVersion: v1
kind: ConfigMap
metadata: {name: hello}
data: {greeting: "{{ Hello }}"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec:
      containers: [{name: hello, image: any, command: [muster, hello]}]
`

// runs waits until the workload runs.
func (s *scene) runs(t *testing.T, name string) {
	t.Helper()
	s.until(t, name, func(c *fleet.Cluster) (bool, string) {
		if c.Status.Summary.DesiredReady != 2 || c.Status.Summary.Ready != 2 {
			return false, "bundles " + c.Status.Display.ReadyBundles
		}
		// The status on the hub can be out of date.
		d, err := s.member.Kubernetes.AppsV1().Deployments("hello").Get(t.Context(), "hello", metav1.GetOptions{})
		return err == nil && d.Status.AvailableReplicas == 1, fmt.Sprintf("Deployment hello: %+v %v", d.Status, err)
	})
	greeting := testenv.RequireThere(t, s.member.Kubernetes.CoreV1().ConfigMaps("hello").Get, "hello")
	require.Equal(t, "{{ Hello }}", greeting.Data["greeting"], "a manifest is not a template")
}

// requireNothingLeft waits until the Cluster, its namespace on the hub, and the agent with everything it has deployed are deleted.
func (s *scene) requireNothingLeft(t *testing.T, name string) {
	t.Helper()
	namespace := registration.ClusterNamespace(s.ns, name)
	testenv.EventuallyWithin(t, 2*testenv.Patience, func() (bool, string) {
		cluster, err := s.hub.Fleet.Clusters(s.ns).Get(t.Context(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return false, fmt.Sprintf("the Cluster still exists (%v)%s", err, conditions(cluster))
		}
		_, err = s.hub.Kubernetes.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprintf("Namespace %s still exists", namespace)
	})
	testenv.Eventually(t, func() (bool, string) {
		left := s.left(t, system, "hello", "")
		return left == "", "left on the member: " + left
	})
}

// left lists the objects in namespaces of the member that Kubernetes has not created itself. The namespace "" stands for the cluster-scoped
// objects of the agent.
func (s *scene) left(t *testing.T, namespaces ...string) string {
	t.Helper()
	all, err := inventory.Take(t.Context(), s.member.RESTConfig())
	require.NoError(t, err)
	return inventory.List(slices.DeleteFunc(all.Since(nil), func(o inventory.Thing) bool {
		counts := slices.Contains(namespaces, o.Namespace) && (o.Namespace != "" || strings.Contains(o.Name, "fleet-agent"))
		return !counts || inventory.OfNamespace(o)
	}))
}

func (s *scene) patchDeployment(t *testing.T, patch string) {
	t.Helper()
	testenv.Merge(t, s.member.Kubernetes.AppsV1().Deployments(system).Patch, registration.AgentName, patch)
}
