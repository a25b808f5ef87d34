package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/member"
	"github.com/muster-fleet/muster/pkg/agent/register"
	"github.com/muster-fleet/muster/pkg/agent/uninstall"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// observation is what one iteration of the loop acts on.
type observation struct {
	memberState
	hubState
}

func (o observation) facts() Facts {
	return Facts{
		Stored: o.storedPresence, Bootstrap: o.bootstrapPresence, NewRegistration: o.newRegistration, Leaving: o.leaving,
		Hub: o.hub, Other: o.otherAnswer,
	}
}

// memberState is what the objects on the member say.
type memberState struct {
	settings config.Agent // of ConfigMap fleet-agent

	storedSecret   *corev1.Secret // fleet-agent; nil if absent
	stored         *credential.Stored
	storedPresence Presence
	storedErr      error // why it is Malformed
	modeUnknown    bool  // the Secret does not record with which TLS mode the credential works

	bootstrapSecret   *corev1.Secret // fleet-agent-bootstrap; nil if absent
	identity          *register.ImportIdentity
	bootstrapPresence Presence
	bootstrapErr      error // why it is Malformed

	leaving         bool // the agent has begun to uninstall itself
	newRegistration bool // see Facts
	endpoints       hubclient.Candidates
}

// readMember reads all objects on the member that the decision depends on.
func readMember(ctx context.Context, m *member.Member) (s memberState, err error) {
	if s.settings, err = m.AgentConfig(ctx); err != nil {
		return s, err
	}
	hubConfigMap, err := m.ConfigMap(ctx, registration.AgentHubConfigMap)
	if err != nil {
		return s, err
	}
	if s.storedSecret, err = m.Secret(ctx, registration.CredentialSecret); err != nil {
		return s, err
	}
	if s.bootstrapSecret, err = m.Secret(ctx, registration.BootstrapSecret); err != nil {
		return s, err
	}
	s.stored, s.storedPresence, s.storedErr = parse(s.storedSecret, credential.Parse)
	s.identity, s.bootstrapPresence, s.bootstrapErr = parse(s.bootstrapSecret, register.ParseIdentity)
	s.endpoints = hubclient.Candidates{ConfigMap: hubclient.ParseConfigMap(hubConfigMap), Mode: s.settings.AgentTLSMode}
	if s.storedPresence == Present {
		s.modeUnknown = s.stored.Mode == ""
		s.stored.Mode = s.stored.WorkingMode(s.settings.AgentTLSMode)
	}

	// Only a hub that says which registration it wants can want another one. A bootstrap Secret that does not say, of an upgraded
	// chart for example, is no reason to give up a credential that works.
	both := s.storedPresence == Present && s.bootstrapPresence == Present
	otherRegistration := both && s.identity.Registration != "" && s.identity.Registration != s.stored.Registration
	if s.leaving = uninstall.Marked(s.storedSecret); s.leaving {
		s.newRegistration = s.bootstrapPresence == Present && (uninstall.InstalledAgain(s.storedSecret, s.bootstrapSecret) || otherRegistration)
		return s, nil
	}
	if both {
		s.newRegistration = otherRegistration
		if !otherRegistration {
			if s.newRegistration, err = register.HasOtherRequest(ctx, m, s.identity, s.settings); err != nil {
				return s, err
			}
		}
		if !s.newRegistration {
			endpoint := s.identity.EndpointIn(s.settings.AgentTLSMode)
			s.endpoints.Bootstrap = &endpoint
		}
	}
	return s, nil
}

// parse returns what the Secret contains, and the error that makes it Malformed.
func parse[T any](secret *corev1.Secret, parse func(*corev1.Secret) (*T, error)) (*T, Presence, error) {
	if secret == nil {
		return nil, Absent, nil
	}
	parsed, err := parse(secret)
	if err != nil {
		return nil, Malformed, err
	}
	return parsed, Present, nil
}

// hubState is what the hub answers to the stored credential.
type hubState struct {
	hub    hubclient.Answer // at the stored endpoint
	hubErr error
	conn   *hubclient.Connection // to the stored endpoint; nil if none was made. The caller closes it.

	other       *hubclient.Endpoint // that the agent tries beside the stored one; nil if there is none
	otherAnswer hubclient.Answer
	otherErr    error
}

// askHub uses the stored credential, first at another endpoint if one is configured. Runnables that work with the credential
// prove that it works: they end when the hub rejects it. Only if there is a bootstrap Secret the hub is asked once more, since
// the Secret may have been created because the hub no longer knows the credential, and the runnables may notice that only with
// the next heartbeat.
func (l *loop) askHub(ctx context.Context, s memberState, running *runnables) (h hubState) {
	if s.storedPresence != Present || s.leaving {
		return h
	}
	if h.other = s.endpoints.Preferred(s.stored.Endpoint, s.stored.Seen); h.other != nil {
		if h.otherAnswer, h.otherErr = l.askOther(ctx, s.stored, *h.other); h.otherAnswer == hubclient.Accepted {
			return h
		}
	}
	switch {
	case running == nil:
		h.conn, h.hub, h.hubErr = l.dialer.DialAndVerify(ctx, s.stored.Access)
	case s.bootstrapPresence == Present:
		h.hub, h.hubErr = l.dialer.Verify(ctx, running.use.Conn)
	default:
		h.hub = hubclient.Accepted
	}
	if h.hub != hubclient.Accepted && h.other == nil {
		if h.other = s.endpoints.Fallback(s.stored.Endpoint); h.other != nil {
			h.otherAnswer, h.otherErr = l.askOther(ctx, s.stored, *h.other)
		}
	}
	return h
}

func (l *loop) askOther(ctx context.Context, stored *credential.Stored, other hubclient.Endpoint) (hubclient.Answer, error) {
	if other.Err != nil {
		return hubclient.Unreachable, other.Err
	}
	conn, answer, err := l.dialer.DialAndVerify(ctx, stored.At(other))
	conn.Close()
	return answer, err
}
