package clusterregistrationtoken

import (
	"errors"
	"fmt"
	"strings"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/internal/result"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestEnsureValues(t *testing.T) {
	token, issued, keyID := someToken(0), 0, "first"
	short := someToken(0)
	short.Name, short.UID, short.Status.SecretName = "short", "short-uid", "short"
	account := accountOf(token)
	kube := fake.NewClientset(
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: account.Name, UID: "account"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: accountOf(short).Name, UID: "account"}})
	kube.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		expires := noon.Add(time.Duration(*request.Spec.ExpirationSeconds) * time.Second)
		issued++
		unsigned := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
			"kubernetes.io": map[string]any{"serviceaccount": map[string]any{"name": "a", "uid": "account"}},
			"iat":           noon.Unix(), "exp": expires.Unix(), "jti": fmt.Sprint(issued),
		})
		unsigned.Header["kid"] = keyID
		bearer, err := unsigned.SignedString([]byte("k"))
		require.NoError(t, err)
		request.Status = authenticationv1.TokenRequestStatus{Token: bearer, ExpirationTimestamp: metav1.NewTime(expires)}
		return true, request, nil
	})
	kube.PrependReactor("create", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		action.(clienttesting.CreateAction).GetObject().(*corev1.Secret).UID = "secret"
		return false, nil, nil
	})
	h := newScene(t).handler // whose caches stay empty
	h.secrets = generic.NewCache[*corev1.Secret](emptyIndexer(), schema.GroupResource{})
	h.accounts = generic.NewCache[*corev1.ServiceAccount](emptyIndexer(), schema.GroupResource{})
	h.Kubernetes, h.Issuer = kube, credential.Issuer{Client: kube.CoreV1(), Clock: h.Clock}
	secrets := kube.CoreV1().Secrets("ns")

	require.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, nil))
	before, err := secrets.Get(t.Context(), "tok", metav1.GetOptions{})
	require.NoError(t, err)
	t.Run("the status write conflicted, and the cache lacks the Secret: its bearer token stays, others may hold a copy", func(t *testing.T) {
		assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, nil))
		after, err := secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, before.Data, after.Data)
	})
	t.Run("the API server signs with another key since a restart: the bearer token is replaced once", func(t *testing.T) {
		keyID = "second"
		h.Issuer.Keys = &credential.SigningKeys{}
		cached, empty := emptyIndexer(), h.secrets
		require.NoError(t, cached.Add(before))
		h.secrets = generic.NewCache[*corev1.Secret](cached, schema.GroupResource{})
		defer func() { h.Issuer.Keys, h.secrets = nil, empty }()
		assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, nil))
		after, err := secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, before.Data, after.Data, "no key is known yet")
		_, err = h.Issuer.Request(t.Context(), account, credential.MinLifetime) // for another purpose
		require.NoError(t, err)
		assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, nil))
		after, err = secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		assert.NotEqual(t, before.Data, after.Data)
		before = after
		require.NoError(t, cached.Update(before))
		assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, nil))
		after, err = secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, before.Data, after.Data)
	})
	for name, row := range map[string]struct{ ahead, left time.Duration }{
		"the clock of the hub is right":                                        {0, time.Hour},
		"the clock of the hub is 13 hours ahead":                               {13 * time.Hour, time.Hour},
		"the clock of the hub is ahead by most of the time that the token has": {20 * time.Minute, 25 * time.Minute},
		"the token has less time left than the shortest bearer token":          {20 * time.Minute, 5 * time.Minute},
		"the clock of the hub is 3 hours behind":                               {-3 * time.Hour, time.Hour},
	} {
		t.Run(name+": the bearer token works as long as the token, and stays", func(t *testing.T) {
			right := h.Clock
			h.Clock = clocktesting.NewFakeClock(noon.Add(row.ahead))
			h.Issuer.Clock = h.Clock
			defer func() { h.Clock, h.Issuer.Clock = right, right }()
			expires := &metav1.Time{Time: noon.Add(row.left)}
			defer func() { require.NoError(t, secrets.Delete(t.Context(), short.Name, metav1.DeleteOptions{})) }()

			assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), short, expires))
			first, err := secrets.Get(t.Context(), short.Name, metav1.GetOptions{})
			require.NoError(t, err)
			values, err := registration.DecodeValues(first.Data[registration.ValuesKey])
			require.NoError(t, err)
			claims, err := credential.Inspect(credential.Token(values.Token))
			require.NoError(t, err)
			assert.False(t, claims.Expires.Before(expires.Time), "%s", claims.Expires)
			assert.False(t, claims.Expires.After(noon.Add(max(row.left, credential.MinLifetime)+tolerance)), "%s", claims.Expires)

			issuedBefore := issued
			assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), short, expires))
			after, err := secrets.Get(t.Context(), short.Name, metav1.GetOptions{})
			require.NoError(t, err)
			assert.Equal(t, first.Data, after.Data)
			assert.Equal(t, issuedBefore, issued)
		})
	}
	t.Run("it expires in centuries: as if it did not expire", func(t *testing.T) {
		assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, &metav1.Time{Time: noon.AddDate(290, 0, 0)}))
		after, err := secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, before.Data, after.Data)
	})
	t.Run("the configuration changed, and the cache lacks what others wrote: that stays", func(t *testing.T) {
		labelled := before.DeepCopy()
		labelled.Labels["by"], labelled.Finalizers = "others", []string{"example.com/others"}
		_, err := secrets.Update(t.Context(), labelled, metav1.UpdateOptions{})
		require.NoError(t, err)
		cached := emptyIndexer()
		require.NoError(t, cached.Add(before))
		h.secrets = generic.NewCache[*corev1.Secret](cached, schema.GroupResource{})
		changed := before.DeepCopy()
		changed.Data = map[string][]byte{registration.ValuesKey: []byte("token: of before")}
		require.NoError(t, cached.Update(changed))
		assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, nil))
		after, err := secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		assert.NotEqual(t, before.Data, after.Data)
		assert.Equal(t, labelled.Labels, after.Labels)
		assert.Equal(t, labelled.Finalizers, after.Finalizers)

		t.Log("the cache left out large values: they are read")
		reduced := after.DeepCopy()
		reduced.Data = nil
		require.NoError(t, cached.Update(reduced))
		assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, nil))
		again, err := secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, after, again)
		before = after
	})
	t.Run("a user has made it immutable: it is replaced", func(t *testing.T) {
		immutable := before.DeepCopy()
		immutable.Immutable, immutable.Data = ptr.To(true), map[string][]byte{registration.ValuesKey: []byte(strings.Repeat("[{},{}],", 1000))}
		_, err := secrets.Update(t.Context(), immutable, metav1.UpdateOptions{})
		require.NoError(t, err)
		cached := emptyIndexer()
		require.NoError(t, cached.Add(immutable))
		h.secrets = generic.NewCache[*corev1.Secret](cached, schema.GroupResource{})
		assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, nil))
		after, err := secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Nil(t, after.Immutable)
		values, err := registration.DecodeValues(after.Data[registration.ValuesKey])
		require.NoError(t, err)
		assert.NotEmpty(t, values.Token)
		assert.True(t, registration.HoldsValuesOf(after, token))
		before = after
		reduced := after.DeepCopy()
		reduced.Data = nil
		require.NoError(t, cached.Update(reduced))
	})
	t.Run("the event of its creation: no further pass", func(t *testing.T) {
		tokens := emptyIndexer()
		require.NoError(t, tokens.Add(token))
		h.tokens = generic.NewCache[*fleet.ClusterRegistrationToken](tokens, schema.GroupResource{})
		own := []types.NamespacedName{keyOf(token)}
		assert.Empty(t, h.tokensOfSecret(nil, before))
		assert.Equal(t, own, h.tokensOfSecret(before, before), "somebody has changed it")
		assert.Equal(t, own, h.tokensOfSecret(before, nil), "somebody has deleted it")
		recreated := before.DeepCopy()
		recreated.UID = "other"
		assert.Equal(t, own, h.tokensOfSecret(nil, recreated), "somebody has created it")
	})
	t.Run("a Secret of somebody else: refused, and not changed", func(t *testing.T) {
		other := someToken(0)
		other.UID = "other"
		out := h.ensureValues(t.Context(), other, nil)
		assert.True(t, out.IsStalled())
		assert.Equal(t, fleet.ReasonNameConflict, out.Reason)
		after, err := secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Equal(t, before, after)
	})
	t.Run("the configuration is invalid: good values stay, and others wait", func(t *testing.T) {
		current, err := secrets.Get(t.Context(), "tok", metav1.GetOptions{})
		require.NoError(t, err)
		h.Config.SetFallback(config.Hub{APIServerURL: "https://other"}, "correct it")
		before := h.secrets
		defer func() { h.secrets = before }()
		cached := emptyIndexer()
		require.NoError(t, cached.Add(current))
		h.secrets = generic.NewCache[*corev1.Secret](cached, schema.GroupResource{})
		assert.Equal(t, result.Done(fleet.ReasonTokenReady, ""), h.ensureValues(t.Context(), token, nil))
		fresh := someToken(0)
		fresh.Name = "fresh"
		out := h.ensureValues(t.Context(), fresh, nil)
		assert.True(t, out.IsWait())
		assert.Equal(t, fleet.ReasonConfigInvalid, out.Reason)
		all, err := secrets.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, all.Items, 1)
		assert.Equal(t, *current, all.Items[0])
		h.Config.Set(config.Hub{})
	})
	t.Run("its owner cannot be read: retried", func(t *testing.T) {
		overloaded := errors.New("overloaded")
		kube.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, overloaded })
		require.ErrorIs(t, h.ensureValues(t.Context(), token, nil).Err, overloaded)
	})
}

func TestValuesCache(t *testing.T) {
	r, key := newValuesCache(), types.NamespacedName{Namespace: "ws", Name: "token"}
	valuesOf := func(token string) registration.Values {
		return registration.Values{Workspace: "ws", Token: token, Internal: &registration.ValuesInternal{SystemNamespace: "s"}}
	}
	encode := func(values registration.Values) []byte {
		t.Helper()
		data, err := r.encode(key, values)
		require.NoError(t, err)
		return data
	}
	want, err := registration.EncodeValues(valuesOf("a"))
	require.NoError(t, err)
	first := encode(valuesOf("a"))
	assert.Equal(t, want, first)
	assert.Same(t, &first[0], &encode(valuesOf("a"))[0], "equal values are encoded once")

	for text, want := range map[string]registration.Values{
		string(first):                 valuesOf("a"),
		"token: b\n":                  {Token: "b"},
		"# by hand\n" + string(first): valuesOf("a"),
	} {
		read, err := r.decode(key, []byte(text), nil)
		require.NoError(t, err)
		assert.Equal(t, want, read)
	}
	assert.Same(t, &first[0], &encode(valuesOf("a"))[0], "the file that a person wrote is not cached")

	assert.NotEqual(t, first, encode(valuesOf("b")))
	r.forget(key)
	assert.NotSame(t, &first[0], &encode(valuesOf("a"))[0])
	for i := range 2 * renderedKept {
		_, err := r.encode(types.NamespacedName{Name: fmt.Sprint(i)}, valuesOf("a"))
		require.NoError(t, err)
	}
	assert.Equal(t, renderedKept, r.files.Len(), "imports have a token each")
}
