package audience

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/muster-fleet/muster/pkg/admission"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

type withoutMutating struct{ app.Admission }

func (withoutMutating) State() admission.PolicyState {
	return admission.PolicyState{NotRecorded: "this API server records no creators"}
}

func cacheOf[T generic.RuntimeMetaObject](t *testing.T, objects []T) *generic.Cache[T] {
	t.Helper()
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, o := range objects {
		require.NoError(t, indexer.Add(o))
	}
	return generic.NewCache[T](indexer, schema.GroupResource{})
}

// A check requests few tokens, however many agents there are, and records nothing without audiences.
func TestUpdater_record(t *testing.T) {
	var requests []*fleet.ClusterRegistration
	var accounts []*corev1.ServiceAccount
	for n := range 100 {
		r := &fleet.ClusterRegistration{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ws", Name: fmt.Sprint("request-", n), UID: types.UID(fmt.Sprint(n)), Annotations: map[string]string{registration.RenewalAnnotation: "true"},
		}}
		r.Status.Granted, r.Status.ClusterName = true, fmt.Sprint("c", n)
		requests = append(requests, r)
		accounts = append(accounts, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: registration.ClusterNamespace("ws", r.Status.ClusterName), Name: registration.RequestServiceAccount(r.Name, string(r.UID)),
		}})
	}
	for name, row := range map[string]struct {
		audiences []string
		err       error
		requests  int
		problem   string
	}{
		"recorded":                        {audiences: []string{"a", "b"}, requests: 1},
		"the API server issues no tokens": {err: errors.New("no tokens"), requests: tries, problem: "no tokens"},
		"no audiences":                    {requests: tries, problem: "has no audiences"},
	} {
		t.Run(name, func(t *testing.T) {
			client, sent := kubernetesfake.NewClientset(), 0
			client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
				sent++
				return true, &authenticationv1.TokenRequest{
					Spec: authenticationv1.TokenRequestSpec{Audiences: row.audiences}, Status: authenticationv1.TokenRequestStatus{Token: "t"},
				}, row.err
			})
			r := &Updater{
				Context:  &app.Context{Kubernetes: client, Admission: withoutMutating{}, Issuer: credential.Issuer{Client: client.CoreV1()}},
				requests: cacheOf(t, requests), accounts: cacheOf(t, accounts),
			}
			err := r.record(t.Context())
			assert.Equal(t, row.requests, sent)
			if row.problem != "" {
				require.ErrorContains(t, err, row.problem)
				assert.Empty(t, r.recordedBefore(t.Context()))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "a\nb", r.recordedBefore(t.Context()))
		})
	}
}
