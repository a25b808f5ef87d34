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

func TestDescribe(t *testing.T) {
	stored := &credential.Stored{Workspace: "fleet-default", ClusterName: "one"}
	identity := &register.BootstrapIdentity{Access: hubclient.Access{Endpoint: hubclient.Endpoint{Server: agenttest.HubURL}}}
	other := &hubclient.Endpoint{Server: agenttest.HubURL, Source: "ConfigMap fleet-agent-hub"}
	cause := errors.New("the cause")
	for name, row := range map[string]struct {
		action Action
		o      observation
		level  logrus.Level
		want   string
	}{
		"UseStored": {
			action: UseStored, o: observation{stored: stored},
			level: logrus.InfoLevel, want: "The stored credential works: this is cluster fleet-default/one",
		},
		"KeepEndpoint": {
			action: KeepEndpoint, o: observation{stored: stored},
			level: logrus.InfoLevel, want: "The stored credential works: this is cluster fleet-default/one",
		},
		"UseStoredAndRegister, new registration": {
			action: UseStoredAndRegister, o: observation{facts: Facts{Stored: Present, MustRegister: true}, stored: stored, identity: identity},
			level: logrus.InfoLevel,
			want: "The stored credential of cluster fleet-default/one works; registering again at https://hub.example.com at the same time: " +
				"the bootstrap Secret asks for a new registration, or an earlier request may still be granted; the stored credential is kept until the new one has worked",
		},
		"UseStoredAndRegister, rejected at the other endpoint": {
			action: UseStoredAndRegister, o: observation{facts: Facts{Stored: Present, OtherEndpoint: hubclient.Rejected}, stored: stored, identity: identity, otherErr: cause},
			level: logrus.InfoLevel,
			want: "The stored credential of cluster fleet-default/one works; registering again at https://hub.example.com at the same time: " +
				"the hub there rejects the stored credential (the cause), which is kept until the new one has worked",
		},
		"Register, nothing stored": {
			action: Register, o: observation{identity: identity},
			level: logrus.InfoLevel, want: "Registering at https://hub.example.com: there is no stored credential",
		},
		"Register, malformed": {
			action: Register, o: observation{facts: Facts{Stored: Malformed}, identity: identity, storedErr: cause},
			level: logrus.InfoLevel, want: "Registering at https://hub.example.com: the stored credential is unusable (the cause)",
		},
		"Register, rejected": {
			action: Register, o: observation{facts: Facts{Stored: Present, StoredEndpoint: hubclient.Rejected}, identity: identity, hubErr: cause},
			level: logrus.InfoLevel, want: "Registering at https://hub.example.com: the hub rejects the stored credential (the cause)",
		},
		"Register, installed again": {
			action: Register, o: observation{facts: Facts{Stored: Present, Uninstalling: true}, identity: identity},
			level: logrus.InfoLevel, want: "Registering at https://hub.example.com: the agent was installed again while it was uninstalling itself",
		},
		"SwitchEndpoint": {
			action: SwitchEndpoint, o: observation{stored: stored, other: other},
			level: logrus.InfoLevel,
			want:  "The stored credential of cluster fleet-default/one works at https://hub.example.com (without a CA, system-store) of ConfigMap fleet-agent-hub: switching to it",
		},
		"Uninstall": {
			action: Uninstall, level: logrus.InfoLevel,
			want: "Uninstalling: the hub has asked the agent to uninstall itself, and the objects of the agent in Namespace ns are being deleted",
		},
		"WaitForHub, unreachable": {
			action: WaitForHub, o: observation{facts: Facts{StoredEndpoint: hubclient.Unreachable}, hubErr: cause},
			level: logrus.WarnLevel, want: "Waiting for the hub, keeping the stored credential: the hub is unreachable: the cause",
		},
		"WaitForHub, obstructed": {
			action: WaitForHub, o: observation{facts: Facts{StoredEndpoint: hubclient.Obstructed}, hubErr: cause},
			level: logrus.WarnLevel,
			want:  "Waiting for the hub, keeping the stored credential: the hub, or a proxy before it, answered with an error, but did not reject the credential: the cause",
		},
		"ReportRejected": {
			action: ReportRejected, o: observation{hubErr: cause}, level: logrus.ErrorLevel,
			want: "Failed to register agent: the hub rejects the stored credential (the cause) and there is no bootstrap Secret to register with; " + remedy("ns"),
		},
		"WaitForBootstrap": {
			action: WaitForBootstrap, level: logrus.ErrorLevel,
			want: "Failed to register agent: there is no stored credential and there is no bootstrap Secret to register with; " + remedy("ns"),
		},
		"ReportRejected, bootstrap malformed": {
			action: ReportRejected, o: observation{facts: Facts{Bootstrap: Malformed}, hubErr: cause, bootstrapErr: errors.New("no token")}, level: logrus.ErrorLevel,
			want: "Failed to register agent: the hub rejects the stored credential (the cause) and Secret ns/fleet-agent-bootstrap is unusable (no token); " + remedy("ns"),
		},
		"WaitForBootstrap, bootstrap malformed": {
			action: WaitForBootstrap, o: observation{facts: Facts{Bootstrap: Malformed}, bootstrapErr: cause}, level: logrus.ErrorLevel,
			want: "Failed to register agent: there is no stored credential and Secret ns/fleet-agent-bootstrap is unusable (the cause); " + remedy("ns"),
		},
		"WaitForBootstrap, malformed": {
			action: WaitForBootstrap, o: observation{facts: Facts{Stored: Malformed}, storedErr: cause}, level: logrus.ErrorLevel,
			want: "Failed to register agent: the stored credential is unusable (the cause) and there is no bootstrap Secret to register with; " + remedy("ns"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, level, text := describe(row.action, row.o, "ns")
			assert.Equal(t, row.level.String(), level.String())
			assert.Equal(t, row.want, text)
		})
	}
	assert.Contains(t, remedy("ns"), "Secret ns/fleet-agent-bootstrap (key values)")
}

func TestDescribeStates(t *testing.T) {
	o := observation{stored: &credential.Stored{}, identity: &register.BootstrapIdentity{}, other: &hubclient.Endpoint{}}
	seen := map[string]Action{}
	for action := WaitForBootstrap; action <= Uninstall; action++ {
		state, _, _ := describe(action, o, "ns")
		assert.NotEmpty(t, state)
		seen[state] = action
	}
	assert.Len(t, seen, int(Uninstall), "KeepEndpoint is described as UseStored, every other action differently")
}
