package attacks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A user of a workspace writes a Bundle, or a Secret, once, and the hub stores it for each Cluster. The database of the API server is for all
// workspaces.
func TestAmplification(t *testing.T) {
	sample.Long(t)
	const clusters, size, limit = 12, 300 << 10, 1 << 20
	s := testenv.EmptyStage(t)
	s.Hub.Configure(t, map[string]any{"bundles": map[string]any{"workspaceLimitMiB": 1}})
	s.Hub.Hub(t)
	large := strings.Repeat("x", size)
	for n := range clusters {
		testenv.Create(t, s.Hub.Fleet.Clusters(s.Namespace).Create, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c-", n)}})
	}
	testenv.Create(t, s.Hub.Kubernetes.CoreV1().Secrets(s.Namespace).Create, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "large"}, Data: map[string][]byte{"large": []byte(large)},
	})
	for name, options := range map[string]fleet.BundleDeploymentOptions{
		"options": {NamespaceAnnotations: map[string]string{"large": large}},
		"values":  {Helm: &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"large": large}}}},
		"copies":  {DownstreamResources: []fleet.DownstreamResource{{Kind: "Secret", Name: "large"}}},
		"small":   {TargetNamespace: "small"},
	} {
		testenv.Create(t, s.Hub.Fleet.Bundles(s.Namespace).Create, &fleet.Bundle{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       fleet.BundleSpec{BundleDeploymentOptions: options, Targets: []fleet.BundleTarget{{ClusterSelector: &metav1.LabelSelector{}}}},
		})
	}
	testenv.Eventually(t, func() (bool, string) {
		missing := 0
		for n := range clusters {
			namespace := registration.ClusterNamespace(s.Namespace, fmt.Sprint("c-", n))
			if _, err := s.Hub.Fleet.BundleDeployments(namespace).Get(t.Context(), "small", metav1.GetOptions{}); err != nil {
				missing++
			}
		}
		return missing == 0, fmt.Sprint("Clusters without the small Bundle: ", missing)
	})
	want := "False WorkspaceLimitReached: what Bundle " + s.Namespace + "/options has in options and Helm values takes 601 kB for each Cluster"
	testenv.Eventually(t, func() (bool, string) {
		b := testenv.RequireThere(t, s.Hub.Fleet.Bundles(s.Namespace).Get, "options")
		ready := testenv.Condition(b.Status.Conditions, fleet.ConditionReady)
		return strings.HasPrefix(ready, want), ready
	})

	stored := 0
	for n := range clusters {
		namespace := registration.ClusterNamespace(s.Namespace, fmt.Sprint("c-", n))
		deployments := testenv.List(t, s.Hub.Fleet.BundleDeployments(namespace).List, metav1.ListOptions{})
		secrets := testenv.List(t, s.Hub.Kubernetes.CoreV1().Secrets(namespace).List, metav1.ListOptions{})
		stored += strings.Count(testenv.Bytes(t, deployments), large) * size
		for _, secret := range secrets.Items {
			for _, value := range secret.Data {
				stored += len(value)
			}
		}
	}
	assert.Less(t, stored, limit+limit/10)
	assert.Greater(t, stored, limit/2, "what is within the limit is stored")
}
