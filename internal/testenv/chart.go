package testenv

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/helminstall"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/pkg/admission"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

// InstallChart installs or upgrades the chart fleet with these values, except for the Deployment. It returns an option for a hub with the
// rights of the chart's ServiceAccount and the flags of the Deployment. The hub uses the admission policies of the chart.
func (c *Cluster) InstallChart(t testing.TB, values map[string]any) func(*muster.Options) {
	t.Helper()
	objects := ObjectsOfHubChart(t, values)
	_, err := c.Kubernetes.CoreV1().Namespaces().Create(context.Background(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: SystemNamespace}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
	policies, err := policiesFor(c.RESTConfig())
	require.NoError(t, err)
	var command []string
	for _, object := range objects {
		if object.GetKind() == "Deployment" {
			command = commandOf(t, object)
			continue
		}
		if object.GroupVersionKind().Group == admission.Group && !slices.ContainsFunc(policies, func(policy *unstructured.Unstructured) bool {
			return policy.GetKind() == object.GetKind() && policy.GetName() == object.GetName()
		}) {
			continue // this version of Kubernetes cannot have it, and Helm would not render it
		}
		c.install(t, object)
	}
	cfg := &rest.Config{
		Host: c.URL(), BearerToken: c.TokenOf(t, SystemNamespace, "fleet-controller"), TLSClientConfig: rest.TLSClientConfig{CAData: c.CA()},
	}
	return func(o *muster.Options) {
		o.RESTConfig = rest.CopyConfig(cfg)
		o.DisableBootstrap = slices.Contains(command, "--disable-bootstrap")
		o.LeaveAdmission = true
	}
}

// InstallAgentChart installs the chart fleet-agent with Helm, with these values for the registration and more values of the chart.
func (c *Cluster) InstallAgentChart(t testing.TB, namespace string, v registration.Values, more map[string]any) {
	t.Helper()
	values := map[string]any{
		"apiServerURL": v.APIServerURL, "apiServerCA": v.APIServerCA, "clusterNamespace": v.Workspace, "token": v.Token, "tokenName": v.TokenName,
		"systemRegistrationNamespace": v.SystemRegistrationNamespace,
	}
	maps.Copy(values, more)
	require.NoError(t, helminstall.Install(t.Context(), c.RESTConfig(), namespace, charts.Agent, values))
}

// InstallKinds installs the chart fleet-crd with Helm, and waits until the API server serves its kinds.
func (c *Cluster) InstallKinds(t testing.TB) {
	t.Helper()
	require.NoError(t, helminstall.Install(t.Context(), c.RESTConfig(), SystemNamespace, charts.CRD, nil))
	require.NoError(t, withkinds.Install(t.Context(), c.ControlPlane))
}

func commandOf(t testing.TB, deployment *unstructured.Unstructured) []string {
	t.Helper()
	containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	require.NoError(t, err)
	command, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "command")
	require.NoError(t, err)
	return command
}

// ObjectsOfHubChart returns the objects of the chart fleet with these values.
func ObjectsOfHubChart(t testing.TB, values map[string]any) (objects []*unstructured.Unstructured) {
	t.Helper()
	manifests, err := charts.Render(charts.Hub, charts.Release{Name: charts.Hub, Namespace: SystemNamespace}, values)
	require.NoError(t, err)
	for _, manifest := range manifests {
		documents, err := charts.Documents(manifest)
		require.NoError(t, err)
		for _, document := range documents {
			object := &unstructured.Unstructured{}
			require.NoError(t, object.UnmarshalJSON(document))
			objects = append(objects, object)
		}
	}
	return objects
}

func (c *Cluster) install(t testing.TB, object *unstructured.Unstructured) {
	t.Helper()
	client, err := dynamic.NewForConfig(c.RESTConfig())
	require.NoError(t, err)
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	objects := dynamic.ResourceInterface(client.Resource(resource))
	if object.GetNamespace() != "" {
		objects = client.Resource(resource).Namespace(object.GetNamespace())
	}
	_, err = objects.Apply(t.Context(), object.GetName(), object, metav1.ApplyOptions{FieldManager: "helm", Force: true})
	require.NoError(t, err)
}
