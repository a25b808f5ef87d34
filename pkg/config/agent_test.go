package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAgentsConfigurationSurvivesTheWay(t *testing.T) {
	for _, agent := range []Agent{
		{},
		{
			Labels: map[string]string{"env": "prod"}, ClientID: "id", AgentTLSMode: TLSModeStrict,
			GarbageCollectionInterval: metav1.Duration{Duration: 20 * time.Minute},
		},
	} {
		document, err := agent.Document()
		require.NoError(t, err)
		back, err := ParseAgent(document)
		require.NoError(t, err)
		assert.Equal(t, agent, back)
	}
}

func TestAgentsDocumentHasTheKeysPeersRead(t *testing.T) {
	document, err := Agent{
		Labels: map[string]string{"env": "prod"}, ClientID: "id", AgentTLSMode: TLSModeSystemStore,
		GarbageCollectionInterval: metav1.Duration{Duration: 15 * time.Minute},
	}.Document()
	require.NoError(t, err)
	assert.JSONEq(t, `{"labels":{"env":"prod"},"clientID":"id","agentTLSMode":"system-store","garbageCollectionInterval":"15m0s"}`, document)
}

func TestAgentWithoutConfigurationHasTheDefaults(t *testing.T) {
	for _, document := range []string{"", "{}", "null", `{"unknown": "key", "garbageCollectionInterval": 0}`} {
		agent, err := ParseAgent(document)
		require.NoError(t, err, document)
		assert.Equal(t, Agent{}, agent)
	}
}

func TestTypoInAnIntervalDoesNotKeepAnAgentFromRegistering(t *testing.T) {
	agent, err := ParseAgent(`{"clientID": "id", "garbageCollectionInterval": "15 minutes"}`)
	require.NoError(t, err)
	assert.Equal(t, Agent{ClientID: "id"}, agent)
}

func TestUnusableAgentConfigurationSaysWhereItIs(t *testing.T) {
	for _, document := range []string{"text", "[]", `{"labels": "x"}`, `{"clientID": 5}`} {
		agent, err := ParseAgent(document)
		require.ErrorContains(t, err, "ConfigMap fleet-agent, key config", document)
		assert.Equal(t, Agent{}, agent)
	}
}

// FuzzAgentConfiguration demands no panic, and that what is accepted is read the same again.
func FuzzAgentConfiguration(f *testing.F) {
	f.Add(`{"labels":{"a":"b"},"clientID":"x","agentTLSMode":"strict","garbageCollectionInterval":"1m"}`)
	f.Add("labels: {}\n")
	f.Fuzz(func(t *testing.T, document string) {
		agent, err := ParseAgent(document)
		if err != nil {
			assert.Equal(t, Agent{}, agent)
			return
		}
		first, err := agent.Document()
		require.NoError(t, err)
		again, err := ParseAgent(first)
		require.NoError(t, err)
		second, err := again.Document()
		require.NoError(t, err)
		assert.Equal(t, first, second)
	})
}
