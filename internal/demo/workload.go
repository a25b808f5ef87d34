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

// workload is the name of the Bundle that the demo deploys, and of its namespace and objects.
const workload = "hello"

// helloManifest has a Deployment and a ConfigMap.
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

// deployWorkload creates a Bundle and waits until it is deployed on every cluster that it selects.
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
	for _, a := range d.registered {
		if a.namespace != workspace { // without the label env=demo
			continue
		}
		err := poll(ctx, func(ctx context.Context) (bool, error) { return true, d.checkWorkload(ctx, a) })
		if err != nil {
			return "", err
		}
		notes = append(notes, fmt.Sprintf("%s runs Deployment and ConfigMap %s/%s", a.member.name, workload, workload))
	}
	return strings.Join(notes, "; "), nil
}

// checkWorkload checks the objects on the member, and the status that the agent reported to the hub.
func (d *demo) checkWorkload(ctx context.Context, a registeredCluster) error {
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
		errorUnless(deployment.Status.AvailableReplicas > 0, "Deployment %s/%s on %s has no available replica", workload, workload, a.member.name),
		errorUnless(deployed.Status.Ready, "BundleDeployment %s of %s is not ready: %s", workload, a.name, deployed.Status.Display.State),
	)
}

func errorUnless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// agentState is the state of one agent: what an update must not change, and what it must change.
type agentState struct {
	credential string // UID of the Secret
	requests   int    // number of ClusterRegistrations of its Cluster
	template   *appsv1.DeploymentSpec
	cluster    *fleet.Cluster
}

// agentStateOf reads the state from hub and member.
func (d *demo) agentStateOf(ctx context.Context, a registeredCluster) (agentState, error) {
	cluster, err := d.hub.admin.Fleet.Clusters(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	if err != nil {
		return agentState{}, err
	}
	requests, err := d.hub.admin.Fleet.ClusterRegistrations(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return agentState{}, err
	}
	secret, err := a.member.admin.Kubernetes.CoreV1().Secrets(systemNamespace).Get(ctx, registration.CredentialSecret, metav1.GetOptions{})
	if err != nil {
		return agentState{}, err
	}
	deployment, err := a.member.admin.Kubernetes.AppsV1().Deployments(systemNamespace).Get(ctx, registration.AgentName, metav1.GetOptions{})
	if err != nil {
		return agentState{}, err
	}
	return agentState{
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

func (r agentState) env(name string) string {
	for _, v := range r.template.Template.Spec.Containers[0].Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// adopted waits until the agent runs as its Bundle specifies, with the given setting.
func (d *demo) adopted(ctx context.Context, a registeredCluster, setting func(agentState) error) (r agentState, err error) {
	err = poll(ctx, func(ctx context.Context) (bool, error) {
		if r, err = d.agentStateOf(ctx, a); err != nil {
			return false, err
		}
		ready := r.cluster.Status.Summary.Ready == r.cluster.Status.Summary.DesiredReady && r.cluster.Status.Summary.DesiredReady > 0
		return true, errors.Join(
			errorUnless(registration.IsManagedGeneration(r.cluster.Status.Agent.Generation), "the agent of %s has not adopted its own Deployment yet", a.name),
			errorUnless(ready, "only %[2]s of the Bundles of %[1]s are ready", a.name, r.cluster.Status.Display.ReadyBundles),
			setting(r),
		)
	})
	return r, err
}

// adoptAgents waits until all agents have adopted their own Deployments.
func adoptAgents(ctx context.Context, d *demo) (string, error) {
	for i := range d.registered {
		r, err := d.adopted(ctx, d.registered[i], func(agentState) error { return nil })
		if err != nil {
			return "", err
		}
		d.registered[i].agent = r
	}
	return "each agent restarted once, with " + registration.GenerationEnv + "=" + d.registered[0].agent.env(registration.GenerationEnv) + ", and kept its credential", nil
}

const (
	settingName  = "GREETING"
	settingValue = "good-morning"
)

// changeSetting sets an environment variable of one agent and waits until the agent runs with it.
func changeSetting(ctx context.Context, d *demo) (string, error) {
	a, err := d.clusterOf(d.east)
	if err != nil {
		return "", err
	}
	patch := fmt.Sprintf(`{"spec":{"agentEnvVars":[{"name":%q,"value":%q}]}}`, settingName, settingValue)
	if err := d.hub.patchCluster(ctx, *a, patch); err != nil {
		return "", err
	}
	r, err := d.adopted(ctx, *a, func(r agentState) error {
		return errorUnless(r.env(settingName) == settingValue, "the agent's Deployment on %s does not have the variable yet", a.member.name)
	})
	if err != nil {
		return "", err
	}
	if err := a.member.awaitDeployment(ctx, registration.AgentName); err != nil {
		return "", err
	}
	if r.credential != a.agent.credential || r.requests != a.agent.requests {
		return "", errors.New("the agent registered again, although only a setting has changed")
	}
	return "updated by its Bundle; same credential, no new registration", nil
}
