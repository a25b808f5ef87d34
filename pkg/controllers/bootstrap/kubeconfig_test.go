package bootstrap

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/controllers/internal/desiredset"
)

const system = "cattle-fleet-system"

// newHandler is on an API server of objects, which the hub reaches with a credential of its own.
func newHandler(objects ...runtime.Object) (*handler, *fake.Clientset) {
	client := fake.NewClientset(objects...)
	return &handler{Context: &app.Context{
		Kubernetes: client, SystemNamespace: system,
		RESTConfig: &rest.Config{
			Host: "https://hub:6443", BearerToken: "secret-token", Username: "secret-user", Password: "secret-password",
			TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca"), CertData: []byte("secret-cert"), KeyData: []byte("secret-key")},
		},
	}}, client
}

// tokenFor is a token as an API server issues it, but for the signature.
func tokenFor(t *testing.T, namespace, account, uid string) string {
	t.Helper()
	claims, err := json.Marshal(map[string]any{
		"exp":           time.Now().Add(10 * 365 * 24 * time.Hour).Unix(),
		"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": map[string]any{"name": account, "uid": uid}},
	})
	require.NoError(t, err)
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode(claims) + "." + encode([]byte("signature"))
}

// earlier is the Secret of an earlier release.
func earlier(t *testing.T, token string) *corev1.Secret {
	t.Helper()
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"cluster": {Server: "https://hub:6443"}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"user": {Token: token}},
		Contexts:  map[string]*clientcmdapi.Context{"default": {Cluster: "cluster", AuthInfo: "user"}}, CurrentContext: "default",
	})
	require.NoError(t, err)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-local", Name: "local-cluster", Labels: map[string]string{"fleet.cattle.io/managed": "true"}},
		Data:       map[string][]byte{"value": kubeconfig, "apiServerURL": []byte("https://hub:6443"), "apiServerCA": []byte("ca")},
	}
}

func account() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: system, Name: "fleet-controller-bootstrap", UID: "first", Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"},
		Annotations: map[string]string{"meta.helm.sh/release-name": "fleet"},
	}}
}

// requireNoCredential returns the Secret, which holds none.
func requireNoCredential(t *testing.T, client *fake.Clientset) *corev1.Secret {
	t.Helper()
	secret, err := client.CoreV1().Secrets("fleet-local").Get(t.Context(), "local-cluster", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "issued", secret.Annotations["muster.fleet.cattle.io/credential"])
	for key, value := range secret.Data {
		assert.NotContains(t, string(value), "secret-", key)
		assert.NotContains(t, string(value), base64.StdEncoding.EncodeToString([]byte("secret-key")), key)
	}
	parsed, err := clientcmd.Load(secret.Data["value"])
	require.NoError(t, err)
	require.Contains(t, parsed.AuthInfos, "user")
	assert.Equal(t, clientcmdapi.NewAuthInfo().Extensions, parsed.AuthInfos["user"].Extensions)
	assert.Empty(t, parsed.AuthInfos["user"].Token+string(parsed.AuthInfos["user"].ClientKeyData)+parsed.AuthInfos["user"].Password)
	assert.Equal(t, "https://hub:6443", parsed.Clusters["cluster"].Server)
	return secret
}

func TestTheKubeconfigOfTheHubsOwnClusterHoldsNoCredential(t *testing.T) {
	h, client := newHandler(account())
	require.NoError(t, h.ensureSecret(t.Context(), "fleet-local"))
	secret := requireNoCredential(t, client)
	assert.Equal(t, "https://hub:6443", string(secret.Data["apiServerURL"]))
	assert.Equal(t, "ca", string(secret.Data["apiServerCA"]))

	client.ClearActions()
	require.NoError(t, h.ensureSecret(t.Context(), "fleet-local"))
	assert.Len(t, client.Actions(), 1, "it is read, and it is right")
}

func TestTheTokenOfAnEarlierReleaseEnds(t *testing.T) {
	h, client := newHandler(account(), earlier(t, tokenFor(t, system, "fleet-controller-bootstrap", "first")))
	require.NoError(t, h.ensureSecret(t.Context(), "fleet-local"))
	requireNoCredential(t, client)
	again, err := client.CoreV1().ServiceAccounts(system).Get(t.Context(), "fleet-controller-bootstrap", metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotEqual(t, account().UID, again.UID, "the token was for another one")
	assert.Equal(t, account().Labels, again.Labels, "it stays Helm's")
	assert.Equal(t, account().Annotations, again.Annotations)
}

func TestATokenThatHasEndedCostsNoServiceAccount(t *testing.T) {
	for title, token := range map[string]string{
		"of an earlier ServiceAccount": tokenFor(t, system, "fleet-controller-bootstrap", "zeroth"),
		"of another one":               tokenFor(t, system, "fleet-controller", "first"),
		"of another namespace":         tokenFor(t, "elsewhere", "fleet-controller-bootstrap", "first"),
		"of no ServiceAccount":         "opaque",
		"none":                         "",
	} {
		h, client := newHandler(account(), earlier(t, token))
		require.NoError(t, h.ensureSecret(t.Context(), "fleet-local"), title)
		requireNoCredential(t, client)
		same, err := client.CoreV1().ServiceAccounts(system).Get(t.Context(), "fleet-controller-bootstrap", metav1.GetOptions{})
		require.NoError(t, err, title)
		assert.Equal(t, account(), same, title)
	}
}

func TestAHubThatWasStoppedInBetweenMakesTheServiceAccountAnew(t *testing.T) {
	h, client := newHandler(earlier(t, tokenFor(t, system, "fleet-controller-bootstrap", "first")))
	require.NoError(t, h.ensureSecret(t.Context(), "fleet-local"))
	requireNoCredential(t, client)
	_, err := client.CoreV1().ServiceAccounts(system).Get(t.Context(), "fleet-controller-bootstrap", metav1.GetOptions{})
	require.NoError(t, err)
}

func TestTheSecretIsRewrittenOnlyWhenItsTokenHasEnded(t *testing.T) {
	bad := errors.New("etcd has a bad day")
	for _, verb := range []string{"get", "delete", "create"} {
		h, client := newHandler(account(), earlier(t, tokenFor(t, system, "fleet-controller-bootstrap", "first")))
		client.PrependReactor(verb, "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, bad })
		require.ErrorIs(t, h.ensureSecret(t.Context(), "fleet-local"), bad, verb)
		secret, err := client.CoreV1().Secrets("fleet-local").Get(t.Context(), "local-cluster", metav1.GetOptions{})
		require.NoError(t, err)
		assert.Empty(t, secret.Annotations, "the next attempt sees by it what to do: %s", verb)
	}
}

func TestAManagementServersSecretIsLeftAlone(t *testing.T) {
	foreign := earlier(t, tokenFor(t, system, "fleet-controller-bootstrap", "first"))
	foreign.Labels = nil
	h, client := newHandler(account(), foreign)
	var refused *desiredset.ForeignError
	require.ErrorAs(t, h.ensureSecret(t.Context(), "fleet-local"), &refused)
	secret, err := client.CoreV1().Secrets("fleet-local").Get(t.Context(), "local-cluster", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, foreign.Data, secret.Data)
	_, err = client.CoreV1().ServiceAccounts(system).Get(t.Context(), "fleet-controller-bootstrap", metav1.GetOptions{})
	require.False(t, apierrors.IsNotFound(err))
}
