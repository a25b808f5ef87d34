package describe

import (
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/genericcondition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/muster-fleet/muster/internal/admin"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetfake "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/fake"
	"github.com/muster-fleet/muster/pkg/registration"
)

const unrendered = "the Helm values cannot be rendered: map has no entry for key \"region\""

// bundleFor returns a Bundle whose status has an error about Cluster ws/east.
func bundleFor(name, reason, message string) *fleet.Bundle {
	b := &fleet.Bundle{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: name}}
	b.Status.Conditions = []genericcondition.GenericCondition{{
		Type: fleet.ConditionReady, Status: corev1.ConditionFalse, Reason: reason, Message: "ErrApplied(2) [Cluster ws/east: " + message + "; Cluster ws/north: no]",
	}}
	b.Status.Summary.NonReadyResources = []fleet.NonReadyResource{{Name: "ws/north", Message: "no"}, {Name: "ws/east", Message: message}}
	return b
}

// A Bundle that the hub cannot deploy to the cluster has no BundleDeployment, and is shown with the reason.
func TestOf_refusedBundles(t *testing.T) {
	namespace := registration.ClusterNamespace("ws", "east")
	deployment := func(name string, isReady bool) *fleet.BundleDeployment {
		return &fleet.BundleDeployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{fleet.BundleNamespaceLabel: "ws"}},
			Spec:       fleet.BundleDeploymentSpec{DeploymentID: "id", StagedDeploymentID: "id"},
			Status:     fleet.BundleDeploymentStatus{AppliedDeploymentID: "id", Ready: isReady, NonModified: true},
		}
	}
	objects := []runtime.Object{
		deployment("good", true), deployment("shop", false), bundleFor("good", fleet.ReasonDeployFailed, unrendered), bundleFor("shop", fleet.ReasonNotReady, "not ready"),
		bundleFor("values", fleet.ReasonDeployFailed, unrendered), bundleFor("large", fleet.ReasonWorkspaceLimitReached, "it is too large"), bundleFor("other", fleet.ReasonBundleInvalid, ""),
	}
	unlisted := bundleFor("unlisted", fleet.ReasonDeployFailed, "")
	unlisted.Status.Summary.NonReadyResources, unlisted.Status.Conditions[0].Message = nil, "ErrApplied(20) [Cluster ws/a]"
	quoted := bundleFor("quoted", fleet.ReasonAllReady, "")
	quoted.Status.Conditions[0].Status = corev1.ConditionTrue
	foreign := deployment("taken", true)
	foreign.Labels[fleet.BundleNamespaceLabel] = "other"
	objects = append(objects, unlisted, quoted, deployment("quoted", true), foreign, bundleFor("taken", fleet.ReasonNameConflict, "it is not from this workspace"))
	for name, row := range map[string]struct {
		status          corev1.ConditionStatus
		reason, message string
		want            []string
	}{
		"a template": {
			corev1.ConditionFalse, fleet.ReasonBundleInvalid, "Bundle values: " + unrendered + "; NotReady(1) [Bundle shop: not ready]",
			[]string{"Bundle ws/values: NotDeployed, BundleInvalid (" + unrendered + ")"},
		},
		"an earlier version is deployed": {
			corev1.ConditionFalse, fleet.ReasonBundleInvalid, "Bundle good: " + unrendered,
			[]string{"Bundle ws/good: NotUpdated, BundleInvalid (" + unrendered + ")"},
		},
		"another workspace has the BundleDeployment": {
			corev1.ConditionFalse, fleet.ReasonNameConflict, "BundleDeployment " + namespace + "/taken exists",
			[]string{"Bundle ws/taken: NotDeployed, NameConflict (it is not from this workspace)"},
		},
		"several": {
			corev1.ConditionFalse, fleet.ReasonBundleInvalid, "Bundle values: " + unrendered + "; what Bundle ws/large has in options and Helm values takes 201 kB; Bundle values: again",
			[]string{"Bundle ws/values: NotDeployed, DeployFailed (" + unrendered + ")", "Bundle ws/large: NotDeployed, WorkspaceLimitReached (it is too large)"},
		},
		"the Bundle lists other Clusters": {
			corev1.ConditionFalse, fleet.ReasonBundleInvalid, "Bundle unlisted: " + unrendered, []string{"Bundle ws/unlisted: NotDeployed, BundleInvalid (ErrApplied(20) [Cluster ws/a])"},
		},
		"the BundleDeployment cannot be created": {
			corev1.ConditionFalse, fleet.ReasonError, "creating BundleDeployment " + namespace + "/values: denied", []string{"Bundle ws/values: NotDeployed, Error (" + unrendered + ")"},
		},
		"another error names it": {
			corev1.ConditionFalse, fleet.ReasonBundleInvalid, "Bundle values: " + unrendered + "; NotReady(1) [Bundle shop: waits for Bundle quoted]",
			[]string{"Bundle ws/values: NotDeployed, BundleInvalid (" + unrendered + ")"},
		},
		"the Bundle is gone":  {corev1.ConditionFalse, fleet.ReasonBundleInvalid, "Bundle gone: " + unrendered, nil},
		"only not ready":      {corev1.ConditionFalse, fleet.ReasonNotReady, "NotReady(1) [Bundle shop: Bundle values]", nil},
		"ready":               {corev1.ConditionTrue, fleet.ReasonAllReady, "Bundle values", nil},
		"cannot be read":      {corev1.ConditionFalse, fleet.ReasonBundleInvalid, "Bundle secret: " + unrendered, nil},
		"no name of a Bundle": {corev1.ConditionFalse, fleet.ReasonTooLarge, "Bundles, a Bundle, and Bundle: none", nil},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "east", UID: "east"}}
			cluster.Status.Conditions = []genericcondition.GenericCondition{{Type: fleet.ConditionReady, Status: row.status, Reason: row.reason, Message: row.message}}
			clients := fleetfake.NewSimpleClientset(append(objects, cluster)...)
			clients.PrependReactor("get", "bundles", func(action clienttesting.Action) (bool, runtime.Object, error) {
				name := action.(clienttesting.GetAction).GetName()
				return name == "secret", nil, apierrors.NewForbidden(schema.GroupResource{Resource: "bundles"}, name, nil)
			})
			kubernetes := kubernetesfake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
			d, err := Of(t.Context(), &admin.Hub{Kubernetes: kubernetes, Fleet: clients.FleetV1alpha1()}, "ws", "east", time.Unix(0, 0))
			require.NoError(t, err)
			var shown []string
			for _, r := range d.Objects {
				if r.Kind == "Bundle" {
					shown = append(shown, title(r))
				}
			}
			assert.Equal(t, row.want, shown)
			assert.Equal(t, name == "cannot be read", len(d.Incomplete) > 0, d.Incomplete)
		})
	}
}

// A BundleDeployment that a finalizer keeps was Ready before, and its agent has removed the release.
func TestOf_deletedBundleDeployment(t *testing.T) {
	namespace := registration.ClusterNamespace("ws", "east")
	cluster := &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ws", Name: "east", UID: "east"}}
	held := &fleet.BundleDeployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "good", DeletionTimestamp: &metav1.Time{Time: time.Unix(0, 0)}, Finalizers: []string{"example.com/stuck"}},
		Spec:       fleet.BundleDeploymentSpec{DeploymentID: "id", StagedDeploymentID: "id", Paused: true},
		Status:     fleet.BundleDeploymentStatus{AppliedDeploymentID: "id", Ready: true, NonModified: true},
	}
	kubernetes := kubernetesfake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	d, err := Of(t.Context(), &admin.Hub{Kubernetes: kubernetes, Fleet: fleetfake.NewSimpleClientset(cluster, held).FleetV1alpha1()}, "ws", "east", time.Unix(0, 0))
	require.NoError(t, err)
	var shown []string
	for _, r := range d.Objects {
		for _, inNamespace := range r.Objects {
			shown = append(shown, title(inNamespace))
		}
	}
	assert.Equal(t, []string{"BundleDeployment " + namespace + "/good: Deleting (since 1970-01-01T00:00:00Z, waiting for its finalizers: example.com/stuck)"}, shown)
}
