package hub

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestAHubCountsWhatIsItsOwn(t *testing.T) {
	named := func(name string, labels map[string]string) *fleet.Cluster {
		return &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: labels}}
	}
	list := func(namespace string, _ labels.Selector) ([]*fleet.Cluster, error) {
		assert.Empty(t, namespace, "of every namespace")
		return []*fleet.Cluster{named("a", nil), named("b", nil), named("foreign", map[string]string{fleet.ClusterManagementLabel: "another"})}, nil
	}
	own, err := ownOf(list)()
	require.NoError(t, err)
	assert.Len(t, own, 2, "what is handed to another controller is not")
}

func TestACacheThatCannotListIsAnErrorOfTheCensus(t *testing.T) {
	list := func(string, labels.Selector) ([]*fleet.Cluster, error) { return nil, assert.AnError }
	_, err := ownOf(list)()
	require.ErrorIs(t, err, assert.AnError)
}
