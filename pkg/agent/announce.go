package agent

import (
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/muster-fleet/muster/pkg/registration"
)

// announce logs what was decided and why, once per turn.
func (l *life) announce(action Action, s *situation) {
	l.config.OnState(state(action))
	level, text := announcement(action, s, l.member.namespace)
	if action == ReportRefused && l.refusal.told {
		level = logrus.DebugLevel
	}
	switch level {
	case logrus.DebugLevel:
		l.log.Debug(text)
	case logrus.InfoLevel:
		l.log.Info(text)
	case logrus.WarnLevel:
		l.log.Warn(text)
	default:
		l.log.Error(text)
	}
	if s.Bootstrap == Malformed {
		l.log.Warnf("Secret %s/%s cannot be used: %v", l.member.namespace, registration.BootstrapSecret, s.bootstrapErr)
	}
}

func announcement(action Action, s *situation, namespace string) (logrus.Level, string) {
	switch action {
	case UseStored, StayPut:
		return logrus.InfoLevel, fmt.Sprintf("The stored credential works: this is cluster %s/%s", s.stored.clusterNamespace, s.stored.clusterName)
	case ReplaceStored:
		return logrus.InfoLevel, fmt.Sprintf("The stored credential of cluster %s/%s works; %s, which happens beside it",
			s.stored.clusterNamespace, s.stored.clusterName, whyReplace(s))
	case MoveStored:
		return logrus.InfoLevel, fmt.Sprintf("The stored credential of cluster %s/%s works at %s: going over to it",
			s.stored.clusterNamespace, s.stored.clusterName, s.other)
	case Leave:
		return logrus.InfoLevel, fmt.Sprintf("Leaving: the hub has said farewell, and this agent's objects in Namespace %s are removed", namespace)
	case Register:
		return logrus.InfoLevel, fmt.Sprintf("Registering at %s: %s", s.bootstrap.apiServerURL, whyRegister(s))
	case WaitForHub:
		return logrus.WarnLevel, fmt.Sprintf("Waiting for the hub, keeping the stored credential: %s: %v", whyNoVerdict(s.Hub), s.hubErr)
	case ReportRefused:
		return logrus.ErrorLevel, fmt.Sprintf("Failed to register agent: the hub refuses the stored credential%s (%v) and there is nothing else to register with; %s",
			whoseEnd(s.stored), s.hubErr, remedy(namespace))
	default:
		return logrus.ErrorLevel, fmt.Sprintf("Failed to register agent: %s and there is nothing to register with; %s",
			whyNotStored(s), remedy(namespace))
	}
}

// state is an announcement for those who may not read the log.
func state(action Action) string {
	switch action {
	case UseStored, StayPut:
		return "registered"
	case ReplaceStored:
		return "registered, and registering anew beside it"
	case MoveStored:
		return "registered, and going over to another way to the hub"
	case Leave:
		return "leaving, for the hub has said farewell"
	case Register:
		return "registering: waiting until the hub has granted the request"
	case WaitForHub:
		return "waiting for the hub, keeping the stored credential"
	case ReportRefused:
		return "the hub refuses the stored credential, and there is nothing else to register with; the log says what to do"
	default:
		return "there is nothing to register with; the log says what to do"
	}
}

func whyReplace(s *situation) string {
	if s.There == Refuses && !s.RegisterAnew {
		return fmt.Sprintf("at %s it is refused, so that the agent has to register there", s.other)
	}
	return "the hub asks to register anew"
}

func whyRegister(s *situation) string {
	switch {
	case s.Leaving:
		return "the agent was installed again while it was leaving"
	case s.Stored != Present:
		return whyNotStored(s)
	case s.RegisterAnew:
		return "the hub asks to register anew; the stored credential is kept until the new one has worked"
	case s.There == Refuses:
		return fmt.Sprintf("the hub there refuses the stored credential (%v), which is kept until the new one has worked", s.thereErr)
	default:
		return fmt.Sprintf("the hub refuses the stored credential (%v)", s.hubErr)
	}
}

// whoseEnd tells a credential that ran out while the agent was away from one that was taken back.
func whoseEnd(s *stored) string {
	if s == nil {
		return ""
	}
	t, limited := termOf(s.access.token)
	if !limited {
		return ""
	}
	return ", which was to end at " + stamp(t.expires) + ","
}

func whyNotStored(s *situation) string {
	if s.Stored == Malformed {
		return fmt.Sprintf("the stored credential cannot be used (%v)", s.storedErr)
	}
	return "there is no stored credential"
}

func whyNoVerdict(a Answer) string {
	if a == Unreachable {
		return "it cannot be reached"
	}
	return "it, or a proxy on the way, answered, but did not refuse the credential"
}

// remedy is what a person has to do.
func remedy(namespace string) string {
	return fmt.Sprintf("create a ClusterRegistrationToken on the hub (for a cluster that was registered before, one for it alone: "+
		"muster token create NAME --cluster CLUSTER -o values) and put its values into Secret %s/%s (key %s), or have the hub import this cluster again",
		namespace, registration.BootstrapSecret, registration.BootstrapValues)
}
