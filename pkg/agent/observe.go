package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/pkg/agent/credential"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/agent/register"
	"github.com/muster-fleet/muster/pkg/agent/uninstall"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// observation is the result of observe: the facts for the decision, and the objects from which they were taken.
type observation struct {
	facts Facts

	settings        config.Agent   // of ConfigMap fleet-agent
	storedSecret    *corev1.Secret // fleet-agent; nil if absent
	stored          *credential.Stored
	storedErr       error          // the reason if it is Malformed
	modeUnknown     bool           // the Secret does not record with which TLS mode the credential works
	bootstrapSecret *corev1.Secret // fleet-agent-bootstrap; nil if absent
	identity        *register.BootstrapIdentity
	bootstrapErr    error                // the reason if it is Malformed
	endpoints       hubclient.Candidates // beside the stored endpoint

	// mustStop means that the runnables must stop, because their credential must no longer be used: another one is stored, or the agent was
	// installed again while it was uninstalling itself. The hub was not asked then.
	mustStop bool
	// newerToken replaces the token in the Secret, which is an earlier one of the credential in use; empty otherwise. The hub was not asked then.
	newerToken string

	conn     *hubclient.Connection // with the stored credential; nil if none was made. The caller closes it.
	hubErr   error                 // the hub's answer at the stored endpoint
	other    *hubclient.Endpoint   // the endpoint that the agent tries beside the stored one; nil if there is none
	otherErr error                 // the hub's answer there
}

// observe reads the objects on the member that the decision depends on, and asks the hub whether it accepts the stored credential.
func (l *loop) observe(ctx context.Context, running *runnables) (o observation, err error) {
	// An import writes the bootstrap Secret after the ConfigMap fleet-agent. The agent reads the Secret first, so that the ConfigMap that it reads then
	// is at least as new: without its settings, the agent would register with a clientID that differs from the one of its Cluster.
	if o.bootstrapSecret, err = l.member.Secret(ctx, registration.BootstrapSecret); err != nil {
		return o, err
	}
	if o.settings, _, err = l.member.AgentConfig(ctx); err != nil {
		return o, err
	}
	hubConfigMap, err := l.member.ConfigMap(ctx, registration.AgentHubConfigMap)
	if err != nil {
		return o, err
	}
	if o.storedSecret, err = l.member.Secret(ctx, registration.CredentialSecret); err != nil {
		return o, err
	}
	o.stored, o.facts.Stored, o.storedErr = parse(o.storedSecret, credential.Parse)
	o.identity, o.facts.Bootstrap, o.bootstrapErr = parse(o.bootstrapSecret, register.ParseIdentity)
	o.endpoints = hubclient.Candidates{ConfigMap: hubclient.ParseConfigMap(hubConfigMap), Mode: o.settings.AgentTLSMode}
	if o.facts.Stored == Present {
		o.modeUnknown = o.stored.Mode == ""
		o.stored.Mode = o.stored.WorkingMode(o.settings.AgentTLSMode)
		if o.endpoints.RegisteredWith = o.stored.RegisteredWith; o.endpoints.RegisteredWith == (hubclient.Protection{}) {
			o.endpoints.RegisteredWith = o.stored.Protection()
			// Fleet's agent registered and recorded none: a ConfigMap must not protect the credential less than the stored endpoint does.
		}
	}

	// A bootstrap Secret without a registration key, for example of an upgraded chart, is no reason to replace a credential that works.
	both := o.facts.Stored == Present && o.facts.Bootstrap == Present
	o.facts.MustRegister = both && o.identity.RegistrationKey != "" && o.identity.RegistrationKey != o.stored.RegistrationKey
	if o.facts.Uninstalling = uninstall.Begun(o.storedSecret); o.facts.Uninstalling {
		o.facts.MustRegister = o.facts.MustRegister || o.facts.Bootstrap == Present && uninstall.InstalledAgain(o.storedSecret, o.bootstrapSecret)
		o.mustStop = running != nil && o.facts.MustRegister // the runnables would tell the hub that the agent uninstalls itself
		return o, nil
	}
	if both && !o.facts.MustRegister {
		if o.facts.MustRegister, err = register.HasOtherRequest(ctx, l.member, o.identity, o.settings); err != nil {
			return o, err
		}
		if !o.facts.MustRegister {
			endpoint := o.identity.EndpointIn(o.settings.AgentTLSMode)
			o.endpoints.Bootstrap = &endpoint
		}
	}
	if o.facts.Stored != Present {
		return o, nil
	}
	if running != nil {
		if token, isOlder := running.use.NewerThan(o.stored); isOlder {
			o.newerToken = token
			return o, nil
		}
	}
	if o.mustStop = running != nil && !running.use.Matches(o.stored); o.mustStop {
		return o, nil
	}
	if running != nil {
		o.stored = o.stored.WithToken(running.use.Current().Token) // the stored one may have expired while the renewed one could not be stored
	}

	// Another endpoint that is configured comes first: if the credential works there, the stored endpoint does not matter.
	if o.other = o.endpoints.Preferred(o.stored.Endpoint, o.stored.HubConfigDigest); o.other != nil {
		if o.facts.OtherEndpoint, o.otherErr = l.askOther(ctx, o.stored, *o.other); o.facts.OtherEndpoint == hubclient.Accepted {
			return o, nil
		}
	}
	switch {
	case running == nil:
		o.conn, o.facts.StoredEndpoint, o.hubErr = l.dialer.DialAndVerify(ctx, o.stored.Access)
	case o.facts.Bootstrap == Present:
		// The Secret may have been created because the hub rejects the credential. The runnables notice that only with the next heartbeat.
		o.facts.StoredEndpoint, o.hubErr = l.dialer.Verify(ctx, running.use.Conn)
	default: // the runnables prove that the credential works: they end when the hub rejects it
		o.facts.StoredEndpoint = hubclient.Accepted
	}
	if o.facts.StoredEndpoint != hubclient.Accepted && o.other == nil {
		if o.other = o.endpoints.Fallback(o.stored.Endpoint); o.other != nil {
			o.facts.OtherEndpoint, o.otherErr = l.askOther(ctx, o.stored, *o.other)
		}
	}
	return o, nil
}

func (l *loop) askOther(ctx context.Context, stored *credential.Stored, other hubclient.Endpoint) (hubclient.TokenVerdict, error) {
	if other.Err != nil {
		return hubclient.Unreachable, other.Err
	}
	conn, verdict, err := l.dialer.DialAndVerify(ctx, stored.At(other))
	conn.Close()
	return verdict, err
}

// parse returns the content of the Secret, or the error that makes it Malformed.
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

// Presence is the state of a Secret.
type Presence int

const (
	// Absent means that the Secret does not exist.
	Absent Presence = iota
	// Present means that the Secret is usable.
	Present
	// Malformed means that the Secret exists, but something in it is missing or unreadable.
	Malformed
)

// Facts are the input of Decide.
type Facts struct {
	// Stored is Secret fleet-agent: the credential of an earlier registration.
	Stored Presence
	// Bootstrap is Secret fleet-agent-bootstrap, with which an agent registers.
	Bootstrap Presence
	// MustRegister means that the bootstrap Secret asks for another registration than the one of the stored credential, or that the agent has
	// another request, which may still be granted. It has a meaning only if both are Present, or if the agent is Uninstalling.
	MustRegister bool
	// Uninstalling means that the agent has begun to uninstall itself.
	Uninstalling bool
	// StoredEndpoint is the answer to the stored credential at the stored endpoint; NotAsked if there is no credential, or no need to ask.
	StoredEndpoint hubclient.TokenVerdict
	// OtherEndpoint is the answer to the stored credential at another endpoint that is configured; NotAsked if there is none.
	OtherEndpoint hubclient.TokenVerdict
}

// Action is what the agent does next.
type Action int

const (
	// WaitForBootstrap waits until a person or the hub creates a bootstrap Secret: there is nothing to register with.
	WaitForBootstrap Action = iota
	// Register registers with the bootstrap Secret. The stored credential stays until the new one has worked.
	Register
	// UseStored works with the stored credential and deletes the objects of the registration.
	UseStored
	// UseStoredAndRegister works with the stored credential and registers again at the same time.
	UseStoredAndRegister
	// SwitchEndpoint stores the other endpoint, where the credential works too.
	SwitchEndpoint
	// KeepEndpoint works with the stored credential at the stored endpoint, and tries the other endpoint again later.
	KeepEndpoint
	// WaitForHub keeps everything and asks the hub again later: the credential was not rejected.
	WaitForHub
	// ReportRejected reports that a person must act, keeps everything and asks the hub again later.
	ReportRejected
	// Uninstall removes the agent from its cluster.
	Uninstall
)

// Decide is the agent's one decision. It follows three rules: the agent gives up a stored credential only when the hub itself
// has rejected it; it leaves an endpoint that works only for another one that works; and it registers only with a bootstrap
// Secret.
func Decide(f Facts) Action {
	switch {
	case f.Uninstalling:
		return decideUninstalling(f)
	case f.Stored == Present && f.OtherEndpoint == hubclient.Accepted:
		return SwitchEndpoint
	case f.Stored == Present && f.Bootstrap == Present && (f.MustRegister || f.OtherEndpoint == hubclient.Rejected):
		return decideNewRegistration(f.StoredEndpoint)
	case f.Stored == Present:
		return decideStored(f)
	case f.Bootstrap == Present:
		return Register
	default:
		return WaitForBootstrap
	}
}

// decideUninstalling keeps an agent that was installed again. It does not use the answer of the hub, where the Cluster
// is being deleted.
func decideUninstalling(f Facts) Action {
	if f.Bootstrap == Present && f.MustRegister {
		return Register
	}
	return Uninstall
}

// decideNewRegistration does not wait for a hub that does not answer: it may be the old hub, and the bootstrap Secret may name
// the new one.
func decideNewRegistration(hub hubclient.TokenVerdict) Action {
	if hub == hubclient.Accepted {
		return UseStoredAndRegister
	}
	return Register
}

func decideStored(f Facts) Action {
	switch {
	case f.StoredEndpoint == hubclient.Accepted && f.OtherEndpoint == hubclient.NotAsked:
		return UseStored
	case f.StoredEndpoint == hubclient.Accepted:
		return KeepEndpoint
	case f.StoredEndpoint == hubclient.Rejected && f.Bootstrap == Present:
		return Register
	case f.StoredEndpoint == hubclient.Rejected:
		return ReportRejected
	}
	return WaitForHub
}

// replacesStored reports whether the action, if it succeeds, stores another credential or endpoint.
func (a Action) replacesStored() bool {
	return a == SwitchEndpoint || a == Register || a == UseStoredAndRegister
}

// usesStored reports whether the agent works with the stored credential.
func (a Action) usesStored() bool {
	return a == UseStored || a == UseStoredAndRegister || a == KeepEndpoint
}
