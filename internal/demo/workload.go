package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// workload is the name of the Bundle that the demo deploys, and of the namespace and the objects in it.
const workload = "hello"

// helloManifest is what a person would write: a Deployment and its ConfigMap.
const helloManifest = `apiVersion: v1
kind: ConfigMap
metadata:
  name: hello
data:
  greeting: Hello
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: hello
spec:
  selector:
    matchLabels: {app: hello}
  template:
    metadata:
      labels: {app: hello}
    spec:
      containers:
        - name: hello
          image: muster-fleet/muster
          command: [muster, hello]
`

// deployWorkload makes one Bundle and waits until it runs on every cluster it selects.
func deployWorkload(ctx context.Context, d *demo) (string, error) {
	_, err := d.hub.admin.Fleet.Bundles(workspace).Create(ctx, &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: workload},
		Spec: fleet.BundleSpec{
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: workload},
			Resources:               []fleet.BundleResource{{Name: "hello.yaml", Content: helloManifest}},
			Targets: []fleet.BundleTarget{
				{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "demo"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	var notes []string
	for _, a := range d.selected() {
		err := poll(ctx, func(ctx context.Context) (bool, error) { return true, d.checkWorkload(ctx, a) })
		if err != nil {
			return "", err
		}
		notes = append(notes, fmt.Sprintf("%s runs Deployment and ConfigMap %s/%s", a.member.name, workload, workload))
	}
	return strings.Join(notes, "; "), nil
}

// selected are the clusters with the label that the Bundle asks for.
func (d *demo) selected() (found []arrival) {
	for _, a := range d.arrived {
		if a.namespace == workspace {
			found = append(found, a)
		}
	}
	return found
}

// checkWorkload looks at the member for what was deployed, and at the hub for what it was told.
func (d *demo) checkWorkload(ctx context.Context, a arrival) error {
	deployment, err := a.member.admin.Kubernetes.AppsV1().Deployments(workload).Get(ctx, workload, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("on %s: %w", a.member.name, err)
	}
	if _, err := a.member.admin.Kubernetes.CoreV1().ConfigMaps(workload).Get(ctx, workload, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("on %s: %w", a.member.name, err)
	}
	deployed, err := d.hub.admin.Fleet.BundleDeployments(registration.ClusterNamespace(a.namespace, a.name)).Get(ctx, workload, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return errors.Join(
		insist(deployment.Status.AvailableReplicas > 0, "Deployment %s/%s on %s has no replica that runs", workload, workload, a.member.name),
		insist(deployed.Status.Ready, "BundleDeployment %s of %s is not ready: %s", workload, a.name, deployed.Status.Display.State),
	)
}

func insist(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// running is one agent at one moment: what an update of it in place must not change, and what it must.
type running struct {
	credential string // UID of the Secret
	requests   int    // registrations of its Cluster
	template   *appsv1.DeploymentSpec
	cluster    *fleet.Cluster
}

// runningAgent reads it from both sides.
func (d *demo) runningAgent(ctx context.Context, a arrival) (running, error) {
	cluster, err := d.hub.admin.Fleet.Clusters(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	if err != nil {
		return running{}, err
	}
	requests, err := d.hub.admin.Fleet.ClusterRegistrations(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return running{}, err
	}
	secret, err := a.member.admin.Kubernetes.CoreV1().Secrets(systemNamespace).Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
	if err != nil {
		return running{}, err
	}
	deployment, err := a.member.admin.Kubernetes.AppsV1().Deployments(systemNamespace).Get(ctx, registration.AgentName, metav1.GetOptions{})
	if err != nil {
		return running{}, err
	}
	return running{
		credential: string(secret.UID), requests: requestsOf(requests.Items, cluster), template: &deployment.Spec, cluster: cluster,
	}, nil
}

func requestsOf(all []fleet.ClusterRegistration, cluster *fleet.Cluster) (n int) {
	for _, r := range all {
		if r.Spec.ClientID == cluster.Spec.ClientID {
			n++
		}
	}
	return n
}

func (r running) env(name string) string {
	for _, v := range r.template.Template.Spec.Containers[0].Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// adopted waits until the agent runs as its Bundle says.
func (d *demo) adopted(ctx context.Context, a arrival, setting func(running) error) (r running, err error) {
	err = poll(ctx, func(ctx context.Context) (bool, error) {
		if r, err = d.runningAgent(ctx, a); err != nil {
			return false, err
		}
		ready := r.cluster.Status.Summary.Ready == r.cluster.Status.Summary.DesiredReady && r.cluster.Status.Summary.DesiredReady > 0
		return true, errors.Join(
			insist(registration.IsManagedGeneration(r.cluster.Status.Agent.Generation), "the agent of %s has not adopted its own Deployment yet", a.name),
			insist(ready, "of the bundles of %s only %s are ready", a.name, r.cluster.Status.Display.ReadyBundles),
			setting(r),
		)
	})
	return r, err
}

// adoptAgents waits until all agents have taken over their own Deployments.
func adoptAgents(ctx context.Context, d *demo) (string, error) {
	for i := range d.arrived {
		r, err := d.adopted(ctx, d.arrived[i], func(running) error { return nil })
		if err != nil {
			return "", err
		}
		d.arrived[i].agent = r
	}
	return "each restarted once, with " + registration.GenerationEnv + "=" + d.arrived[0].agent.env(registration.GenerationEnv) + ", and kept its credential", nil
}

const (
	settingName  = "GREETING"
	settingValue = "good-morning"
)

// changeSetting gives one agent an environment variable and waits for it to run with it.
func changeSetting(ctx context.Context, d *demo) (string, error) {
	a, err := d.named(d.east)
	if err != nil {
		return "", err
	}
	patch := fmt.Sprintf(`{"spec":{"agentEnvVars":[{"name":%q,"value":%q}]}}`, settingName, settingValue)
	if err := d.hub.patchCluster(ctx, *a, patch); err != nil {
		return "", err
	}
	r, err := d.adopted(ctx, *a, func(r running) error {
		return insist(r.env(settingName) == settingValue, "the agent's Deployment on %s has not got the variable yet", a.member.name)
	})
	if err != nil {
		return "", err
	}
	if err := a.member.awaitDeployment(ctx, registration.AgentName); err != nil {
		return "", err
	}
	if r.credential != a.agent.credential || r.requests != a.agent.requests {
		return "", errors.New("the agent registered again; a setting must not cost it its credential")
	}
	return "updated in place by its Bundle; same credential, no new registration", nil
}
