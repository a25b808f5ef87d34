package index

import (
	"fmt"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestAccountByRequest(t *testing.T) {
	namespace := registration.ClusterNamespace("fleet-default", "edge")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "request-abc-uid", Annotations: map[string]string{
		fleet.ClusterRegistrationNamespaceAnnotation: "fleet-default", fleet.ClusterRegistrationAnnotation: "request-abc", fleet.ClusterAnnotation: "edge",
	}}}
	assert.Equal(t, []string{Key("fleet-default", "request-abc")}, accountByRequest(account))

	account.Namespace = "tenant"
	assert.Empty(t, accountByRequest(account), "marked by a user of another workspace")
	account.Namespace = namespace

	delete(account.Annotations, fleet.ClusterRegistrationNamespaceAnnotation)
	assert.Empty(t, accountByRequest(account), "the ServiceAccount of a token belongs to no request")
}

func TestNames(t *testing.T) {
	assert.Equal(t, []types.NamespacedName{{Namespace: "ns", Name: "c"}},
		Names([]*fleet.Cluster{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}}))
}

// accounts is a cache of ServiceAccounts.
type accounts struct{ cache.Indexer }

func (a accounts) AddIndexer(name string, keys generic.Indexer[*corev1.ServiceAccount]) {
	_ = a.AddIndexers(cache.Indexers{name: func(object any) ([]string, error) { return keys(object.(*corev1.ServiceAccount)) }})
}

func (a accounts) GetByIndex(name, key string) (found []*corev1.ServiceAccount, err error) {
	all, err := a.ByIndex(name, key)
	for _, object := range all {
		found = append(found, object.(*corev1.ServiceAccount))
	}
	return found, err
}

func TestBucketed(t *testing.T) {
	a := accounts{Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
	_, err := AccountsByRequest.Find(a, "fleet-default/request-1")
	require.Error(t, err, "no index")
	AccountsByRequest.AddTo(a)
	AccountsByNamespace.AddTo(a)
	const requests = 1000
	for n := range requests {
		require.NoError(t, a.Add(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: registration.ClusterNamespace("fleet-default", fmt.Sprint(n)), Name: fmt.Sprint("account-", n), Annotations: map[string]string{
				fleet.ClusterRegistrationNamespaceAnnotation: "fleet-default", fleet.ClusterRegistrationAnnotation: fmt.Sprint("request-", n),
				fleet.ClusterAnnotation: fmt.Sprint(n),
			},
		}}))
	}
	assert.LessOrEqual(t, len(a.ListIndexFuncValues(AccountsByRequest.Name)), 256, "each value takes 300 bytes")
	for n := range requests {
		found, err := AccountsByRequest.Find(a, fmt.Sprint("fleet-default/request-", n))
		require.NoError(t, err)
		require.Len(t, found, 1)
		assert.Equal(t, fmt.Sprint("account-", n), found[0].Name)
		byNamespace, err := AccountsByNamespace.Find(a, found[0].Namespace)
		require.NoError(t, err)
		assert.Equal(t, found, byNamespace)
	}
	found, err := AccountsByRequest.Find(a, "fleet-other/request-1")
	require.NoError(t, err)
	assert.Empty(t, found)
}
