package attacks

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// largeBundle is for Cluster c. Its values take 430 KiB of the hub's memory, because they are random.
func largeBundle(name string) *fleet.Bundle {
	random := make([]byte, 430<<10)
	_, _ = rand.Read(random)
	b := &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.BundleSpec{Targets: []fleet.BundleTarget{{ClusterName: "c"}}}}
	b.Spec.Helm = &fleet.HelmOptions{Values: &fleet.GenericMap{Data: map[string]any{"a": base64.StdEncoding.EncodeToString(random)}}}
	return b
}

// A tenant creates large objects, more than the memory of the hub has room for.
func TestWorkspaceMemory(t *testing.T) {
	const message = " KiB of the hub's memory, and the large objects of this workspace would take more than 1 MiB together; "
	s := testenv.EmptyStage(t)
	s.Hub.Configure(t, map[string]any{"bundles": map[string]any{"workspaceMemoryMiB": 1}})
	s.Hub.Hub(t)
	other := s.Hub.Namespace(t)
	for _, workspace := range []string{s.Namespace, other} {
		testenv.Create(t, s.Hub.Fleet.Clusters(workspace).Create, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}})
	}
	bundles := s.Hub.Fleet.Bundles(s.Namespace)
	deployments := s.Hub.Fleet.BundleDeployments(registration.ClusterNamespace(s.Namespace, "c"))
	dropped := func(name string) {
		testenv.EventuallyIs(t, bundles.Get, name, func(b *fleet.Bundle) (bool, string) {
			ready := testenv.Condition(b.Status.Conditions, fleet.ConditionReady)
			return strings.HasPrefix(ready, "False BundleInvalid: this object takes ") && strings.Contains(ready, message), ready
		})
	}
	testenv.Create(t, bundles.Create, largeBundle("one"))
	before := testenv.EventuallyThere(t, deployments.Get, "one")
	testenv.Create(t, bundles.Create, largeBundle("two"))
	testenv.EventuallyThere(t, deployments.Get, "two")

	for n := range 3 {
		name := fmt.Sprint("further-", n)
		testenv.Create(t, bundles.Create, largeBundle(name))
		dropped(name)
	}

	// What is deployed stays if its Bundle grows beyond the limit, and others are not affected.
	grown := largeBundle("one")
	grown.Spec.Helm.Values.Data["b"] = grown.Spec.Helm.Values.Data["a"]
	grown.ResourceVersion = testenv.RequireThere(t, bundles.Get, "one").ResourceVersion
	testenv.Update(t, bundles.Update, grown)
	dropped("one")
	after := testenv.RequireThere(t, deployments.Get, "one")
	assert.Equal(t, before.UID, after.UID)
	assert.Equal(t, before.Spec.DeploymentID, after.Spec.DeploymentID)
	testenv.Create(t, s.Hub.Fleet.Bundles(other).Create, largeBundle("one"))
	testenv.EventuallyThere(t, s.Hub.Fleet.BundleDeployments(registration.ClusterNamespace(other, "c")).Get, "one")

	// The Bundle that has grown has left room for one of the others, and the deletion of another one leaves room for the next.
	require.NoError(t, bundles.Delete(t.Context(), "two", metav1.DeleteOptions{}))
	require.NoError(t, bundles.Delete(t.Context(), "one", metav1.DeleteOptions{}))
	testenv.Eventually(t, func() (bool, string) {
		var deployed []string
		for _, deployment := range testenv.List(t, deployments.List, metav1.ListOptions{}).Items {
			deployed = append(deployed, deployment.Name)
		}
		isFurther := func(name string) bool { return strings.HasPrefix(name, "further-") }
		return len(deployed) == 2 && isFurther(deployed[0]) && isFurther(deployed[1]), fmt.Sprint("deployed: ", deployed)
	})
	whole := 0
	for _, b := range testenv.List(t, bundles.List, metav1.ListOptions{}).Items {
		if b.Annotations[fleet.RestoredAnnotation] != "" {
			whole++
		}
	}
	assert.Equal(t, 2, whole, "nothing is written to a Bundle for which there is no room")

	// Last, because another Cluster changes the status of each Bundle, and the event of that write, too, brings a Bundle for which there is room.
	testenv.Create(t, s.Hub.Fleet.Clusters(s.Namespace).Create, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{
		Name: "large", Annotations: map[string]string{"large": strings.Repeat("x", 240<<10)},
	}})
	s.Hub.WaitCondition(t, testenv.KindCluster, s.Namespace, "large", fleet.ConditionReady, "False TooLarge: this object takes 24")
	s.DeleteCluster(t, "large")
}
