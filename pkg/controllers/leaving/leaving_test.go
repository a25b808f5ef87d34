package leaving

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestWhoSaysFarewell(t *testing.T) {
	for _, row := range []struct {
		name                                string
		deleted, withNamespace, hasFarewell bool
		is                                  bool
	}{
		{name: "one that stays", hasFarewell: true},
		{name: "one that is deleted", deleted: true, hasFarewell: true, is: true},
		{name: "one that is about to be deleted with its namespace", withNamespace: true, hasFarewell: true, is: true},
		{name: "one whose farewell is over", deleted: true, withNamespace: true},
	} {
		c := &fleet.Cluster{}
		if row.deleted {
			c.DeletionTimestamp = &metav1.Time{}
		}
		if row.hasFarewell {
			c.Finalizers = []string{fleet.ClusterFinalizer}
		}
		assert.Equal(t, row.is, Is(c, row.withNamespace), row.name)
	}
}

func TestWhetherANamespaceGoes(t *testing.T) {
	deleted := metav1.Now()
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stays"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "goes", DeletionTimestamp: &deleted}},
	)
	for name, want := range map[string]bool{"stays": false, "goes": true, "gone": false} {
		goes, err := WithNamespace(t.Context(), client, name)
		require.NoError(t, err, name)
		assert.Equal(t, want, goes, name)
	}
	cause := errors.New("out of order")
	client.PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, cause })
	_, err := WithNamespace(t.Context(), client, "stays")
	require.ErrorIs(t, err, cause)
}
