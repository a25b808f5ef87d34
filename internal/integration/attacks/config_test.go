package attacks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestHubWithoutAddress(t *testing.T) {
	sample.Long(t)
	hub, member := testenv.Clusters(t)
	hub.Configure(t, map[string]any{"members": testenv.MembersOnLoopback()})
	wire := &testenv.Recorder{}
	hub.Hub(t, wire.Wrap)
	bySecret, byConfig := newScene(t, hub, member), newScene(t, hub, member)
	for _, s := range []*scene{bySecret, byConfig} {
		s.goodSecret()
		s.cluster()
		s.requireExplained(t, bad{condition: fleet.ConditionImported, want: "False APIServerURLMissing", says: registration.HubConfigMap})
	}
	wire.RequireQuiet(t, 20, "/namespaces/"+bySecret.ns+"/", "/namespaces/"+byConfig.ns+"/")

	bySecret.secret(map[string][]byte{
		registration.KubeconfigValue:        member.Kubeconfig(),
		registration.KubeconfigAPIServerURL: []byte(hub.URL()), registration.KubeconfigAPIServerCA: hub.CA(),
	})
	hub.ClusterCondition(t, bySecret.ns, object, fleet.ConditionImported, "True Imported")
	assert.Contains(t, hub.ConditionOf(testenv.KindCluster, byConfig.ns, object, fleet.ConditionImported), "APIServerURLMissing")

	hub.Configure(t, hub.Reachable())
	hub.ClusterCondition(t, byConfig.ns, object, fleet.ConditionImported, "True Imported")
	assert.Equal(t, 1, hub.EventCount(t, byConfig.ns, object, fleet.ReasonAPIServerURLMissing))
}

func newScene(t *testing.T, hub, member *testenv.Cluster) *scene {
	t.Helper()
	return &scene{t: t, hub: hub, member: member, ns: hub.Namespace(t), agentNS: member.Namespace(t)}
}

// The hub starts with an invalid configuration, which is then corrected, broken again, and corrected again.
func TestInvalidConfiguration(t *testing.T) {
	sample.Long(t)
	hub, member := testenv.Clusters(t)
	before := configEvents(t, hub)
	hub.ConfigureWith(t, "agentTLSMode: trust-everyone\napiServerURL: https://wrong\n")
	hub.Hub(t)
	testenv.Eventually(t, func() (bool, string) { return configEvents(t, hub) > before, "no event on the ConfigMap" })
	first := newScene(t, hub, member)
	first.goodSecret()
	first.cluster()
	hub.ClusterCondition(t, first.ns, object, fleet.ConditionImported, "False ConfigInvalid")
	settings := hub.Reachable()
	settings["apiServerCA"] = []byte("garbage")
	hub.Configure(t, settings)
	first.requireExplained(t, bad{condition: fleet.ConditionImported, want: "False APIServerCAInvalid", says: registration.HubConfigMap})
	hub.Configure(t, hub.Reachable())
	hub.ClusterCondition(t, first.ns, object, fleet.ConditionImported, "True Imported")

	before = configEvents(t, hub)
	hub.ConfigureWith(t, "{[ \x01")
	testenv.Eventually(t, func() (bool, string) { return configEvents(t, hub) > before, "no event on the ConfigMap" })
	second := newScene(t, hub, member)
	second.goodSecret()
	second.cluster()
	cluster := hub.ClusterCondition(t, second.ns, object, fleet.ConditionImported, "True Imported")
	assert.Equal(t, hub.URL(), cluster.Status.APIServerURL, "the previous configuration stays in effect")
	assert.Equal(t, before+1, configEvents(t, hub), "events on the ConfigMap")

	settings = hub.Reachable()
	settings["agentTLSMode"] = "strict"
	hub.Configure(t, settings)
	testenv.Eventually(t, func() (bool, string) {
		c := testenv.RequireThere(t, hub.Fleet.Clusters(second.ns).Get, object)
		return c.Status.AgentTLSMode == "strict", "the corrected configuration is not in effect"
	})
}

// A hub starts with a document that nobody can read. Its rules are not known, so nothing is granted, not even with a token whose requests need no
// approval; the values of tokens keep the address and the CA of the hub.
func TestStartWithUnreadableConfiguration(t *testing.T) {
	hub, _ := testenv.Clusters(t)
	settings := hub.Reachable()
	settings["registration"] = map[string]any{"policy": []map[string]any{
		{"name": "stolen", "expression": "request.spec.clientID == 'thief'", "action": "Deny"},
	}}
	hub.Configure(t, settings)
	ns := hub.Namespace(t)
	first := hub.Hub(t)
	values := hub.Token(t, ns, "shared", fleet.ClusterRegistrationTokenSpec{Approval: fleet.ApprovalAuto})
	first.Stop(t)

	before := configEvents(t, hub)
	hub.ConfigureWith(t, "{[ \x01")
	hub.Hub(t, testenv.Ahead(11*time.Second)) // it reports the wait of a request that is ten seconds old
	testenv.Eventually(t, func() (bool, string) { return configEvents(t, hub) > before, "no event on the ConfigMap" })
	thief := hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "thief", ClientRandom: "t"})
	agent := hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "agent", ClientRandom: "a"})
	for _, request := range []*fleet.ClusterRegistration{thief, agent} {
		hub.WaitCondition(t, testenv.KindRequest, ns, request.Name, fleet.ConditionGranted, "Unknown ConfigInvalid")
	}
	testenv.Merge(t, hub.Fleet.ClusterRegistrationTokens(ns).Patch, "shared", `{"spec":{"labels":{"a":"b"}}}`)
	_, err := hub.Fleet.ClusterRegistrationTokens(ns).Create(t.Context(),
		&fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	hub.WaitCondition(t, testenv.KindToken, ns, "new", fleet.ConditionReady, "Unknown ConfigInvalid")
	assert.Equal(t, values, hub.Values(t, ns, "shared"))

	hub.Configure(t, settings)
	hub.Granted(t, values, agent)
	hub.WaitCondition(t, testenv.KindRequest, ns, thief.Name, fleet.ConditionGranted, "False Denied: denied by rule \"stolen\"")
	hub.WaitCondition(t, testenv.KindToken, ns, "new", fleet.ConditionReady, "True TokenReady")
	assert.Equal(t, values.APIServerCA, hub.Values(t, ns, "new").APIServerCA)
}

func configEvents(t *testing.T, hub *testenv.Cluster) int {
	t.Helper()
	return hub.EventCount(t, registration.DefaultSystemNamespace, registration.HubConfigMap, "ConfigInvalid")
}

func TestRequiredTTL(t *testing.T) {
	sample.Long(t)
	hub, _ := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	ns := hub.Namespace(t)
	lax := hub.Hub(t)
	values := hub.Token(t, ns, "old", fleet.ClusterRegistrationTokenSpec{})
	lax.Stop(t)

	wire := &testenv.Recorder{}
	hub.Hub(t, wire.Wrap, func(o *muster.Options) { o.TokenTTLRequired = true })
	testenv.Create(t, hub.Fleet.ClusterRegistrationTokens(ns).Create, &fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
	for _, name := range []string{"old", "new"} {
		hub.WaitCondition(t, testenv.KindToken, ns, name, fleet.ConditionReady, "False TTLRequired")
		testenv.Eventually(t, func() (bool, string) { return hub.EventCount(t, ns, name, "TTLRequired") == 1, "not one event" })
	}
	testenv.RequireUnauthorized(t, hub, values.Token)
	wire.RequireQuiet(t, 20, "/namespaces/"+ns+"/")

	for _, name := range []string{"old", "new"} {
		testenv.Merge(t, hub.Fleet.ClusterRegistrationTokens(ns).Patch, name, `{"spec":{"ttl":"1h"}}`)
		hub.WaitCondition(t, testenv.KindToken, ns, name, fleet.ConditionReady, "True TokenReady")
		assert.Equal(t, 1, hub.EventCount(t, ns, name, "TTLRequired"))
	}
	request := hub.Request(t, hub.Values(t, ns, "old"), fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "r"})
	hub.Granted(t, hub.Values(t, ns, "old"), request)
	assert.NotEqual(t, values.Token, hub.Values(t, ns, "old").Token, "the withdrawn bearer token came back")
}
