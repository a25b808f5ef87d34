package bootstrap

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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

// newHandler returns a handler on an API server with these objects. The hub's own connection uses every kind of credential.
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

func hubDeployment(tolerations []corev1.Toleration) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "fleet-controller"}}
	d.Spec.Template.Spec.Tolerations = tolerations
	return d
}

// tokenFor returns a token of a token Secret, as Fleet's hub stores it, with an invalid signature.
func tokenFor(t *testing.T, namespace, account, uid string) string {
	t.Helper()
	claims, err := json.Marshal(map[string]any{
		"iss":                                    "kubernetes/serviceaccount",
		"kubernetes.io/serviceaccount/namespace": namespace,
		"kubernetes.io/serviceaccount/service-account.name": account,
		"kubernetes.io/serviceaccount/service-account.uid":  uid,
	})
	require.NoError(t, err)
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode(claims) + "." + encode([]byte("signature"))
}

// ofFleet returns the Secret as Fleet's hub writes it.
func ofFleet(t *testing.T, token string) *corev1.Secret {
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

func secretOf(t *testing.T, client *fake.Clientset) *corev1.Secret {
	t.Helper()
	secret, err := client.CoreV1().Secrets("fleet-local").Get(t.Context(), "local-cluster", metav1.GetOptions{})
	require.NoError(t, err)
	return secret
}

// TestEnsureSecret: whatever Secret existed before, it then contains no credential, and a token that Fleet's hub stored is revoked.
func TestEnsureSecret(t *testing.T) {
	const bootstrap = "fleet-controller-bootstrap"
	valid := tokenFor(t, system, bootstrap, "first")
	with := func(text string) *corev1.Secret { // with this text, which would be parsed to a map, in the kubeconfig
		secret := ofFleet(t, valid)
		secret.Data["value"] = append(secret.Data["value"], text...)
		return secret
	}
	for title, row := range map[string]struct {
		objects []runtime.Object
		revoked bool
	}{
		"there is none": {objects: []runtime.Object{account()}},
		"a valid token": {[]runtime.Object{account(), ofFleet(t, valid)}, true},
		"a valid token, ServiceAccount already gone":   {[]runtime.Object{ofFleet(t, valid)}, true},
		"a token of an earlier ServiceAccount":         {objects: []runtime.Object{account(), ofFleet(t, tokenFor(t, system, bootstrap, "zeroth"))}},
		"a token of another ServiceAccount":            {objects: []runtime.Object{account(), ofFleet(t, tokenFor(t, system, "fleet-controller", "first"))}},
		"a token of another namespace":                 {objects: []runtime.Object{account(), ofFleet(t, tokenFor(t, "elsewhere", bootstrap, "first"))}},
		"a token that is not of a ServiceAccount":      {objects: []runtime.Object{account(), ofFleet(t, "opaque")}},
		"a valid token, and an alias":                  {objects: []runtime.Object{account(), with("extensions: &a []\npreferences: {extensions: *a}\n")}},
		"a valid token, and thousands of elements":     {objects: []runtime.Object{account(), with("extensions: [" + strings.Repeat("{},", 2000) + "]\n")}},
		"no token, as an embedding program may use it": {objects: []runtime.Object{account(), ofFleet(t, "")}},
	} {
		t.Run(title, func(t *testing.T) {
			h, client := newHandler(row.objects...)
			require.NoError(t, h.ensureSecret(t.Context(), "fleet-local"))
			secret := secretOf(t, client)
			assert.Equal(t, "issued", secret.Annotations["muster.fleet.cattle.io/credential"])
			assert.Equal(t, "https://hub:6443", string(secret.Data["apiServerURL"]))
			assert.Equal(t, "ca", string(secret.Data["apiServerCA"]))
			for key, value := range secret.Data {
				assert.NotContains(t, string(value), "secret-", key)
				assert.NotContains(t, string(value), base64.StdEncoding.EncodeToString([]byte("secret-key")), key)
			}
			parsed, err := clientcmd.Load(secret.Data["value"])
			require.NoError(t, err)
			require.Contains(t, parsed.AuthInfos, "user")
			assert.Empty(t, parsed.AuthInfos["user"].Token+string(parsed.AuthInfos["user"].ClientKeyData)+parsed.AuthInfos["user"].Password)
			assert.Equal(t, "https://hub:6443", parsed.Clusters["cluster"].Server)

			latest, err := client.CoreV1().ServiceAccounts(system).Get(t.Context(), bootstrap, metav1.GetOptions{})
			require.NoError(t, err)
			if row.revoked {
				assert.NotEqual(t, account().UID, latest.UID, "the token was for the UID")
			} else {
				assert.Equal(t, account(), latest)
			}
			if len(row.objects) == 2 && row.revoked {
				assert.Equal(t, account().Labels, latest.Labels, "it still belongs to Helm")
				assert.Equal(t, account().Annotations, latest.Annotations)
			}

			client.ClearActions()
			require.NoError(t, h.ensureSecret(t.Context(), "fleet-local"))
			assert.Len(t, client.Actions(), 1, "the second time it only reads")
		})
	}
}

func TestEnsureSecretAfterAnError(t *testing.T) {
	for _, verb := range []string{"get", "delete", "create"} {
		t.Run(verb, func(t *testing.T) {
			overloaded := errors.New("etcd is overloaded")
			h, client := newHandler(account(), ofFleet(t, tokenFor(t, system, "fleet-controller-bootstrap", "first")))
			client.PrependReactor(verb, "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, overloaded })
			require.ErrorIs(t, h.ensureSecret(t.Context(), "fleet-local"), overloaded)
			assert.Empty(t, secretOf(t, client).Annotations, "so the next attempt revokes the token")
		})
	}
}

func TestEnsureSecretOfAManagementServer(t *testing.T) {
	foreign := ofFleet(t, tokenFor(t, system, "fleet-controller-bootstrap", "first"))
	foreign.Labels = nil
	h, client := newHandler(account(), foreign)
	require.ErrorAs(t, h.ensureSecret(t.Context(), "fleet-local"), new(*desiredset.ForeignError))
	assert.Equal(t, foreign.Data, secretOf(t, client).Data)
	assert.Len(t, client.Actions(), 2, "nothing is written: ensureSecret and secretOf each read the Secret")
}
