package config

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func FuzzParseHub(f *testing.F) {
	for _, document := range []string{
		everything, "", "{}", "null", "[]", "a: b", `{"agentTLSMode":"strict","apiServerCA":"AAAA","agentCheckinInterval":"15m"}`,
		"agentCheckinInterval: nonsense\ngarbageCollectionInterval: -1s\n", "apiServerCA: '***'",
		`{"registration":{"credentialLifetime":"1m"}}`,
		`{"registration":{"approval":"Manual","policy":[{"name":"n","expression":"true","action":"Ask"}]}}`,
		"bootstrap: {namespace: '-', clusterLabels: {a: b}}", "agentMissedCheckins: 1", "&a [*a]", "? {}\n: x", "\x00",
	} {
		f.Add(document)
	}
	f.Fuzz(func(t *testing.T, document string) {
		hub, warnings, err := ParseHub(document)
		again, same, _ := ParseHub(document)
		assert.Equal(t, hub, again)
		assert.ElementsMatch(t, warnings, same)
		if err != nil {
			assert.Equal(t, Hub{}, hub, "no part of it is used")
			return
		}
		assert.Positive(t, hub.CheckinInterval())
		assert.GreaterOrEqual(t, hub.MissedCheckins(), leastMissedCheckins)
		assert.GreaterOrEqual(t, hub.Registration.Lifetime(), MinCredentialLifetime)
		assert.Contains(t, []TLSMode{TLSModeStrict, TLSModeSystemStore}, hub.TLSMode())
		assert.True(t, hub.SameForAgents(again))
		for _, rule := range hub.Registration.Policy {
			assert.NoError(t, rule.validate(0))
		}
		data, err := json.Marshal(hub)
		require.NoError(t, err)
		read, warnings, err := ParseHub(string(data))
		require.NoError(t, err)
		assert.Empty(t, warnings)
		written, err := json.Marshal(read)
		require.NoError(t, err)
		assert.JSONEq(t, string(data), string(written))
	})
}

func FuzzParseAgent(f *testing.F) {
	for _, document := range []string{
		"", "{}", "null", `{"clientID":"x","labels":{"a":"b"},"agentTLSMode":"strict","garbageCollectionInterval":"1h"}`,
		"labels: {a: 1}", "labels: [a]", "garbageCollectionInterval: 5", "clientID: 0x10", "agentTLSMode: loose", "\xff",
	} {
		f.Add(document)
	}
	f.Fuzz(func(t *testing.T, document string) {
		agent, err := ParseAgent(document)
		if err != nil {
			assert.Equal(t, Agent{}, agent)
			return
		}
		if !utf8.ValidString(document) {
			return
		}
		written, err := agent.Document()
		require.NoError(t, err)
		back, err := ParseAgent(written)
		require.NoError(t, err)
		if len(agent.Labels) == 0 {
			agent.Labels, back.Labels = nil, nil
		}
		assert.Equal(t, agent, back)
	})
}
