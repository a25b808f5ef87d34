package clusterregistrationtoken

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
)

// issuing is a handler whose caches have seen nothing yet, over an API server that issues tokens; no two are the same.
func issuing(t *testing.T, token *fleet.ClusterRegistrationToken) (*handler, *fake.Clientset) {
	t.Helper()
	account := accountOf(token)
	kube := fake.NewClientset(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: account.Name, UID: "account"}})
	issued := 0
	kube.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		expires := noon.Add(time.Duration(*request.Spec.ExpirationSeconds) * time.Second)
		issued++
		bearer, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
			"kubernetes.io": map[string]any{"serviceaccount": map[string]any{"name": "a", "uid": "account"}},
			"iat":           noon.Unix(), "exp": expires.Unix(), "jti": fmt.Sprint(issued),
		}).SignedString([]byte("k"))
		require.NoError(t, err)
		request.Status = authenticationv1.TokenRequestStatus{Token: bearer, ExpirationTimestamp: metav1.NewTime(expires)}
		return true, request, nil
	})
	h := newStage(t).handler
	empty := func() cache.Indexer { return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}) }
	h.secrets = generic.NewCache[*corev1.Secret](empty(), schema.GroupResource{})
	h.accounts = generic.NewCache[*corev1.ServiceAccount](empty(), schema.GroupResource{})
	h.Kubernetes, h.Issuer = kube, credential.Issuer{Client: kube.CoreV1(), Clock: h.Clock}
	return h, kube
}

func plainToken() *fleet.ClusterRegistrationToken {
	return &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "token", UID: "uid"}}
}

func TestEnsureValuesWithAnUncachedSecret(t *testing.T) {
	h, kube := issuing(t, plainToken())
	require.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), plainToken(), nil))
	before, err := kube.CoreV1().Secrets("ns").Get(t.Context(), "token", metav1.GetOptions{})
	require.NoError(t, err)

	// The write of the status conflicted, and the next pass comes before the Secret's event.
	assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), plainToken(), nil))
	after, err := kube.CoreV1().Secrets("ns").Get(t.Context(), "token", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, before.Data, after.Data, "others may hold a copy of its token")
}

func TestEnsureValuesLeavesForeignSecretsAlone(t *testing.T) {
	h, kube := issuing(t, plainToken())
	require.NoError(t, kube.Tracker().Add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "token"}}))
	out := h.ensureValues(t.Context(), plainToken(), nil)
	assert.True(t, out.IsStalled())
	assert.Equal(t, fleet.ReasonNameConflict, out.Reason)

	bad := errors.New("bad day")
	kube.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, bad })
	require.ErrorIs(t, h.ensureValues(t.Context(), plainToken(), nil).Err, bad, "nobody knows whose it is")
}
