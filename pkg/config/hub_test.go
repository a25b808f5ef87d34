package config

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// everything is the document a chart writes, with every key, and two that no program of this project reads.
const everything = `{
	"agentImage": "rancher/fleet-agent:dev", "agentImagePullPolicy": "IfNotPresent", "systemDefaultRegistry": "registry",
	"agentCheckinInterval": "15m", "agentMissedCheckins": 4, "manageAgent": false, "apiServerURL": "https://hub", "apiServerCA": "cGVt",
	"bootstrap": {"namespace": "fleet-local", "agentNamespace": "elsewhere", "localAgentDisabled": true, "clusterLabels": {"a": "b"},
		"repo": "https://git", "secret": "s", "paths": "a,b", "branch": "master"},
	"ignoreClusterRegistrationLabels": true, "agentTLSMode": "strict", "garbageCollectionInterval": "20m", "gitClientTimeout": "30s",
	"agentWorkers": {"bundledeployment": "5", "drift": "6"}, "imagePullSecrets": [{"name": "one"}, {"name": "two"}],
	"webhookReceiverURL": "", "githubURLPrefix": ""
}`

func TestEveryKeyOfTheDocumentArrives(t *testing.T) {
	hub, warnings, err := ParseHub(everything)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, Hub{
		AgentImage: "rancher/fleet-agent:dev", AgentImagePullPolicy: "IfNotPresent", SystemDefaultRegistry: "registry",
		AgentCheckinInterval: metav1.Duration{Duration: 15 * time.Minute}, AgentMissedCheckins: 4, ManageAgent: ptr.To(false),
		APIServerURL: "https://hub", APIServerCA: []byte("pem"),
		Bootstrap: Bootstrap{
			Namespace: "fleet-local", AgentNamespace: "elsewhere", LocalAgentDisabled: true, ClusterLabels: map[string]string{"a": "b"},
			Repo: "https://git", Secret: "s", Paths: "a,b", Branch: "master",
		},
		IgnoreClusterRegistrationLabels: true, AgentTLSMode: TLSModeStrict,
		GarbageCollectionInterval: metav1.Duration{Duration: 20 * time.Minute},
		AgentWorkers:              AgentWorkers{BundleDeployment: "5", Drift: "6"},
		ImagePullSecrets:          []LocalObjectReference{{Name: "one"}, {Name: "two"}},
	}, hub)
	assert.Equal(t, []string{"one", "two"}, hub.PullSecretNames())
}

func TestNothingConfiguredIsTheDefault(t *testing.T) {
	for _, document := range []string{"", "{}", "null", "# only a comment"} {
		hub, warnings, err := ParseHub(document)
		require.NoError(t, err, document)
		assert.Empty(t, warnings)
		assert.Equal(t, Hub{}, hub)
		assert.Equal(t, TLSModeSystemStore, hub.TLSMode())
		assert.False(t, hub.Bootstrap.Enabled())
	}
}

func TestDocumentMayBeYAML(t *testing.T) {
	hub, _, err := ParseHub("apiServerURL: https://hub\nagentCheckinInterval: 1m\n")
	require.NoError(t, err)
	assert.Equal(t, "https://hub", hub.APIServerURL)
	assert.Equal(t, time.Minute, hub.AgentCheckinInterval.Duration)
}

func TestDurationThatIsNoneCostsOnlyItself(t *testing.T) {
	for _, row := range []struct{ value, warning string }{
		{`"15 minutes"`, "15 minutes"},
		{`"1d"`, "1d"},
		{`"-5m"`, "-5m"},
		{`""`, "agentCheckinInterval is ,"},
		{`900`, "900"},
		{`true`, "true"},
		{`["15m"]`, "[15m]"},
		{`0`, ""},
		{`null`, ""},
		{`"0"`, ""},
		{`"15ms"`, "agentCheckinInterval is 15ms, which is shorter than 1s; it is left at its default"},
		{`"999ms"`, "999ms"},
	} {
		hub, warnings, err := ParseHub(`{"apiServerURL":"https://hub","agentCheckinInterval":` + row.value + `}`)
		require.NoError(t, err, row.value)
		assert.Zero(t, hub.AgentCheckinInterval.Duration)
		assert.Equal(t, "https://hub", hub.APIServerURL, "the rest is in force")
		if row.warning == "" {
			assert.Empty(t, warnings, row.value)
			continue
		}
		require.Len(t, warnings, 1, row.value)
		assert.Contains(t, warnings[0], "agentCheckinInterval")
		assert.Contains(t, warnings[0], row.warning)
	}
}

func TestTheShortestDurationsAreTaken(t *testing.T) {
	hub, warnings, err := ParseHub(`{"agentCheckinInterval":"1s","gitClientTimeout":"1ms","garbageCollectionInterval":"1m"}`)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, LeastCheckinInterval, hub.AgentCheckinInterval.Duration)
	assert.Equal(t, LeastGarbageCollectionInterval, hub.GarbageCollectionInterval.Duration)
}

func TestAgentsDoNotCleanUpWithoutAPause(t *testing.T) {
	hub, warnings, err := ParseHub(`{"garbageCollectionInterval":"15ms"}`)
	require.NoError(t, err)
	assert.Equal(t, []string{"garbageCollectionInterval is 15ms, which is shorter than 1m0s; it is left at its default"}, warnings)
	assert.Zero(t, hub.GarbageCollectionInterval)
	agent, err := ParseAgent(`{"garbageCollectionInterval":"15ms"}`)
	require.NoError(t, err)
	assert.Zero(t, agent.GarbageCollectionInterval)
}

func TestEveryBadDurationIsWarnedOf(t *testing.T) {
	_, warnings, err := ParseHub(`{"agentCheckinInterval":"x","gitClientTimeout":"y","garbageCollectionInterval":"z"}`)
	require.NoError(t, err)
	assert.Len(t, warnings, 3)
}

func TestUnusableConfigurationSaysWhatIsWrong(t *testing.T) {
	for _, row := range []struct{ name, document, says string }{
		{"no document", "just text", "neither JSON nor YAML"},
		{"broken JSON", `{"apiServerURL": `, "neither JSON nor YAML"},
		{"a list", "[]", "neither JSON nor YAML"},
		{"a wrong type", `{"apiServerURL": 5}`, "apiServerURL"},
		{"a wrong type further down", `{"bootstrap": {"namespace": []}}`, "bootstrap.namespace"},
		{"a CA that is PEM and not base64", `{"apiServerCA": "-----BEGIN CERTIFICATE-----"}`, "apiServerCA is not base64"},
		{"an unknown TLS mode", `{"agentTLSMode": "lax"}`, `agentTLSMode is "lax": it must be "strict" or "system-store"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			hub, warnings, err := ParseHub(row.document)
			require.ErrorContains(t, err, row.says)
			assert.ErrorContains(t, err, "the hub's configuration")
			assert.Equal(t, Hub{}, hub, "nothing half read may be put in force")
			assert.Empty(t, warnings)
		})
	}
}

func TestHubRegistersItselfOnlyWhenANamespaceIsNamed(t *testing.T) {
	for namespace, enabled := range map[string]bool{"": false, "-": false, "fleet-local": true} {
		assert.Equal(t, enabled, Bootstrap{Namespace: namespace}.Enabled(), namespace)
	}
}

func TestOnlyTheWayToTheHubConcernsAgents(t *testing.T) {
	base := Hub{APIServerURL: "https://hub", APIServerCA: []byte("pem")}
	for _, row := range []struct {
		name  string
		other Hub
		same  bool
	}{
		{"nothing changed", base, true},
		{"another image", Hub{APIServerURL: "https://hub", APIServerCA: []byte("pem"), AgentImage: "x"}, true},
		{"another URL", Hub{APIServerURL: "https://other", APIServerCA: []byte("pem")}, false},
		{"another CA", Hub{APIServerURL: "https://hub", APIServerCA: []byte("other")}, false},
	} {
		assert.Equal(t, row.same, base.SameForAgents(row.other), row.name)
	}
	assert.True(t, Hub{APIServerCA: []byte{}}.SameForAgents(Hub{}), "an empty CA is none")
}

// FuzzHubConfiguration demands no panic, and that what is accepted is valid and is read the same again.
func FuzzHubConfiguration(f *testing.F) {
	f.Add(everything)
	f.Add("agentCheckinInterval: [")
	f.Add("bootstrap: null\nimagePullSecrets: [{name: x}]")
	f.Add("? {a: b}\n: c")
	f.Fuzz(func(t *testing.T, document string) {
		hub, _, err := ParseHub(document)
		if err != nil {
			assert.Equal(t, Hub{}, hub)
			return
		}
		assert.Contains(t, []TLSMode{TLSModeStrict, TLSModeSystemStore}, hub.TLSMode())
		assert.GreaterOrEqual(t, hub.AgentCheckinInterval.Duration, time.Duration(0))
		data, err := json.Marshal(hub)
		require.NoError(t, err)
		again, warnings, err := ParseHub(string(data))
		require.NoError(t, err)
		assert.Empty(t, warnings)
		third, err := json.Marshal(again)
		require.NoError(t, err)
		assert.Equal(t, strings.TrimSpace(string(data)), strings.TrimSpace(string(third)))
	})
}

func TestAnAgentMayMissAFewCheckins(t *testing.T) {
	for _, row := range []struct {
		document string
		missed   int
		interval time.Duration
		refused  bool
	}{
		{document: "{}", missed: DefaultMissedCheckins, interval: DefaultCheckinInterval},
		{document: `{"agentMissedCheckins": 0, "agentCheckinInterval": "0s"}`, missed: DefaultMissedCheckins, interval: DefaultCheckinInterval},
		{document: `{"agentMissedCheckins": 2, "agentCheckinInterval": "1m"}`, missed: 2, interval: time.Minute},
		{document: `{"agentMissedCheckins": 1}`, refused: true},
		{document: `{"agentMissedCheckins": -3}`, refused: true},
		{document: `{"agentMissedCheckins": "many"}`, refused: true},
	} {
		hub, _, err := ParseHub(row.document)
		if row.refused {
			assert.ErrorContains(t, err, "agentMissedCheckins", row.document)
			continue
		}
		require.NoError(t, err, row.document)
		assert.Equal(t, row.missed, hub.MissedCheckins(), row.document)
		assert.Equal(t, row.interval, hub.CheckinInterval(), row.document)
	}
}
