package agentmanifest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestOwnedObjects(t *testing.T) {
	inventory := OwnedObjects("ns")
	t.Run("every rendered object is listed", func(t *testing.T) {
		rendered, err := Render(Options{Namespace: "ns", Image: "image"})
		require.NoError(t, err)
		budget := &fleet.PodDisruptionBudgetSpec{MinAvailable: "1"}
		scheduling, err := Scheduling("ns", &fleet.AgentSchedulingCustomization{PodDisruptionBudget: budget})
		require.NoError(t, err)
		for _, object := range append(rendered, scheduling...) {
			identity := identify(t, object)
			if identity.Kind == "ServiceAccount" && identity.Name == "default" {
				continue // Kubernetes' own
			}
			assert.Contains(t, inventory, identity)
		}
	})
	t.Run("the resource of each kind is known", func(t *testing.T) {
		for _, object := range append(inventory, OwnedObject{Kind: "PriorityClass"}) {
			assert.Contains(t, Resources, object.Kind)
		}
	})
	t.Run("no object is listed twice", func(t *testing.T) {
		seen := map[OwnedObject]bool{}
		for _, object := range inventory {
			assert.False(t, seen[object], "%+v", object)
			seen[object] = true
		}
	})
	t.Run("the Deployment goes first, the objects that identify the agent last", func(t *testing.T) {
		assert.Equal(t, "Deployment", inventory[0].Kind)
		assert.Equal(t, []OwnedObject{{"ConfigMap", "ns", "fleet-agent"}, {"Secret", "ns", "fleet-agent"}}, inventory[len(inventory)-2:])
	})
	t.Run("cluster-wide names depend on the namespace", func(t *testing.T) {
		for _, other := range OwnedObjects("other") {
			assert.NotContains(t, inventory, other)
		}
	})
}

func identify(t *testing.T, object runtime.Object) OwnedObject {
	t.Helper()
	accessor, err := meta.Accessor(object)
	require.NoError(t, err)
	return OwnedObject{object.GetObjectKind().GroupVersionKind().Kind, accessor.GetNamespace(), accessor.GetName()}
}
