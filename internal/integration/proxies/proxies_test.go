package proxies

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func (s *scene) imported(t *testing.T, cluster, want string) string {
	t.Helper()
	return s.hub.WaitCondition(t, testenv.KindCluster, s.ns, cluster, fleet.ConditionImported, want)
}

func TestHubAndAgentBehindProxies(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	hub, member := host(t, s.hub, hubName), host(t, s.member, memberName)

	s.hubsProxy.answers("403")
	s.imports(t, "edge", memberName)
	message := s.imported(t, "edge", "False Unreachable")
	assert.Contains(t, message, "the proxy "+s.hubsProxy.url()+" answers 403 Forbidden")
	s.hubsProxy.answers("407")
	s.imported(t, "edge", "False Unreachable: connecting to the member at "+at(t, s.member, memberName)+": the proxy "+s.hubsProxy.url()+
		" answers 407 Proxy Authentication Required; put user and password into the proxy's address")
	s.hubsProxy.dies()
	s.imported(t, "edge", "False Unreachable: connecting to the member at "+at(t, s.member, memberName)+
		": the proxy in front of the member cannot be reached: connection refused")

	s.agentsProxy.answers("403")
	s.hubsProxy.answers("")
	s.imported(t, "edge", "True Imported")
	testenv.AwaitPodLog(t, s.memberLogs, "the proxy "+s.agentsProxy.url()+" answers 403 Forbidden; configure the proxy to allow the address of the server")
	s.agentsProxy.answers("407")
	testenv.AwaitPodLog(t, s.memberLogs, "the proxy "+s.agentsProxy.url()+" answers 407 Proxy Authentication Required")
	s.agentsProxy.dies()
	testenv.AwaitPodLog(t, s.memberLogs, "proxyconnect tcp: dial tcp "+s.agentsProxy.address)
	s.agentsProxy.answers("")
	s.hub.WaitCondition(t, testenv.KindCluster, s.ns, "edge", fleet.ConditionRegistered, "True")
	s.beats(t, "edge", time.Now())

	// The proxy is replaced while the agent is connected.
	s.agentsProxy.dies()
	s.agentsProxy.answers("")
	s.beats(t, "edge", time.Now())

	assert.Positive(t, s.hubsProxy.asked(member))
	assert.Positive(t, s.agentsProxy.asked(hub))
	assert.Zero(t, s.hubsProxy.asked(hub), "the hub calls its own API server directly")
	assert.Zero(t, s.agentsProxy.asked(member), "the agent calls its own API server directly")

	s.imports(t, "near", noProxyName)
	s.imported(t, "near", "False Unreachable: connecting to the member at "+at(t, s.member, noProxyName)+": the name "+noProxyName+" cannot be resolved")
	assert.Zero(t, s.hubsProxy.asked(host(t, s.member, noProxyName)), "noProxy contains it")
}

func TestProxyInTheValuesOfTheAgentsChart(t *testing.T) {
	sample.Long(t)
	s := newScene(t)
	values := s.hub.Token(t, s.ns, "tok", fleet.ClusterRegistrationTokenSpec{})
	assert.Equal(t, at(t, s.hub, hubName), values.APIServerURL)
	s.installAgent(t, values)
	name := registration.ClusterName("edge")
	s.hub.WaitCondition(t, testenv.KindCluster, s.ns, name, fleet.ConditionRegistered, "True")
	s.beats(t, name, time.Now())
	assert.Positive(t, s.agentsProxy.asked(host(t, s.hub, hubName)))
}

func (s *scene) installAgent(t *testing.T, v registration.Values) {
	t.Helper()
	s.member.InstallAgentChart(t, system, v, map[string]any{
		"agentTLSMode": "strict", "clientID": "edge", "proxy": s.agentsProxy.url(), "noProxy": chartNoProxy, "debug": true,
	})
}
