package clusternet

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-fleet/muster/internal/clusternetagent"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// TestHub tests the configuration, the writes and the restart of a hub.
func TestHub(t *testing.T) {
	sample.Long(t)
	recorder := &testenv.Recorder{}
	s := &stage{Stage: testenv.EmptyStage(t)}
	s.Hub.NeedsMutatingPolicies(t)
	settings := s.Hub.Reachable()
	delete(settings, "apiServerCA")
	s.Hub.Configure(t, settings)
	s.start(t, recorder.Wrap)
	boot := s.as(t, s.Token(t, "tok").Token)

	t.Log("without a CA, no agent would verify the hub")
	id := newID()
	boot.request(t, id, nil)
	s.says(t, id, "", "apiServerCA of the hub's configuration is empty")
	s.Hub.Configure(t, s.Hub.Reachable())
	answer := boot.approved(t, id).Status
	agent, name := s.as(t, string(answer.DedicatedToken)), registration.ClusterName(id)
	agent.beat(t, answer.DedicatedNamespace, id, report())
	s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionConnected, "True")

	t.Log("an answer that could not be written is written later, and the agent sends its request only once")
	var refused atomic.Int32
	recorder.Inject(func(request *http.Request, send func() (*http.Response, error)) (*http.Response, error) {
		if strings.Contains(request.URL.Path, "/clusterregistrationrequests/") && strings.HasSuffix(request.URL.Path, "/status") && refused.Add(1) <= 3 {
			return nil, http.ErrHandlerTimeout
		}
		return send()
	})
	p := s.peer(t, s.Token(t, "tok-2"))
	running := p.registered()
	assert.Greater(t, refused.Load(), int32(3))
	testenv.RequireGone(t, s.admin.ClusterRegistrationRequests().Get, "ClusterRegistrationRequest", clusternetagent.RequestName(id))

	t.Log("a hub that starts counts no heartbeat twice, writes nothing, and counts the next one")
	s.Stop(t)
	before := s.Cluster(t, name)
	member := testenv.RequireThere(t, s.admin.ManagedClusters(answer.DedicatedNamespace).Get, answer.ManagedClusterName)
	s.startHub(t)
	s.AwaitWork(t, "marker")
	after := s.Cluster(t, name)
	assert.Equal(t, before.Status, after.Status)
	assert.Equal(t, member.ResourceVersion, testenv.RequireThere(t, s.admin.ManagedClusters(answer.DedicatedNamespace).Get, answer.ManagedClusterName).ResourceVersion)
	later := report()
	later.KubernetesVersion = "v1.32.0"
	agent.beat(t, answer.DedicatedNamespace, id, later)
	s.EventuallyCluster(t, name, func(c *fleet.Cluster) (bool, string) {
		return c.Status.Agent.KubernetesVersion == "v1.32.0" && c.Status.Agent.LastSeen.After(before.Status.Agent.LastSeen.Time), c.Status.Agent.KubernetesVersion
	})

	t.Log("an agent that runs meanwhile notices nothing")
	p.beatsAgain()
	assert.Equal(t, running.UID, s.Cluster(t, p.cluster()).UID)
	assert.Equal(t, 1, p.sent.Count("POST clusterregistrationrequests"))
}
