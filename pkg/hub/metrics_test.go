package hub

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestOwnOf(t *testing.T) {
	named := func(name string, labels map[string]string) *fleet.Cluster {
		return &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: labels}}
	}
	list := func(namespace string, _ labels.Selector) ([]*fleet.Cluster, error) {
		assert.Empty(t, namespace, "all namespaces")
		return []*fleet.Cluster{named("a", nil), named("b", nil), named("foreign", map[string]string{fleet.ClusterManagementLabel: "another"})}, nil
	}
	own, err := ownOf(list)()
	require.NoError(t, err)
	assert.Len(t, own, 2, "a Cluster that is handed to another controller does not count")
	_, err = ownOf(func(string, labels.Selector) ([]*fleet.Cluster, error) { return nil, assert.AnError })()
	require.ErrorIs(t, err, assert.AnError)
}
