package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAgentDocument(t *testing.T) {
	document, err := Agent{
		Labels: map[string]string{"env": "prod"}, ClientID: "id", AgentTLSMode: TLSModeSystemStore,
		GarbageCollectionInterval: metav1.Duration{Duration: 15 * time.Minute},
	}.Document()
	require.NoError(t, err)
	assert.JSONEq(t, `{"labels":{"env":"prod"},"clientID":"id","agentTLSMode":"system-store","garbageCollectionInterval":"15m0s"}`, document)
}

func TestParseAgentDefaults(t *testing.T) {
	for _, document := range []string{"", "{}", "null", `{"unknown": "key", "garbageCollectionInterval": 0}`} {
		agent, err := ParseAgent(document)
		require.NoError(t, err, document)
		assert.Equal(t, Agent{}, agent)
	}
}

func TestParseAgentDropsInvalidDurations(t *testing.T) {
	agent, err := ParseAgent(`{"clientID": "id", "garbageCollectionInterval": "15 minutes"}`)
	require.NoError(t, err)
	assert.Equal(t, Agent{ClientID: "id"}, agent)
}

func TestParseAgentErrors(t *testing.T) {
	for _, document := range []string{"text", "[]", `{"labels": "x"}`, `{"clientID": 5}`, "clientID: &a x\nlabels: {k: *a}"} {
		agent, err := ParseAgent(document)
		require.ErrorContains(t, err, "ConfigMap fleet-agent, key config", document)
		assert.Equal(t, Agent{}, agent)
	}
}
