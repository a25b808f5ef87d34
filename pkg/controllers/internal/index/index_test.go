package index

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

func TestAccountByRequest(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "cluster-ns", Name: "request-abc-uid", Annotations: map[string]string{
		fleet.ClusterRegistrationNamespaceAnnotation: "fleet-default", fleet.ClusterRegistrationAnnotation: "request-abc",
	}}}
	keys, err := accountByRequest(account)
	require.NoError(t, err)
	assert.Equal(t, []string{Key("fleet-default", "request-abc")}, keys)

	delete(account.Annotations, fleet.ClusterRegistrationNamespaceAnnotation)
	keys, err = accountByRequest(account)
	require.NoError(t, err)
	assert.Empty(t, keys, "that of a token")
}
