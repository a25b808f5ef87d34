package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestParseRegistrationDefaults(t *testing.T) {
	hub, warnings, err := ParseHub("{}")
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, Registration{}, hub.Registration)
	assert.Equal(t, 24*time.Hour, hub.Registration.Lifetime())
}

func TestParseRegistration(t *testing.T) {
	hub, _, err := ParseHub(`
registration:
  credentialLifetime: 1h
  longLivedCredentials: Refuse
  longLivedNamespaces: [fleet-default]
  agentLabels: Allowed
  approval: Manual
  requireTokenTTL: true
  limits: {waitingPerToken: 3, unconnectedPerNamespace: 4}
  requirePolicies: true
  policy:
  - {name: edge, expression: 'request.spec.clientID.startsWith("edge-")', action: Approve, message: ours}
`)
	require.NoError(t, err)
	assert.Equal(t, time.Hour, hub.Registration.Lifetime())
	assert.Equal(t, fleet.LongLivedRefuse, hub.Registration.LongLivedIn("fleet-local"))
	assert.Equal(t, fleet.LongLivedAllow, hub.Registration.LongLivedIn("fleet-default"))
	assert.Equal(t, AgentLabelsOnlyAllowed, hub.Registration.AgentLabels)
	assert.Equal(t, fleet.ApprovalManual, hub.Registration.Approval)
	assert.True(t, hub.Registration.RequireTokenTTL)
	assert.Equal(t, BacklogLimits{WaitingPerToken: 3, WaitingPerNamespace: 5000, UnconnectedPerToken: 1000, UnconnectedPerNamespace: 4},
		hub.Registration.Limits.WithDefaults())
	assert.True(t, hub.Registration.RequirePolicies)
	assert.Equal(t, []PolicyRule{{
		Name: "edge", Expression: `request.spec.clientID.startsWith("edge-")`, Action: registration.RulingApprove, Message: "ours",
	}}, hub.Registration.Policy)
}

func TestParseRegistrationErrors(t *testing.T) {
	for name, row := range map[string]struct{ document, says string }{
		"a lifetime that is too short": {`credentialLifetime: 9m59s`, "registration.credentialLifetime is 9m59s: it must be at least 10m0s"},
		"a lifetime that is too long":  {`credentialLifetime: 168h1s`, "registration.credentialLifetime is 168h0m1s: it must be at most 168h0m0s"},
		"a negative lifetime":          {`credentialLifetime: -1h`, "registration.credentialLifetime is -1h0m0s"},
		"a lifetime that is none":      {`credentialLifetime: 1d`, "unknown unit"},
		"long-lived credentials":       {`longLivedCredentials: Maybe`, `registration.longLivedCredentials is "Maybe": it must be "Allow" or "Refuse"`},
		"the case of a word":           {`longLivedCredentials: refuse`, `registration.longLivedCredentials is "refuse"`},
		"labels of agents":             {`agentLabels: Any`, `registration.agentLabels is "Any": it must be "Accept" or "Allowed"`},
		"a negative limit":             {`limits: {waitingPerToken: -1}`, "registration.limits has a negative number"},
		"an approval":                  {`approval: Yes please`, `registration.approval is "Yes please": it must be "Auto" or "Manual"`},
		"a rule without a name":        {`policy: [{expression: "true", action: Deny}]`, "registration.policy[0] has no name"},
		"a rule without an expression": {`policy: [{name: a, action: Deny}]`, "registration.policy[0] (a) has no expression"},
		"a rule without an action":     {`policy: [{name: a, expression: "true"}]`, `registration.policy[0] (a) has action "": it must be "Approve", "Deny" or "Ask"`},
		"one bad rule of two": {
			`policy: [{name: a, expression: "true", action: Ask}, {name: b, expression: "true", action: Explode}]`, `registration.policy[1] (b) has action "Explode"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			hub, _, err := ParseHub("registration: {" + row.document + "}")
			require.ErrorContains(t, err, row.says)
			assert.Equal(t, Hub{}, hub)
		})
	}
}

func TestParseRegistrationNamesEachInvalidRule(t *testing.T) {
	_, _, err := ParseHub(`registration: {policy: [{action: Deny}, {name: b}]}`)
	require.ErrorContains(t, err, "policy[0]")
	require.ErrorContains(t, err, "policy[1]")
}
