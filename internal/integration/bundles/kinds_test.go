package bundles

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/fleetstatus"
)

// Somebody deletes the kinds of ClusterGroups and Bundles, and the API server answers that it does not know them. A hub that starts then creates them
// again, empty.
func TestDeletedKinds(t *testing.T) {
	sample.Long(t)
	s, running := newShop(t)
	extensions, err := clientset.NewForConfig(s.hub.RESTConfig())
	require.NoError(t, err)
	definitions := extensions.ApiextensionsV1().CustomResourceDefinitions()
	s.cluster(t, "a", map[string]string{"edge": "yes"})
	toGroup := func(b *fleet.Bundle) { b.Spec.Targets = []fleet.BundleTarget{{ClusterGroup: "edges"}} }
	create := func() {
		testenv.Create(t, s.hub.Fleet.ClusterGroups(s.ns).Create, &fleet.ClusterGroup{
			ObjectMeta: metav1.ObjectMeta{Name: "edges"}, Spec: fleet.ClusterGroupSpec{Selector: selecting("edge", "yes")},
		})
		s.bundle(t, "named", "one", namedTarget("a"))
		s.bundle(t, "grouped", "two", toGroup)
	}
	create()
	deployments := map[string]types.UID{}
	for _, bundle := range []string{"named", "grouped"} {
		deployments[bundle] = s.eventuallyDeployment(t, "a", bundle, func(*fleet.BundleDeployment) bool { return true }).UID
	}
	requireKept := func() {
		t.Helper()
		for bundle, uid := range deployments {
			deployment := s.deployment(t, "a", bundle)
			assert.Equal(t, uid, deployment.UID, bundle)
			assert.Nil(t, deployment.DeletionTimestamp, bundle)
		}
	}
	requireReady := func(reason string, says ...string) {
		t.Helper()
		testenv.EventuallyIs(t, s.hub.Fleet.Clusters(s.ns).Get, "a", func(c *fleet.Cluster) (bool, string) {
			ready := fleetstatus.Condition(c.Status.Conditions, fleet.ConditionReady)
			lacks := slices.ContainsFunc(says, func(text string) bool { return !strings.Contains(ready.Message, text) })
			return ready.Reason == reason && !lacks, ready.Reason + ": " + ready.Message
		})
		requireKept()
	}
	remove := func(resource string) {
		t.Helper()
		name := resource + ".fleet.cattle.io"
		require.NoError(t, definitions.Delete(t.Context(), name, metav1.DeleteOptions{}))
		testenv.RequireGone(t, definitions.Get, "CustomResourceDefinition", name)
	}

	stays := func(name string) string { return s.namespaceOf("a") + "/" + name + " stays" }
	// copyOf creates another BundleDeployment, and causes a pass for which the API server does not serve the kind any more.
	copyOf := func(bundle, name string) {
		t.Helper()
		d := s.deployment(t, "a", bundle)
		d.ObjectMeta = metav1.ObjectMeta{Name: name, Labels: d.Labels}
		d.Labels[fleet.BundleNameLabel] = name
		deployments[name] = testenv.Create(t, s.hub.Fleet.BundleDeployments(s.namespaceOf("a")).Create, d).UID
		testenv.EventuallyIs(t, s.hub.Fleet.Clusters(s.ns).Get, "a", func(c *fleet.Cluster) (bool, string) {
			message := fleetstatus.Condition(c.Status.Conditions, fleet.ConditionReady).Message
			if strings.Contains(message, stays(name)) {
				return true, ""
			}
			testenv.Merge(t, s.hub.Fleet.Clusters(s.ns).Patch, "a", `{"metadata":{"labels":{"touched":"`+rand.String(5)+`"}}}`) // enqueues it
			return false, message
		})
	}

	remove("clustergroups")
	requireReady(fleet.ReasonKindDeleted, stays("grouped"), "clustergroups.fleet.cattle.io")
	s.bundle(t, "late", "three", toGroup)
	copyOf("grouped", "late")
	requireReady(fleet.ReasonKindDeleted, stays("grouped"), stays("late"))

	remove("bundles")
	requireReady(fleet.ReasonKindDeleted, stays("grouped"), stays("late"), stays("named"), "bundles.fleet.cattle.io")

	running.Stop(t)
	requireKept()
	s.hub.Hub(t)
	testenv.EventuallyThere(t, definitions.Get, "bundles.fleet.cattle.io")
	testenv.EventuallyThere(t, definitions.Get, "clustergroups.fleet.cattle.io")
	requireReady(fleet.ReasonKindDeleted, stays("grouped"), stays("late"), stays("named"))

	create()
	s.bundle(t, "late", "three", toGroup)
	requireReady(fleet.ReasonNotReady)
}
