package rancher

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/rancherlike"
	"github.com/muster-fleet/muster/pkg/agent"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// quick shortens the pauses of an agent, so that a test sees many of them.
func quick(c *agent.Config) {
	durations := timing.Default()
	durations.RetryFirst, durations.RetryMax = 100*time.Millisecond, 500*time.Millisecond
	durations.PollMax = 500 * time.Millisecond
	durations.RejectionPause, durations.RejectionSpread = 200*time.Millisecond, 400*time.Millisecond
	c.Timing = &durations
}

func (s *serverStory) brokenBeforeRegistration(t *testing.T) {
	s.server.Proxy.Agents.Break(rancherlike.AgentFaults()[0])
	s.edgeAgent = s.member.Agent(s.t, agentNamespace, quick)
	requireOutlasted(t, &s.server.Proxy.Agents)
	require.Empty(t, s.requests(t, s.edge))
	_, err := s.member.Kubernetes.CoreV1().Secrets(agentNamespace).Get(t.Context(), registration.BootstrapSecret, metav1.GetOptions{})
	require.NoError(t, err, "the agent has deleted its bootstrap Secret")
}

func (s *serverStory) brokenWhileWaiting(t *testing.T) {
	s.running.Stop(t)
	s.server.Proxy.Agents.Mend()
	testenv.Eventually(t, func() (bool, string) { return len(s.requests(t, s.edge)) == 1, "no request" })
	sent := s.requests(t, s.edge)

	requireOutlasted(t, &s.server.Proxy.Agents)
	s.running = s.hub.Hub(s.t, s.asHub...)
	s.server.Proxy.Agents.Mend()

	s.condition(t, s.edge, fleet.ConditionRegistered, "True")
	require.Equal(t, sent, s.requests(t, s.edge), "the agent sent another request")
	testenv.RequireCredential(t, s.member, agentNamespace, s.edge.Name)
}

func (s *serverStory) brokenAtWork(t *testing.T) {
	requests, credential := s.requests(t, s.edge), s.credential(t, s.member, agentNamespace)
	requireOutlasted(t, &s.server.Proxy.Agents)
	s.server.Proxy.Agents.Mend()

	s.awaitBeat(t, s.edge)
	require.Equal(t, requests, s.requests(t, s.edge), "the agent registered again")
	require.Equal(t, credential.ResourceVersion, s.credential(t, s.member, agentNamespace).ResourceVersion)
}

// bearable limits the requests per second of one agent during a failure, with the pauses of quick. Without pauses there would be hundreds.
const bearable = 10

// requireOutlasted injects every fault into the connection, each until the agent has met it twice, and leaves the last one in place.
func requireOutlasted(t *testing.T, way *rancherlike.Switch) {
	t.Helper()
	var requests int
	var took time.Duration
	for _, fault := range rancherlike.AgentFaults() {
		way.Break(fault)
		requireAnswers(t, way, 2)
		n, d := way.Answered()
		requests, took = requests+n, took+d
	}
	require.Less(t, float64(requests)/took.Seconds(), float64(bearable), "%d requests in %s", requests, took)
}

func requireAnswers(t *testing.T, way *rancherlike.Switch, n int) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		answered, _ := way.Answered()
		return answered >= n, fmt.Sprintf("%d requests were answered", answered)
	})
}
