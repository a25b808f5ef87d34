package demo

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// workload is the name of the Bundle that the demo deploys, and of its namespace and objects.
const workload = "hello"

// helloManifest contains a Deployment and a ConfigMap.
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
		if err := poll(ctx, func(ctx context.Context) error { return d.checkWorkload(ctx, a) }); err != nil {
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
	switch {
	case deployment.Status.AvailableReplicas == 0:
		return fmt.Errorf("Deployment %s/%s on %s has no available replica", workload, workload, a.member.name)
	case !deployed.Status.Ready:
		return fmt.Errorf("BundleDeployment %s of %s is not ready: %s", workload, a.name, deployed.Status.Display.State)
	}
	return nil
}

// adoptAgents waits until each agent runs with the settings of its Bundle.
func adoptAgents(ctx context.Context, d *demo) (string, error) {
	generation := ""
	for _, a := range d.registered {
		err := poll(ctx, func(ctx context.Context) error {
			cluster, err := d.hub.admin.Fleet.Clusters(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			generation = cluster.Status.Agent.Generation
			switch summary := cluster.Status.Summary; {
			case !registration.IsManagedGeneration(generation):
				return fmt.Errorf("the agent of %s has not adopted its own Deployment yet", a.name)
			case summary.DesiredReady == 0 || summary.Ready != summary.DesiredReady:
				return fmt.Errorf("only %s of the Bundles of %s are ready", cluster.Status.Display.ReadyBundles, a.name)
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return "each agent restarted once, with " + registration.GenerationEnv + "=" + generation, nil
}
