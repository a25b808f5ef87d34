package finalizing

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestInProgress(t *testing.T) {
	for _, row := range []struct {
		name                                       string
		deleted, isNamespaceDeleting, hasFinalizer bool
		is                                         bool
	}{
		{name: "not deleted", hasFinalizer: true},
		{name: "deleted", deleted: true, hasFinalizer: true, is: true},
		{name: "namespace deleted", isNamespaceDeleting: true, hasFinalizer: true, is: true},
		{name: "deleted, without the finalizer", deleted: true, isNamespaceDeleting: true},
	} {
		c := &fleet.Cluster{}
		if row.deleted {
			c.DeletionTimestamp = &metav1.Time{}
		}
		if row.hasFinalizer {
			c.Finalizers = []string{fleet.ClusterFinalizer}
		}
		assert.Equal(t, row.is, InProgress(c, row.isNamespaceDeleting), row.name)
	}
}

func TestIsNamespaceBeingDeleted(t *testing.T) {
	deleted := metav1.Now()
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stays"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "goes", DeletionTimestamp: &deleted}},
	)
	for name, want := range map[string]bool{"stays": false, "goes": true, "gone": false} {
		goes, err := IsNamespaceBeingDeleted(t.Context(), client, name)
		require.NoError(t, err, name)
		assert.Equal(t, want, goes, name)
	}
	cause := errors.New("out")
	client.PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, cause })
	_, err := IsNamespaceBeingDeleted(t.Context(), client, "stays")
	require.ErrorIs(t, err, cause)
}

func TestDeletedRequests(t *testing.T) {
	var deleted RequestsDeletedWithCluster
	one, other := types.NamespacedName{Namespace: "ns", Name: "one"}, types.NamespacedName{Namespace: "ns", Name: "other"}
	deleted.Add(one)
	deleted.Add(one)
	assert.False(t, deleted.Take(other))
	assert.True(t, deleted.Take(one))
	assert.False(t, deleted.Take(one))
}
