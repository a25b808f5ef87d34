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

// house is the hub's own cluster, which notes as whom it was called.
type house struct {
	*httptest.Server
	callers []string
	issued  []string // the ServiceAccounts for which tokens were issued
	answer  error    // to a request for a token
	clock   *clocktesting.FakeClock
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{clock: clocktesting.NewFakeClock(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.callers = append(h.callers, r.Header.Get("Authorization"))
		_, _ = w.Write([]byte(`{"gitVersion":"v1.36.0"}`))
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *house) issue(action clienttesting.Action) (bool, runtime.Object, error) {
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

// pass is one over Cluster local, with its Secret as the hub makes it; its address leads elsewhere.
func (h *house) pass() *pass {
	client := fake.NewClientset()
	client.PrependReactor("create", "serviceaccounts", h.issue)
	return &pass{
		Step: &Step{Context: &app.Context{
			RESTConfig: &rest.Config{Host: h.URL, BearerToken: "of-the-hub"}, SystemNamespace: system, Clock: h.clock,
			Issuer: credential.Issuer{Client: client.CoreV1(), Clock: h.clock},
		}},
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
		wanted: delivery{tlsMode: config.TLSModeStrict},
	}
}

func greeted(t *testing.T, m *member) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	defer m.close()
	return m.greet(ctx)
}

func TestTheHubCallsItsOwnClusterWithATokenOfMinutes(t *testing.T) {
	h := newHouse(t)
	m, problem := h.pass().member()
	require.Nil(t, problem)
	assert.Empty(t, h.issued, "none is issued for a pass that calls nobody")
	require.NoError(t, greeted(t, m))
	require.NoError(t, greeted(t, m))
	assert.Equal(t, []string{"Bearer of-" + system + "/fleet-controller-bootstrap", "Bearer of-" + system + "/fleet-controller-bootstrap"}, h.callers,
		"at the address of the hub's own configuration, not at that of the Secret")
	assert.Len(t, h.issued, 1)

	h.clock.Step(ownLifetime - reserve)
	require.NoError(t, greeted(t, m))
	assert.Len(t, h.issued, 2, "the first is about to end")
}

func TestTheHubCallsItsOwnClusterAsItsAgentToDoWhatTheAgentDid(t *testing.T) {
	h := newHouse(t)
	m, problem := h.pass().member()
	require.Nil(t, problem)
	agent, err := m.asAgent("agents")
	require.NoError(t, err)
	require.NoError(t, greeted(t, agent))
	assert.Equal(t, []string{"Bearer of-agents/fleet-agent"}, h.callers)

	other := &member{}
	same, err := other.asAgent("agents")
	require.NoError(t, err)
	assert.Same(t, other, same, "elsewhere the kubeconfig is for all of it")
}

func TestAHubWithoutThatServiceAccountCallsItsOwnClusterAsItself(t *testing.T) {
	h := newHouse(t)
	h.answer = apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, "fleet-controller-bootstrap")
	m, problem := h.pass().member()
	require.Nil(t, problem)
	require.NoError(t, greeted(t, m))
	assert.Equal(t, []string{"Bearer of-the-hub"}, h.callers)
}

func TestWithoutATokenNothingIsSent(t *testing.T) {
	h := newHouse(t)
	h.answer = errors.New("etcd has a bad day")
	m, problem := h.pass().member()
	require.Nil(t, problem)
	require.ErrorContains(t, greeted(t, m), "bad day")
	assert.Empty(t, h.callers)
}

func TestATokenOfTheHubFollowsNoRedirect(t *testing.T) {
	elsewhere := newHouse(t)
	h := newHouse(t)
	h.Config.Handler = http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect)
	m, problem := h.pass().member()
	require.Nil(t, problem)
	require.Error(t, greeted(t, m))
	assert.Len(t, h.issued, 1)
	assert.Empty(t, elsewhere.callers)
}

func TestATokenOfTheHubIsIssuedForItsOwnClusterAlone(t *testing.T) {
	for title, change := range map[string]func(*pass){
		"another Cluster beside it":             func(p *pass) { p.cluster.Name = "evil" },
		"a Cluster local of another namespace":  func(p *pass) { p.cluster.Namespace = "ws" },
		"with a Secret there":                   func(p *pass) { p.cluster.Namespace, p.secret.Namespace = "ws", "ws" },
		"with another Secret":                   func(p *pass) { p.secret.Name = "mine" },
		"a hub that does not register itself":   func(p *pass) { p.hub.Bootstrap.Namespace = "-" },
		"a hub whose own cluster has moved":     func(p *pass) { p.hub.Bootstrap.Namespace = "elsewhere" },
		"a hub without a configuration of that": func(p *pass) { p.hub.Bootstrap = config.Bootstrap{} },
	} {
		t.Run(title, func(t *testing.T) {
			h := newHouse(t)
			p := h.pass()
			change(p)
			_, problem := p.member()
			require.NotNil(t, problem)
			assert.Equal(t, fleet.ReasonKubeconfigInvalid, problem.reason)
			assert.Contains(t, problem.message, "has no credential")
			assert.Empty(t, h.issued)
		})
	}
}

func TestASecretOfSomebodyElseIsUsedAsItIs(t *testing.T) {
	for title, change := range map[string]func(*corev1.Secret){
		"without our label":  func(s *corev1.Secret) { s.Labels = nil },
		"without the remark": func(s *corev1.Secret) { s.Annotations = nil },
		"with another":       func(s *corev1.Secret) { s.Annotations["muster.fleet.cattle.io/credential"] = "stored" },
	} {
		h := newHouse(t)
		p := h.pass()
		change(p.secret)
		m, problem := p.member()
		require.Nil(t, problem, title)
		assert.Equal(t, "https://thief.example", m.server, title)
		assert.Nil(t, m.agent, title)
	}
}

func TestANewTokenIsNoNewMember(t *testing.T) {
	h := newHouse(t)
	one, problem := h.pass().member()
	require.Nil(t, problem)
	require.NoError(t, greeted(t, one))
	h.clock.Step(time.Hour)
	two, problem := h.pass().member()
	require.Nil(t, problem)
	require.NoError(t, greeted(t, two))
	assert.Equal(t, one.fingerprint, two.fingerprint)
	assert.NotEmpty(t, one.fingerprint)
}
