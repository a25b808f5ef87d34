package settings

import (
	"strings"
	"testing"
	"time"

	"github.com/rancher/wrangler/v3/pkg/generic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	fleetcontrollers "github.com/muster-fleet/muster/pkg/generated/controllers/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	good = `{"agentImage":"x","registration":{"policy":[{"name":"n","expression":"request.spec.clientID == 'a'","action":"Deny"}]}}`
	bad  = `{"agentImage":"y","registration":{"policy":[{"name":"n","expression":"request.spec.(","action":"Deny"}]}}`
)

func configMap(document string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "cattle-fleet-system", Name: registration.HubConfigMap},
		Data:       map[string]string{registration.ConfigKey: document},
	}
}

func hubWith(objects ...*corev1.ConfigMap) (*app.Context, *record.FakeRecorder) {
	client, events := fake.NewClientset(), record.NewFakeRecorder(5)
	for _, o := range objects {
		_ = client.Tracker().Add(o)
	}
	return &app.Context{Kubernetes: client, Config: &config.Store{}, Events: events, SystemNamespace: "cattle-fleet-system"}, events
}

func TestWatcherKeepsThePreviousConfigurationOfAnInvalidRule(t *testing.T) {
	c, events := hubWith(configMap(good))
	w, err := Load(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, "x", c.Config.Get().AgentImage)
	require.Len(t, c.Config.Get().Registration.Policy, 1)

	w.apply(configMap(bad))
	assert.Equal(t, "x", c.Config.Get().AgentImage)
	event := <-events.Events
	assert.Contains(t, event, "Warning ConfigInvalid the hub's configuration: registration.policy[0] (n): ")
	assert.Contains(t, event, "the previous configuration stays in effect")

	withoutKey := configMap("")
	withoutKey.Data = nil
	for _, empty := range []*corev1.ConfigMap{configMap(""), configMap("null"), withoutKey} {
		w.apply(empty)
		assert.Equal(t, "x", c.Config.Get().AgentImage)
		assert.Contains(t, <-events.Events, "Warning ConfigInvalid the hub's configuration is missing or empty: write {} for the defaults")
	}

	w.apply(configMap(`{"agentImage":"y","registration":{"limit":1}}`))
	assert.Equal(t, "y", c.Config.Get().AgentImage)
	assert.Contains(t, <-events.Events, `Warning ConfigInvalid registration has a key that the hub does not know, and that has no effect: unknown field "limit"`)

	w.apply(configMap(`{"agentImage":"z","agentCheckinInterval":"5m"}`))
	w.apply(configMap(`{"agentImage":"z","agentCheckinInterval":"5 seconds"}`))
	assert.Equal(t, 5*time.Minute, c.Config.Get().AgentCheckinInterval.Duration, "an invalid interval changes no agent")
	assert.Contains(t, <-events.Events, "Warning ConfigInvalid agentCheckinInterval is 5 seconds")
	w.apply(configMap(`{"agentImage":"z","apiServerURL":"htps://hub"}`))
	assert.Empty(t, c.Config.Get().APIServerURL)
	assert.Contains(t, <-events.Events, "Warning ConfigInvalid the hub's configuration: apiServerURL is unusable: it is not a URL")

	w.apply(configMap(`{"agentImage":"z"}`))
	assert.Equal(t, "z", c.Config.Get().AgentImage)
	assert.Empty(t, events.Events)
}

func TestLoadOfAnInvalidDocument(t *testing.T) {
	for name, document := range map[string]string{
		"an invalid rule":               bad,
		"not YAML":                      "{",
		"an empty document":             "",
		"null":                          "null",
		"an error elsewhere":            `{"agentTLSMode":"maybe"}`,
		"registration is not an object": `{"registration":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			c, events := hubWith(configMap(document))
			w, err := Load(t.Context(), c)
			require.NoError(t, err, "the hub starts")
			assert.Contains(t, c.Config.Problem(), "the hub changes no agent until ConfigMap cattle-fleet-system/fleet-controller is corrected: ")
			w.apply(configMap(document))
			assert.Contains(t, <-events.Events, "; the hub changes no agent until it is corrected")
			assert.NotEmpty(t, c.Config.Problem())
			w.apply(configMap(good))
			assert.Empty(t, c.Config.Problem())
			assert.Equal(t, "x", c.Config.Get().AgentImage, "the corrected document applies")
		})
	}
}

func TestFallback(t *testing.T) {
	const rest = `"apiServerURL":"https://hub","members":{"deniedCIDRs":["10.0.0.0/8"]},"bundles":{"workspaceLimitMiB":7},` +
		`"registration":{"approval":"Manual","requirePolicies":true},"agentTLSMode":"strict"`
	whole, _, err := parse(config.Hub{}, "{"+rest+"}")
	require.NoError(t, err)
	t.Run("a key without effect on others: they apply", func(t *testing.T) {
		for _, wrong := range []string{`"agentMissedCheckins":1`, `"apiServerCA":"?"`, `"clusternet":{"bootstrapTokens":[{"id":"?"}]}`, `"bootstrap":1`} {
			_, _, err := parse(config.Hub{}, "{"+rest+","+wrong+"}")
			require.Error(t, err, wrong)
			assert.Equal(t, whole, fallback("{"+rest+","+wrong+"}"), wrong)
		}
	})
	for name, row := range map[string]struct {
		replace, by string
		protects    func(config.Hub) bool
	}{
		"registration":          {`"approval":"Manual"`, `"approval":"Perhaps"`, func(h config.Hub) bool { return h.Registration.Unknown }},
		"registration, spelled": {`"registration":{"approval":"Manual"`, `"Registration":{"approval":"Perhaps"`, func(h config.Hub) bool { return h.Registration.Unknown }},
		"members":               {`"10.0.0.0/8"`, `"10.0.0.0"`, func(h config.Hub) bool { return h.Members.Unknown }},
		"bundles":               {`:7`, `:-7`, func(h config.Hub) bool { return h.Bundles.WorkspaceLimit() == 1<<20 }},
		"agentTLSMode":          {`"strict"`, `"lax"`, func(h config.Hub) bool { return h.TLSMode() == config.TLSModeStrict }},
		"ignoreClusterRegistrationLabels": {
			`"agentTLSMode"`, `"ignoreClusterRegistrationLabels":"on","agentTLSMode"`,
			func(h config.Hub) bool { return h.IgnoreClusterRegistrationLabels },
		},
	} {
		t.Run("an invalid key, "+name+": nothing is permitted in its place, and the others apply", func(t *testing.T) {
			document := strings.Replace("{"+rest+"}", row.replace, row.by, 1)
			_, _, err := parse(config.Hub{}, document)
			require.Error(t, err)
			hub := fallback(document)
			assert.True(t, row.protects(hub), "%+v", hub)
			assert.Equal(t, "https://hub", hub.APIServerURL)
		})
	}
	for _, document := range []string{"", "{", "[]", "null"} {
		t.Run("nothing is known: nothing is permitted: "+document, func(t *testing.T) {
			hub := fallback(document)
			assert.True(t, hub.Registration.Unknown)
			assert.True(t, hub.Members.Unknown)
			assert.EqualValues(t, 1<<20, hub.Bundles.WorkspaceLimit())
			assert.Equal(t, config.TLSModeStrict, hub.TLSMode())
			assert.True(t, hub.IgnoreClusterRegistrationLabels)
		})
	}
}

// kinds, controller and cache let Load list Clusters.
type kinds struct {
	fleetcontrollers.Interface
	controller controller
}

type controller struct {
	fleetcontrollers.ClusterController
	cache cache
}

type cache struct {
	fleetcontrollers.ClusterCache
	all []*fleet.Cluster
}

func (k kinds) Cluster() fleetcontrollers.ClusterController { return k.controller }

func (c controller) Cache() generic.CacheInterface[*fleet.Cluster] { return c.cache }

func (c cache) List(string, labels.Selector) ([]*fleet.Cluster, error) { return c.all, nil }

func TestLoadWithoutConfigMap(t *testing.T) {
	for name, row := range map[string]struct {
		last    *fleet.ImportStatus
		version string
		existed bool
	}{
		"no cluster was imported":             {nil, "", false},
		"the Secret had the address":          {&fleet.ImportStatus{APIServerURLFromSecret: true}, "", false},
		"a deleted ConfigMap had the address": {&fleet.ImportStatus{}, "", true},
		"a chart installed the hub":           {nil, "v1", true},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := hubWith()
			c.ConfigVersion = row.version
			all := []*fleet.Cluster{{Status: fleet.ClusterStatus{APIServerURL: "https://hub", Import: row.last}}}
			c.Fleet = kinds{controller: controller{cache: cache{all: all}}}
			w, err := Load(t.Context(), c)
			require.NoError(t, err)
			assert.Equal(t, row.existed, c.Config.Get().Registration.Unknown)
			assert.Equal(t, row.existed, c.Config.Problem() != "")
			w.apply(configMap(good))
			assert.Equal(t, "x", c.Config.Get().AgentImage)
			assert.Empty(t, c.Config.Problem())
		})
	}
}

func TestWatcher_otherVersion(t *testing.T) {
	of := func(version, document string) *corev1.ConfigMap {
		cm := configMap(document)
		cm.Annotations = map[string]string{fleet.VersionAnnotation: version}
		return cm
	}
	const old, upgraded = `{"agentImage":"agent:v1"}`, `{"agentImage":"agent:v2","registration":{"approval":"Manual"}}`
	t.Run("a hub that starts during the upgrade changes no agent, and applies the configuration of the rollback", func(t *testing.T) {
		c, events := hubWith(of("v2", upgraded))
		c.ConfigVersion = "v1"
		w, err := Load(t.Context(), c)
		require.NoError(t, err)
		assert.Equal(t, `the hub changes no agent: ConfigMap cattle-fleet-system/fleet-controller has the configuration of version "v2", and this hub is of version "v1": `+
			`a hub of version "v2" will apply it`, c.Config.Problem())
		assert.Equal(t, fleet.ApprovalManual, c.Config.Get().Registration.Approval, "what restricts registrations applies")

		w.apply(of("v2", upgraded))
		assert.Contains(t, <-events.Events, "Warning ConfigOfOtherRelease ConfigMap cattle-fleet-system/fleet-controller has the configuration of version")
		assert.NotEmpty(t, c.Config.Problem())

		w.apply(of("v1", old))
		assert.Empty(t, c.Config.Problem())
		assert.Equal(t, "agent:v1", c.Config.Get().AgentImage)
	})
	for name, own := range map[string]string{"of a known version": "v1", "of the version that it reads first": ""} {
		t.Run("a hub "+name+" ignores those of others, and applies its own and those without a version", func(t *testing.T) {
			c, events := hubWith(of("v1", old))
			c.ConfigVersion = own
			w, err := Load(t.Context(), c)
			require.NoError(t, err)
			w.apply(of("v2", upgraded))
			assert.Contains(t, <-events.Events, "ConfigOfOtherRelease")
			assert.Equal(t, "agent:v1", c.Config.Get().AgentImage)
			w.apply(of("v1", `{"agentImage":"agent:v1.1"}`))
			assert.Equal(t, "agent:v1.1", c.Config.Get().AgentImage)
			fleets := configMap(`{"agentImage":"fleets"}`)
			fleets.Annotations = map[string]string{"meta.helm.sh/release-name": "fleet"}
			w.apply(fleets)
			assert.Contains(t, <-events.Events, "ConfigOfOtherRelease")
			assert.Equal(t, "agent:v1.1", c.Config.Get().AgentImage)
			w.apply(configMap(`{"agentImage":"mine"}`))
			assert.Equal(t, "mine", c.Config.Get().AgentImage)
			assert.Empty(t, c.Config.Problem())
		})
	}
}
