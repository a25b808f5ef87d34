package identities

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/pkg/agent"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/credential"
	"github.com/muster-fleet/muster/pkg/registration"
)

const lifetime = 10 * time.Minute // the shortest that API servers issue

type stage struct{ *testenv.Stage }

// newStage is a hub that issues credentials with that lifetime to agents that renew them.
func newStage(t *testing.T) *stage {
	t.Helper()
	s := testenv.EmptyStage(t)
	settings := s.Hub.Reachable()
	settings["agentCheckinInterval"] = "1s"
	settings["registration"] = map[string]any{"credentialLifetime": lifetime.String()}
	s.Hub.Configure(t, settings)
	s.Running = s.Hub.Hub(t)
	return &stage{s}
}

// hasty renews after that part of the lifetime, polls often after a denial, soon gives up a credential that the hub rejects, and sends its heartbeats to a
// Lease.
func hasty(part float64) func(*agent.Config) {
	return func(c *agent.Config) {
		durations := timing.Default()
		durations.RenewFraction, durations.RefusedFirst, durations.RefusedMax = part, 200*time.Millisecond, time.Second
		durations.RejectionPause, durations.RejectionSpread = 200*time.Millisecond, 400*time.Millisecond
		c.Timing, c.HeartbeatLease = &durations, true
	}
}

// writingStatus sends the heartbeats to the status of the Cluster, where a test can change the report of the agent.
func writingStatus(change func(*agent.Config)) func(*agent.Config) {
	return func(c *agent.Config) {
		change(c)
		c.HeartbeatLease = false
	}
}

// installed runs an agent with a token of its own, and waits for its first heartbeat.
func (s *stage) installed(t *testing.T, namespace, clientID string, change func(*agent.Config)) (cluster string, running *testenv.Running) {
	t.Helper()
	return s.RegisteredAgent(t, s.Token(t, "tok-"+clientID), namespace, clientID, change)
}

// bearer returns the token that the agent has stored, and its claims.
func (s *stage) bearer(t *testing.T, namespace string) (string, credential.Claims) {
	t.Helper()
	secret, err := s.Member.Kubernetes.CoreV1().Secrets(namespace).Get(context.Background(), registration.CredentialSecret, metav1.GetOptions{})
	require.NoError(t, err)
	kubeconfig, err := clientcmd.Load(secret.Data[registration.CredentialKubeconfig])
	require.NoError(t, err)
	token := kubeconfig.AuthInfos["user"].Token
	claims, err := credential.Inspect(credential.Token(token))
	require.NoError(t, err)
	return token, claims
}

// awaitOther waits until another token is stored.
func (s *stage) awaitOther(t *testing.T, namespace, than string) (token string, claims credential.Claims) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		token, claims = s.bearer(t, namespace)
		return token != than, "the stored token is still the same"
	})
	return token, claims
}

// lose replaces the token in the agent's Secret by an unknown token.
func (s *stage) lose(t *testing.T, namespace, foreign string) {
	t.Helper()
	secrets := s.Member.Kubernetes.CoreV1().Secrets(namespace)
	secret := testenv.RequireThere(t, secrets.Get, registration.CredentialSecret)
	secret.Data[registration.CredentialKubeconfig] = testenv.EditKubeconfig(t, secret.Data[registration.CredentialKubeconfig],
		func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) { user.Token = foreign })
	testenv.Update(t, secrets.Update, secret)
}

func (s *stage) requests(t *testing.T) (names []string) {
	t.Helper()
	list := testenv.List(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).List, metav1.ListOptions{})
	for _, r := range list.Items {
		names = append(names, r.Name)
	}
	return names
}
