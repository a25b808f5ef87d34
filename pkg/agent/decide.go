package agent

import "github.com/muster-fleet/muster/pkg/agent/hubclient"

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
	// Hub is the hub's answer to the stored credential at the stored endpoint; NotAsked if there is no credential, or no need
	// to ask.
	Hub hubclient.TokenVerdict
	// Other is the hub's answer to the stored credential at another endpoint that is configured; NotAsked if there is none.
	Other hubclient.TokenVerdict
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
	case f.Stored == Present && f.Other == hubclient.Accepted:
		return SwitchEndpoint
	case f.Stored == Present && f.Bootstrap == Present && (f.MustRegister || f.Other == hubclient.Rejected):
		return decideNewRegistration(f.Hub)
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
	case f.Hub == hubclient.Accepted && f.Other == hubclient.NotAsked:
		return UseStored
	case f.Hub == hubclient.Accepted:
		return KeepEndpoint
	case f.Hub == hubclient.Rejected && f.Bootstrap == Present:
		return Register
	case f.Hub == hubclient.Rejected:
		return ReportRejected
	}
	return WaitForHub
}

// usesStored reports whether the agent works with the stored credential.
func (a Action) usesStored() bool {
	return a == UseStored || a == UseStoredAndRegister || a == KeepEndpoint
}
