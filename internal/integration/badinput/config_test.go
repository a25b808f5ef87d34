package badinput

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestAHubWithoutAnAddressSaysSoAndTakesTheOneItGets(t *testing.T) {
	hub, member := testenv.Clusters(t)
	hub.Configure(t, map[string]any{})
	wire := &testenv.Wire{}
	hub.Hub(t, wire.Tap)
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

func TestAnInvalidCAInTheConfigurationIsExplainedUntilItIsCorrected(t *testing.T) {
	hub, member := testenv.Clusters(t)
	settings := hub.Reachable()
	settings["apiServerCA"] = []byte("garbage")
	hub.Configure(t, settings)
	hub.Hub(t)
	s := newScene(t, hub, member)
	s.goodSecret()
	s.cluster()
	s.requireExplained(t, bad{condition: fleet.ConditionImported, want: "False APIServerCAInvalid", says: registration.HubConfigMap})
	hub.Configure(t, hub.Reachable())
	hub.ClusterCondition(t, s.ns, object, fleet.ConditionImported, "True Imported")
}

func TestAnInvalidConfigurationLeavesTheOneBeforeItInForce(t *testing.T) {
	hub, member := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	hub.Hub(t)
	for name, document := range map[string]string{
		"garbage":          "{[ \x01",
		"another type":     `["apiServerURL"]`,
		"a wrong TLS mode": `{"agentTLSMode":"trust-everyone"}`,
		"a wrong kind":     `{"apiServerURL":{"host":"x"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			before := configEvents(t, hub)
			hub.ConfigureWith(t, document)
			testenv.Eventually(t, func() (bool, string) { return configEvents(t, hub) > before, "no event on the ConfigMap" })
			s := newScene(t, hub, member)
			s.goodSecret()
			s.cluster()
			cluster := hub.ClusterCondition(t, s.ns, object, fleet.ConditionImported, "True Imported")
			assert.Equal(t, hub.URL(), cluster.Status.APIServerURL)
			assert.Equal(t, before+1, configEvents(t, hub), "events on the ConfigMap")
		})
	}
	settings := hub.Reachable()
	settings["agentTLSMode"] = "strict"
	hub.Configure(t, settings)
	s := newScene(t, hub, member)
	s.goodSecret()
	s.cluster()
	testenv.Eventually(t, func() (bool, string) {
		c, err := hub.Fleet.Clusters(s.ns).Get(t.Context(), object, metav1.GetOptions{})
		require.NoError(t, err)
		return c.Status.AgentTLSMode == "strict", "the corrected configuration is not in force"
	})
}

func TestAHubThatStartsWithAnInvalidConfigurationSaysSoAndGoesOnWhenItIsCorrected(t *testing.T) {
	hub, member := testenv.Clusters(t)
	before := configEvents(t, hub)
	hub.ConfigureWith(t, "agentTLSMode: trust-everyone\napiServerURL: https://wrong\n")
	hub.Hub(t)
	testenv.Eventually(t, func() (bool, string) { return configEvents(t, hub) > before, "no event on the ConfigMap" })
	s := newScene(t, hub, member)
	s.goodSecret()
	s.cluster()
	hub.ClusterCondition(t, s.ns, object, fleet.ConditionImported, "False APIServerURLMissing")
	hub.Configure(t, hub.Reachable())
	hub.ClusterCondition(t, s.ns, object, fleet.ConditionImported, "True Imported")
}

func configEvents(t *testing.T, hub *testenv.Cluster) int {
	t.Helper()
	return hub.EventCount(t, registration.DefaultSystemNamespace, registration.HubConfigMap, "ConfigInvalid")
}

func TestAHubThatRequiresATTLRefusesEndlessTokensAndTakesBackThoseItGave(t *testing.T) {
	hub, _ := testenv.Clusters(t)
	hub.Configure(t, hub.Reachable())
	ns := hub.Namespace(t)
	lax := hub.Hub(t)
	values := hub.Token(t, ns, "old", fleet.ClusterRegistrationTokenSpec{})
	lax.Stop(t)

	wire := &testenv.Wire{}
	hub.Hub(t, wire.Tap, func(o *muster.Options) { o.TokenTTLRequired = true })
	_, err := hub.Fleet.ClusterRegistrationTokens(ns).Create(t.Context(),
		&fleet.ClusterRegistrationToken{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, name := range []string{"old", "new"} {
		hub.WaitCondition(t, testenv.KindToken, ns, name, fleet.ConditionReady, "False TTLRequired")
		testenv.Eventually(t, func() (bool, string) { return hub.EventCount(t, ns, name, "TTLRequired") == 1, "not one event" })
	}
	testenv.Eventually(t, func() (bool, string) {
		_, err := hub.ClientFor(t, values.Token).Fleet.ClusterRegistrations(ns).List(t.Context(), metav1.ListOptions{})
		return apierrors.IsUnauthorized(err), "the bearer token of the withdrawn token still works"
	})
	wire.RequireQuiet(t, 20, "/namespaces/"+ns+"/")

	for _, name := range []string{"old", "new"} {
		_, err := hub.Fleet.ClusterRegistrationTokens(ns).Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"ttl":"1h"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		hub.WaitCondition(t, testenv.KindToken, ns, name, fleet.ConditionReady, "True TokenReady")
		assert.Equal(t, 1, hub.EventCount(t, ns, name, "TTLRequired"))
	}
	request := hub.Request(t, hub.Values(t, ns, "old"), fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "r"})
	hub.Granted(t, hub.Values(t, ns, "old"), request)
	assert.NotEqual(t, values.Token, hub.Values(t, ns, "old").Token, "the withdrawn bearer token came back")
}
