package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Reasons of the events on the agent's Deployment. A hub rejects credentials and refuses requests; only the value CredentialRefused has the other word.
const (
	reasonRejected = "CredentialRefused"  // the hub rejects the stored credential, and there is no bootstrap Secret
	reasonAccepted = "CredentialAccepted" // after CredentialRefused: a credential works again
)

// announce reports a decision: to OnState, in the log, by events, and with the heartbeats. While the agent works with its credential, a decision to
// go on is not logged.
func (l *loop) announce(ctx context.Context, action Action, o observation, running bool) {
	state, level, text := describe(action, o, l.member.Namespace)
	if running && action == WaitForBootstrap {
		state = "registered, but the stored credential is missing or unusable, and there is nothing to register with; the log says what to do"
		text += ". Until then the agent goes on with the credential in its memory, and does not renew it"
	}
	l.config.OnState(state)
	l.notePendingEndpoint(action, o)
	if action == ReportRejected && l.rejectionReported {
		level = logrus.DebugLevel
	}
	if !running || action == Register || action == UseStoredAndRegister || action == WaitForBootstrap {
		l.log.WithFields(logrus.Fields{}).Log(level, text) // only an Entry has the method Log
	}
	if o.facts.Bootstrap == Malformed && action != WaitForBootstrap && action != ReportRejected { // their text contains it
		l.log.Warnf("Secret %s/%s is ignored: %v", l.member.Namespace, registration.BootstrapSecret, o.bootstrapErr)
	}
	switch {
	case action == ReportRejected && !l.rejectionReported:
		l.rejectionReported = true
		l.event(ctx, corev1.EventTypeWarning, reasonRejected, text)
	case action.usesStored() && l.rejectionReported:
		l.rejectionReported = false
		l.event(ctx, corev1.EventTypeNormal, reasonAccepted, text)
	}
}

// event records an event about the agent. If that fails, it is only logged for debugging: the log has the same information.
func (l *loop) event(ctx context.Context, kind, reason, message string) {
	if err := l.member.RecordEvent(ctx, l.config.Clock.Now(), kind, reason, message); err != nil && ctx.Err() == nil {
		l.log.Debugf("Cannot write the event %s: %v", reason, err)
	}
}

// notePendingEndpoint reports with the heartbeats why the agent cannot switch to another endpoint.
func (l *loop) notePendingEndpoint(action Action, o observation) {
	if o.other == nil || action == SwitchEndpoint {
		l.heartbeat.Notes.SetPendingEndpoint("", "")
		return
	}
	cause := fmt.Sprintf("%s: %v", noVerdict(o.facts.OtherEndpoint), o.otherErr)
	switch {
	case o.facts.OtherEndpoint == hubclient.Rejected:
		cause = fmt.Sprintf("the hub there rejects the stored credential: %v", o.otherErr)
	case o.other.Err != nil:
		cause = o.other.Err.Error()
	}
	if l.heartbeat.Notes.SetPendingEndpoint(fmt.Sprint(o.other, o.facts.OtherEndpoint), member.Brief(fmt.Sprintf("%s: %s", o.other, cause))) {
		l.log.Warnf("Cannot switch to %s: %s. The agent keeps its endpoint %s and tries again", o.other, cause, o.stored.Server)
	}
}

// describe returns a short description for OnState, without names, addresses and errors, and the line for the log.
func describe(action Action, o observation, namespace string) (state string, level logrus.Level, line string) {
	switch action {
	case UseStored, KeepEndpoint:
		return "registered", logrus.InfoLevel,
			fmt.Sprintf("The stored credential works: this is cluster %s/%s", o.stored.Workspace, o.stored.ClusterName)
	case UseStoredAndRegister:
		return "registered, and registering again at the same time", logrus.InfoLevel,
			fmt.Sprintf("The stored credential of cluster %s/%s works; registering again at %s at the same time: %s",
				o.stored.Workspace, o.stored.ClusterName, o.identity.Server, whyRegister(o))
	case SwitchEndpoint:
		return "registered, and switching to another endpoint of the hub", logrus.InfoLevel,
			fmt.Sprintf("The stored credential of cluster %s/%s works at %s: switching to it", o.stored.Workspace, o.stored.ClusterName, o.other)
	case Uninstall:
		return "uninstalling: the hub has asked the agent to uninstall itself", logrus.InfoLevel,
			fmt.Sprintf("Uninstalling: the hub has asked the agent to uninstall itself, and the objects of the agent in Namespace %s are being deleted", namespace)
	case Register:
		return "registering: waiting until the hub has granted the request", logrus.InfoLevel,
			fmt.Sprintf("Registering at %s: %s", o.identity.Server, whyRegister(o))
	case WaitForHub:
		return "waiting for the hub, keeping the stored credential", logrus.WarnLevel,
			fmt.Sprintf("Waiting for the hub, keeping the stored credential: %s: %v", noVerdict(o.facts.StoredEndpoint), o.hubErr)
	case ReportRejected:
		state, why := whyNotRegister(o, namespace)
		return "the hub rejects the stored credential, and " + state + "; the log says what to do", logrus.ErrorLevel,
			fmt.Sprintf("Failed to register agent: the hub rejects the stored credential%s (%v) and %s; %s", expiry(o.stored), o.hubErr, why, remedy(namespace))
	default:
		state, why := whyNotRegister(o, namespace)
		return state + "; the log says what to do", logrus.ErrorLevel,
			fmt.Sprintf("Failed to register agent: %s and %s; %s", whyNotStored(o), why, remedy(namespace))
	}
}

// whyNotRegister returns the reason why the agent cannot register: for OnState, and for the log.
func whyNotRegister(o observation, namespace string) (state, why string) {
	if o.facts.Bootstrap == Malformed {
		return "the bootstrap Secret is unusable", fmt.Sprintf("Secret %s/%s is unusable (%v)", namespace, registration.BootstrapSecret, o.bootstrapErr)
	}
	return "there is no bootstrap Secret to register with", "there is no bootstrap Secret to register with"
}

func whyRegister(o observation) string {
	switch {
	case o.facts.Uninstalling:
		return "the agent was installed again while it was uninstalling itself"
	case o.facts.Stored != Present:
		return whyNotStored(o)
	case o.facts.MustRegister:
		return "the bootstrap Secret asks for a new registration, or an earlier request may still be granted; the stored credential is kept until the new one has worked"
	case o.facts.OtherEndpoint == hubclient.Rejected:
		return fmt.Sprintf("the hub there rejects the stored credential (%v), which is kept until the new one has worked", o.otherErr)
	default:
		return fmt.Sprintf("the hub rejects the stored credential (%v)", o.hubErr)
	}
}

// expiry returns the end of the token's lifetime for the message, from which the reader sees whether the credential expired or was revoked.
func expiry(stored *credential.Stored) string {
	if stored == nil {
		return ""
	}
	expires, known := credential.Expiry(stored.Token)
	if !known {
		return ""
	}
	return ", whose lifetime ends at " + expires.UTC().Format(time.RFC3339) + ","
}

func whyNotStored(o observation) string {
	if o.facts.Stored == Malformed {
		return fmt.Sprintf("the stored credential is unusable (%v)", o.storedErr)
	}
	return "there is no stored credential"
}

func noVerdict(v hubclient.TokenVerdict) string {
	if v == hubclient.Unreachable {
		return "the hub is unreachable"
	}
	return "the hub, or a proxy before it, answered with an error, but did not reject the credential"
}

// remedy returns an instruction for a person.
func remedy(namespace string) string {
	return fmt.Sprintf("create a ClusterRegistrationToken on the hub (for a cluster that was registered before, one for it alone: "+
		"muster token create NAME --cluster CLUSTER -o values) and put its values into Secret %s/%s (key %s), or have the hub import this cluster again",
		namespace, registration.BootstrapSecret, registration.ValuesKey)
}
