package agent

import (
	"errors"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/register"
)

func TestAnnouncement(t *testing.T) {
	stored := &credential.Stored{ClusterNamespace: "fleet-default", ClusterName: "one"}
	identity := &register.ImportIdentity{Access: hubclient.Access{Endpoint: hubclient.Endpoint{Server: agenttest.HubURL}}}
	other := &hubclient.Endpoint{Server: agenttest.HubURL, Source: "ConfigMap fleet-agent-hub"}
	cause := errors.New("the cause")
	for name, row := range map[string]struct {
		action Action
		member memberState
		hub    hubState
		level  logrus.Level
		want   string
	}{
		"UseStored": {
			action: UseStored, member: memberState{stored: stored},
			level: logrus.InfoLevel, want: "The stored credential works: this is cluster fleet-default/one",
		},
		"KeepEndpoint": {
			action: KeepEndpoint, member: memberState{stored: stored},
			level: logrus.InfoLevel, want: "The stored credential works: this is cluster fleet-default/one",
		},
		"ReplaceStored, new registration": {
			action: ReplaceStored, member: memberState{stored: stored, storedPresence: Present, identity: identity, newRegistration: true},
			level: logrus.InfoLevel,
			want: "The stored credential of cluster fleet-default/one works; registering again at https://hub.example.com at the same time: " +
				"the hub asks for a new registration; the stored credential is kept until the new one has worked",
		},
		"ReplaceStored, rejected at the other endpoint": {
			action: ReplaceStored, member: memberState{stored: stored, storedPresence: Present, identity: identity},
			hub:   hubState{otherAnswer: hubclient.Rejected, otherErr: cause},
			level: logrus.InfoLevel,
			want: "The stored credential of cluster fleet-default/one works; registering again at https://hub.example.com at the same time: " +
				"the hub there rejects the stored credential (the cause), which is kept until the new one has worked",
		},
		"Register, nothing stored": {
			action: Register, member: memberState{identity: identity},
			level: logrus.InfoLevel, want: "Registering at https://hub.example.com: there is no stored credential",
		},
		"Register, malformed": {
			action: Register, member: memberState{identity: identity, storedPresence: Malformed, storedErr: cause},
			level: logrus.InfoLevel, want: "Registering at https://hub.example.com: the stored credential is unusable (the cause)",
		},
		"Register, rejected": {
			action: Register, member: memberState{identity: identity, storedPresence: Present}, hub: hubState{hub: hubclient.Rejected, hubErr: cause},
			level: logrus.InfoLevel, want: "Registering at https://hub.example.com: the hub rejects the stored credential (the cause)",
		},
		"Register, installed again": {
			action: Register, member: memberState{identity: identity, storedPresence: Present, leaving: true},
			level: logrus.InfoLevel, want: "Registering at https://hub.example.com: the agent was installed again while it was leaving",
		},
		"SwitchEndpoint": {
			action: SwitchEndpoint, member: memberState{stored: stored}, hub: hubState{other: other},
			level: logrus.InfoLevel,
			want:  "The stored credential of cluster fleet-default/one works at https://hub.example.com (without a CA, system-store) of ConfigMap fleet-agent-hub: switching to it",
		},
		"Leave": {
			action: Leave, level: logrus.InfoLevel,
			want: "Leaving: the hub has asked the agent to leave, and its objects in Namespace ns are deleted",
		},
		"WaitForHub, unreachable": {
			action: WaitForHub, hub: hubState{hub: hubclient.Unreachable, hubErr: cause},
			level: logrus.WarnLevel, want: "Waiting for the hub, keeping the stored credential: it is unreachable: the cause",
		},
		"WaitForHub, obstructed": {
			action: WaitForHub, hub: hubState{hub: hubclient.Obstructed, hubErr: cause},
			level: logrus.WarnLevel,
			want:  "Waiting for the hub, keeping the stored credential: it, or a proxy before it, answered with an error, but did not reject the credential: the cause",
		},
		"ReportRejected": {
			action: ReportRejected, hub: hubState{hubErr: cause}, level: logrus.ErrorLevel,
			want: "Failed to register agent: the hub rejects the stored credential (the cause) and there is no bootstrap Secret to register with; " + remedy("ns"),
		},
		"WaitForBootstrap": {
			action: WaitForBootstrap, level: logrus.ErrorLevel,
			want: "Failed to register agent: there is no stored credential and there is no bootstrap Secret to register with; " + remedy("ns"),
		},
		"WaitForBootstrap, malformed": {
			action: WaitForBootstrap, member: memberState{storedPresence: Malformed, storedErr: cause}, level: logrus.ErrorLevel,
			want: "Failed to register agent: the stored credential is unusable (the cause) and there is no bootstrap Secret to register with; " + remedy("ns"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			level, text := announcement(row.action, observation{memberState: row.member, hubState: row.hub}, "ns")
			assert.Equal(t, row.level.String(), level.String())
			assert.Equal(t, row.want, text)
		})
	}
	assert.Contains(t, remedy("ns"), "Secret ns/fleet-agent-bootstrap (key values)")
}

func TestState(t *testing.T) {
	seen := map[string]Action{}
	for action := WaitForBootstrap; action <= Leave; action++ {
		text := state(action)
		assert.NotEmpty(t, text)
		assert.NotContains(t, text, "%")
		seen[text] = action
	}
	assert.Len(t, seen, int(Leave), "KeepEndpoint is described as UseStored, every other action differently")
	assert.Equal(t, state(UseStored), state(KeepEndpoint))
}
