package config

import (
	"math"
	"net/netip"
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

func TestParseHub(t *testing.T) {
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
	assert.True(t, hub.Bootstrap.Enabled())
	yaml, _, err := ParseHub("apiServerURL: https://hub\nagentCheckinInterval: 1m\n")
	require.NoError(t, err)
	assert.Equal(t, Hub{APIServerURL: "https://hub", AgentCheckinInterval: metav1.Duration{Duration: time.Minute}}, yaml)
}

func TestParseHubDefaults(t *testing.T) {
	hub, warnings, err := ParseHub("{}")
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, Hub{}, hub)
	assert.Equal(t, TLSModeSystemStore, hub.TLSMode())
	assert.False(t, hub.Bootstrap.Enabled())
	assert.False(t, Bootstrap{Namespace: "-"}.Enabled())
	for _, document := range []string{"", "null", "# only a comment"} {
		_, _, err := ParseHub(document)
		assert.EqualError(t, err, "the hub's configuration is missing or empty: write {} for the defaults", document)
	}
}

func TestParseHubDropsInvalidDurations(t *testing.T) {
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
		{`"15ms"`, "agentCheckinInterval is 15ms, which is shorter than 1s: it has no effect"},
		{`"999ms"`, "999ms"},
	} {
		hub, warnings, err := ParseHub(`{"apiServerURL":"https://hub","agentCheckinInterval":` + row.value + `}`)
		require.NoError(t, err, row.value)
		assert.Zero(t, hub.AgentCheckinInterval.Duration)
		assert.Equal(t, "https://hub", hub.APIServerURL, "the other keys are used")
		if row.warning == "" {
			assert.Empty(t, warnings, row.value)
			continue
		}
		require.Len(t, warnings, 1, row.value)
		assert.Contains(t, warnings[0], "agentCheckinInterval")
		assert.Contains(t, warnings[0], row.warning)
	}
}

func TestParseChangeKeepsDurations(t *testing.T) {
	before, _, err := ParseHub(`{"agentCheckinInterval":"5m","garbageCollectionInterval":"1h","agentMissedCheckins":4}`)
	require.NoError(t, err)
	after, warnings, err := before.ParseChange(`{"agentCheckinInterval":"5 seconds","garbageCollectionInterval":0,"gitClientTimeout":"x"}`)
	require.NoError(t, err)
	assert.Len(t, warnings, 2)
	assert.Equal(t, 5*time.Minute, after.AgentCheckinInterval.Duration, "an invalid value has no effect")
	assert.Zero(t, after.GarbageCollectionInterval.Duration, "0 is valid, and means the default")
	assert.Zero(t, after.AgentMissedCheckins, "a key that the document no longer has")
	after, warnings, err = before.ParseChange(`{"agentChekinInterval":"1m"}`)
	require.NoError(t, err)
	assert.Len(t, warnings, 1)
	assert.Equal(t, 5*time.Minute, after.AgentCheckinInterval.Duration, "a mistyped key has no effect")
	after, _, err = before.ParseChange(`{"agentChekinInterval":"1m","AgentCheckinInterval":"2m"}`)
	require.NoError(t, err)
	assert.Equal(t, 2*time.Minute, after.AgentCheckinInterval.Duration)
	after, _, err = before.ParseChange(`{}`)
	require.NoError(t, err)
	assert.Zero(t, after.AgentCheckinInterval.Duration)
}

func TestParseHubMistypedKeys(t *testing.T) {
	for _, row := range []struct{ key, want string }{
		{"agentChekinInterval", "key agentChekinInterval is not known, and has no effect: is it agentCheckinInterval?"},
		{"agentCheckinIntervall", "is it agentCheckinInterval?"},
		{"apiServerUrls", "is it apiServerURL?"},
		{"manageagent", ""}, // the case of keys does not matter
		{"gitClientTimeout", ""},
		{"somethingOfAnotherComponent", ""},
	} {
		_, warnings, err := ParseHub(row.key + ": null")
		require.NoError(t, err, row.key)
		all := strings.Join(warnings, "; ")
		if row.want == "" {
			assert.NotContains(t, all, "is not known", row.key)
		} else {
			assert.Contains(t, all, row.want)
		}
	}
}

func TestParseHubShortestDurations(t *testing.T) {
	_, warnings, err := ParseHub(`{"agentCheckinInterval":"x","gitClientTimeout":"y","garbageCollectionInterval":"z","agentRemovalTimeout":"9s"}`)
	require.NoError(t, err)
	assert.Len(t, warnings, 4, "a warning for each")
	hub, warnings, err := ParseHub(`{"agentCheckinInterval":"1s","gitClientTimeout":"1ms","garbageCollectionInterval":"1m","agentRemovalTimeout":"10s"}`)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, LeastCheckinInterval, hub.AgentCheckinInterval.Duration)
	assert.Equal(t, LeastGarbageCollectionInterval, hub.GarbageCollectionInterval.Duration)
	assert.Equal(t, LeastRemovalTimeout, hub.AgentRemovalTimeout.Duration)
}

func TestParseGarbageCollectionInterval(t *testing.T) {
	hub, warnings, err := ParseHub(`{"garbageCollectionInterval":"15ms"}`)
	require.NoError(t, err)
	assert.Equal(t, []string{"garbageCollectionInterval is 15ms, which is shorter than 1m0s: it has no effect, the value from before stays, or the default"}, warnings)
	assert.Zero(t, hub.GarbageCollectionInterval)
	agent, err := ParseAgent(`{"garbageCollectionInterval":"15ms"}`)
	require.NoError(t, err)
	assert.Zero(t, agent.GarbageCollectionInterval)
}

func TestParseHubErrors(t *testing.T) {
	for _, row := range []struct{ name, document, says string }{
		{"no document", "just text", "neither JSON nor YAML"},
		{"broken JSON", `{"apiServerURL": `, "neither JSON nor YAML"},
		{"a list", "[]", "neither JSON nor YAML"},
		{"a wrong type", `{"apiServerURL": 5}`, "apiServerURL"},
		{"a wrong type further down", `{"bootstrap": {"namespace": []}}`, "bootstrap.namespace"},
		{"a URL of another scheme", `{"apiServerURL": "htps://hub:6443"}`, "apiServerURL is unusable: it is not a URL like https://hub.example.com"},
		{"a URL with a password", `{"apiServerURL": "https://me:secret@hub"}`, "apiServerURL is unusable: it contains a user name"},
		{"a CA that is PEM and not base64", `{"apiServerCA": "-----BEGIN CERTIFICATE-----"}`, "apiServerCA is not base64"},
		{"an unknown TLS mode", `{"agentTLSMode": "lax"}`, `agentTLSMode is "lax": it must be "strict" or "system-store"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			hub, warnings, err := ParseHub(row.document)
			require.ErrorContains(t, err, row.says)
			assert.ErrorContains(t, err, "the hub's configuration")
			assert.Equal(t, Hub{}, hub, "no part of it is used")
			assert.Empty(t, warnings)
		})
	}
}

func TestSameForAgents(t *testing.T) {
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

func TestMissedCheckins(t *testing.T) {
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

func TestWorkspaceLimit(t *testing.T) {
	for document, limit := range map[string]int64{"{}": 512 << 20, "bundles: {workspaceLimitMiB: 3}": 3 << 20} {
		hub, _, err := ParseHub(document)
		require.NoError(t, err, document)
		assert.Equal(t, limit, hub.Bundles.WorkspaceLimit(), document)
	}
	for _, document := range []string{"bundles: {workspaceLimitMiB: -1}", "bundles: {workspaceLimitMiB: 1048577}"} {
		_, _, err := ParseHub(document)
		require.ErrorContains(t, err, "it must be from 1 to 1048576, or 0 for the default of 512", document)
	}
}

func TestWorkspaceMemory(t *testing.T) {
	for document, limit := range map[string]int64{
		"{}": DefaultWorkspaceMemoryMiB << 20, "bundles: {workspaceMemoryMiB: null}": DefaultWorkspaceMemoryMiB << 20,
		"bundles: {workspaceMemoryMiB: 0}": math.MaxInt64, "bundles: {workspaceMemoryMiB: 3}": 3 << 20,
	} {
		hub, _, err := ParseHub(document)
		require.NoError(t, err, document)
		assert.Equal(t, limit, hub.Bundles.WorkspaceMemory(), document)
	}
	_, _, err := ParseHub("bundles: {workspaceMemoryMiB: -1}")
	require.ErrorContains(t, err, "bundles.workspaceMemoryMiB is -1: it must be from 1 to 1048576, or 0 for no limit")
}

func TestParseHub_members(t *testing.T) {
	hub, _, err := ParseHub("members: {allowedCIDRs: [127.0.0.1/8], deniedCIDRs: ['10.96.0.0/12', 'fd00::/8'], allowProxyURL: true}")
	require.NoError(t, err)
	assert.Equal(t, Members{
		AllowedCIDRs:  CIDRs{netip.MustParsePrefix("127.0.0.0/8")},
		DeniedCIDRs:   CIDRs{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/8")},
		AllowProxyURL: true,
	}, hub.Members)

	for _, document := range []string{"members: {deniedCIDRs: [10.0.0.1]}", "members: {allowedCIDRs: [hub.example]}", "members: {deniedCIDRs: 10.0.0.0/8}"} {
		_, _, err := ParseHub(document)
		require.ErrorContains(t, err, "members.allowedCIDRs and members.deniedCIDRs must be lists of CIDRs such as 10.0.0.0/8", document)
	}
}
