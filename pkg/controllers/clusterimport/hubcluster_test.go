package clusterimport

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/credential"
)

// hubServer is the API server of the hub's own cluster. It records the identity of each request.
type hubServer struct {
	*httptest.Server
	callers []string
	issued  []string // the ServiceAccounts for which tokens were issued
	answer  error    // to a request for a token
	clock   *clocktesting.FakeClock
}

func newHubServer(t *testing.T) *hubServer {
	t.Helper()
	h := &hubServer{clock: clocktesting.NewFakeClock(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.callers = append(h.callers, r.Header.Get("Authorization"))
		_, _ = w.Write([]byte(`{"gitVersion":"v1.36.0"}`))
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hubServer) issue(action clienttesting.Action) (bool, runtime.Object, error) {
	create := action.(clienttesting.CreateActionImpl)
	if h.answer != nil {
		return true, nil, h.answer
	}
	account := create.GetNamespace() + "/" + create.Name
	h.issued = append(h.issued, account)
	seconds := create.Object.(*authenticationv1.TokenRequest).Spec.ExpirationSeconds
	return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
		Token: "of-" + account, ExpirationTimestamp: metav1.NewTime(h.clock.Now().Add(time.Duration(*seconds) * time.Second)),
	}}, nil
}

// localImport is the import of Cluster local, with its Secret as the hub creates it, except that its address is another server.
type localImport struct {
	*Importer
	hub     config.Hub
	cluster *fleet.Cluster
	secret  *corev1.Secret
}

func (h *hubServer) localImport() *localImport {
	client := fake.NewClientset()
	client.PrependReactor("create", "serviceaccounts", h.issue)
	return &localImport{
		Importer: &Importer{Context: &app.Context{
			RESTConfig: &rest.Config{Host: h.URL, BearerToken: "of-the-hub"}, SystemNamespace: system, Clock: h.clock,
			Issuer: credential.Issuer{Client: client.CoreV1(), Clock: h.clock},
		}, calls: &memberCalls{}},
		hub:     config.Hub{Bootstrap: config.Bootstrap{Namespace: "fleet-local"}},
		cluster: &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet-local", Name: "local"}},
		secret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "fleet-local", Name: "local-cluster", Labels: map[string]string{"fleet.cattle.io/managed": "true"},
				Annotations: map[string]string{"muster.fleet.cattle.io/credential": "issued"},
			},
			Data: map[string][]byte{"value": []byte(`{"clusters":[{"name":"c","cluster":{"server":"https://thief.example"}}],
				"users":[{"name":"u","user":{}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`)},
		},
	}
}

func (l *localImport) member() (*memberClient, *failure) {
	return l.clientFor(l.hub, l.cluster, l.secret, config.TLSModeStrict)
}

func ping(t *testing.T, m *memberClient) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	defer m.close()
	return m.ping(ctx)
}

func TestClientForHub_token(t *testing.T) {
	h := newHubServer(t)
	m, problem := h.localImport().member()
	require.Nil(t, problem)
	assert.Empty(t, h.issued, "none is issued before the first request")
	require.NoError(t, ping(t, m))
	require.NoError(t, ping(t, m))
	assert.Equal(t, []string{"Bearer of-" + system + "/fleet-controller-bootstrap", "Bearer of-" + system + "/fleet-controller-bootstrap"}, h.callers,
		"at the address of the hub's own configuration, not at that of the Secret")
	assert.Len(t, h.issued, 1)

	h.clock.Step(issuedLifetime - minRemaining)
	require.NoError(t, ping(t, m))
	assert.Len(t, h.issued, 2, "the first is about to expire")

	again, problem := h.localImport().member()
	require.Nil(t, problem)
	assert.Equal(t, m.fingerprint, again.fingerprint, "it does not depend on the token")
	assert.NotEmpty(t, m.fingerprint)
}

func TestClientForHub_asAgent(t *testing.T) {
	h := newHubServer(t)
	m, problem := h.localImport().member()
	require.Nil(t, problem)
	agent, err := m.asAgent("agents")
	require.NoError(t, err)
	require.NoError(t, ping(t, agent))
	assert.Equal(t, []string{"Bearer of-agents/fleet-agent"}, h.callers)

	other := &memberClient{}
	same, err := other.asAgent("agents")
	require.NoError(t, err)
	assert.Same(t, other, same, "on other members the kubeconfig has all rights")
}

func TestClientForHub_errors(t *testing.T) {
	t.Run("no ServiceAccount, in an embedding program: the identity of the hub", func(t *testing.T) {
		h := newHubServer(t)
		h.answer = apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, "fleet-controller-bootstrap")
		m, problem := h.localImport().member()
		require.Nil(t, problem)
		require.NoError(t, ping(t, m))
		assert.Equal(t, []string{"Bearer of-the-hub"}, h.callers)
	})
	t.Run("no token: no request", func(t *testing.T) {
		h := newHubServer(t)
		h.answer = errors.New("etcd is down")
		m, problem := h.localImport().member()
		require.Nil(t, problem)
		require.ErrorContains(t, ping(t, m), "etcd is down")
		assert.Empty(t, h.callers)
	})
	t.Run("a redirect is not followed", func(t *testing.T) {
		h, elsewhere := newHubServer(t), newHubServer(t)
		h.Config.Handler = http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect)
		m, problem := h.localImport().member()
		require.Nil(t, problem)
		require.Error(t, ping(t, m))
		assert.Empty(t, elsewhere.callers)
	})
}

func TestClientForHub_otherClusters(t *testing.T) {
	for title, change := range map[string]func(*localImport){
		"another Cluster beside it":             func(p *localImport) { p.cluster.Name = "evil" },
		"a Cluster local of another namespace":  func(p *localImport) { p.cluster.Namespace = "ws" },
		"with a Secret there":                   func(p *localImport) { p.cluster.Namespace, p.secret.Namespace = "ws", "ws" },
		"with another Secret":                   func(p *localImport) { p.secret.Name = "mine" },
		"a hub that does not register itself":   func(p *localImport) { p.hub.Bootstrap.Namespace = "-" },
		"a hub whose own cluster has moved":     func(p *localImport) { p.hub.Bootstrap.Namespace = "elsewhere" },
		"a hub without a configuration of that": func(p *localImport) { p.hub.Bootstrap = config.Bootstrap{} },
	} {
		t.Run(title, func(t *testing.T) {
			h := newHubServer(t)
			p := h.localImport()
			change(p)
			_, problem := p.member()
			require.NotNil(t, problem)
			assert.Equal(t, fleet.ReasonKubeconfigInvalid, problem.reason)
			assert.Contains(t, problem.message, "has no credential")
			assert.Empty(t, h.issued)
		})
	}
}

func TestClientFor_SecretOfAUser(t *testing.T) {
	for title, change := range map[string]func(*corev1.Secret){
		"without our label":      func(s *corev1.Secret) { s.Labels = nil },
		"without our annotation": func(s *corev1.Secret) { s.Annotations = nil },
		"with another":           func(s *corev1.Secret) { s.Annotations["muster.fleet.cattle.io/credential"] = "stored" },
	} {
		h := newHubServer(t)
		p := h.localImport()
		change(p.secret)
		m, problem := p.member()
		require.Nil(t, problem, title)
		assert.Equal(t, "https://thief.example", m.server, title)
		assert.Nil(t, m.clientForAgent, title)
	}
}
