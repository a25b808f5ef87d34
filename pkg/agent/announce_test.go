package agent

import (
	"errors"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
)

func TestEveryActionIsAnnouncedWithItsReason(t *testing.T) {
	credential := &stored{clusterNamespace: "fleet-default", clusterName: "one"}
	b := &bootstrap{apiServerURL: hubURL}
	cause := errors.New("the cause")
	rows := map[string]struct {
		action Action
		s      situation
		level  logrus.Level
		want   string
	}{
		"use": {UseStored, situation{stored: credential}, logrus.InfoLevel, "The stored credential works: this is cluster fleet-default/one"},
		"replace": {
			ReplaceStored,
			situation{stored: credential},
			logrus.InfoLevel,
			"The stored credential of cluster fleet-default/one works; the hub asks to register anew, which happens beside it",
		},
		"replace, refused elsewhere": {
			ReplaceStored,
			situation{stored: credential, Facts: Facts{There: Refuses}, other: &way{server: hubURL, source: "Secret fleet-agent-bootstrap"}},
			logrus.InfoLevel,
			"The stored credential of cluster fleet-default/one works; at https://hub.example.com (without a CA, system-store) of Secret fleet-agent-bootstrap " +
				"it is refused, so that the agent has to register there, which happens beside it",
		},
		"register, nothing stored": {Register, situation{bootstrap: b}, logrus.InfoLevel, "Registering at https://hub.example.com: there is no stored credential"},
		"register, malformed": {
			Register,
			situation{bootstrap: b, Facts: Facts{Stored: Malformed}, storedErr: cause},
			logrus.InfoLevel,
			"Registering at https://hub.example.com: the stored credential cannot be used (the cause)",
		},
		"register, asked to": {
			Register,
			situation{bootstrap: b, Facts: Facts{Stored: Present, RegisterAnew: true}},
			logrus.InfoLevel,
			"Registering at https://hub.example.com: the hub asks to register anew; the stored credential is kept until the new one has worked",
		},
		"register, refused": {
			Register,
			situation{bootstrap: b, Facts: Facts{Stored: Present, Hub: Refuses}, hubErr: cause},
			logrus.InfoLevel,
			"Registering at https://hub.example.com: the hub refuses the stored credential (the cause)",
		},
		"register, refused elsewhere": {
			Register,
			situation{bootstrap: b, Facts: Facts{Stored: Present, Hub: Unreachable, There: Refuses}, thereErr: cause},
			logrus.InfoLevel,
			"Registering at https://hub.example.com: the hub there refuses the stored credential (the cause), which is kept until the new one has worked",
		},
		"register, back": {
			Register,
			situation{bootstrap: b, Facts: Facts{Stored: Present, Leaving: true}},
			logrus.InfoLevel,
			"Registering at https://hub.example.com: the agent was installed again while it was leaving",
		},
		"stay": {StayPut, situation{stored: credential}, logrus.InfoLevel, "The stored credential works: this is cluster fleet-default/one"},
		"move": {
			MoveStored,
			situation{stored: credential, other: &way{server: hubURL, source: "ConfigMap fleet-agent-hub"}},
			logrus.InfoLevel,
			"The stored credential of cluster fleet-default/one works at https://hub.example.com (without a CA, system-store) of ConfigMap fleet-agent-hub: going over to it",
		},
		"leave": {Leave, situation{}, logrus.InfoLevel, "Leaving: the hub has said farewell, and this agent's objects in Namespace ns are removed"},
		"wait, unreachable": {
			WaitForHub,
			situation{Facts: Facts{Hub: Unreachable}, hubErr: cause},
			logrus.WarnLevel,
			"Waiting for the hub, keeping the stored credential: it cannot be reached: the cause",
		},
		"wait, obstructed": {
			WaitForHub,
			situation{Facts: Facts{Hub: Obstructed}, hubErr: cause},
			logrus.WarnLevel,
			"Waiting for the hub, keeping the stored credential: it, or a proxy on the way, answered, but did not refuse the credential: the cause",
		},
		"refused": {
			ReportRefused,
			situation{hubErr: cause},
			logrus.ErrorLevel,
			"Failed to register agent: the hub refuses the stored credential (the cause) and there is nothing else to register with; " + remedy("ns"),
		},
		"nothing": {
			WaitForBootstrap,
			situation{},
			logrus.ErrorLevel,
			"Failed to register agent: there is no stored credential and there is nothing to register with; " + remedy("ns"),
		},
		"nothing but garbage": {
			WaitForBootstrap,
			situation{Facts: Facts{Stored: Malformed}, storedErr: cause},
			logrus.ErrorLevel,
			"Failed to register agent: the stored credential cannot be used (the cause) and there is nothing to register with; " + remedy("ns"),
		},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			level, text := announcement(row.action, &row.s, "ns")
			assert.Equal(t, row.level.String(), level.String())
			assert.Equal(t, row.want, text)
		})
	}
	assert.Contains(t, remedy("ns"), "Secret ns/fleet-agent-bootstrap (key values)")
}

func TestTheStateOfEveryActionIsToldWithoutNamesAddressesOrErrors(t *testing.T) {
	seen := map[string]Action{}
	for action := WaitForBootstrap; action <= Leave; action++ {
		text := state(action)
		assert.NotEmpty(t, text)
		assert.NotContains(t, text, "%")
		seen[text] = action
	}
	assert.Len(t, seen, int(Leave), "StayPut is told as UseStored, everything else in words of its own")
	assert.Equal(t, state(UseStored), state(StayPut))
}

func TestATurnTellsItsState(t *testing.T) {
	l := testLife(t)
	var told []string
	l.config.OnState = func(state string) { told = append(told, state) }
	_, err := l.turn(t.Context())
	assert.ErrorIs(t, err, errWaiting)
	assert.Equal(t, []string{state(WaitForBootstrap)}, told)
}
