package agent

// Presence says what was found under the name of a Secret.
type Presence int

const (
	// Absent means there is no such Secret.
	Absent Presence = iota
	// Present means the Secret can be used.
	Present
	// Malformed means the Secret is there, but something in it is missing or cannot be read.
	Malformed
)

// Facts is all that Decide looks at.
type Facts struct {
	// Stored is the credential of an earlier registration.
	Stored Presence
	// Bootstrap is the Secret with which an agent registers.
	Bootstrap Presence
	// RegisterAnew says that the bootstrap Secret asks for another registration than the one the stored credential came
	// from. It means nothing unless both are Present, or the agent is Leaving.
	RegisterAnew bool
	// Leaving says that the agent has begun to remove itself.
	Leaving bool
	// Hub is what the hub answered to the stored credential on the way that is stored with it; NotAsked when there is none
	// to ask with, or no need to ask.
	Hub Answer
	// There is what the hub answered to the stored credential on another way that the agent was told of; NotAsked when it
	// was told of none.
	There Answer
}

// Action is what the agent does next.
type Action int

const (
	// WaitForBootstrap waits for a person or the hub to bring a bootstrap Secret: there is nothing to register with.
	WaitForBootstrap Action = iota
	// Register registers with the bootstrap Secret, keeping what is stored until the new credential has worked.
	Register
	// UseStored works with the stored credential and then removes what is left of the registration.
	UseStored
	// ReplaceStored works with the stored credential and registers anew beside it.
	ReplaceStored
	// MoveStored stores the other way with the credential, which works there, and goes on there.
	MoveStored
	// StayPut works with the stored credential where it works, and tries the other way again later.
	StayPut
	// WaitForHub keeps everything and asks again later: nobody refused the credential.
	WaitForHub
	// ReportRefused says that a person has to act, keeps everything and asks again later.
	ReportRefused
	// Leave removes the agent from its cluster.
	Leave
)

// Decide is the agent's one switch. Three rules are behind all of it: a stored credential is given up only when the hub
// itself refused it, the way it works on only for one on which it works too, and a new registration starts only when there
// is a bootstrap Secret to start it with.
func Decide(f Facts) Action {
	switch {
	case f.Leaving:
		return decideLeaving(f)
	case f.Stored == Present && f.There == Accepts:
		return MoveStored
	case f.Stored == Present && f.Bootstrap == Present && (f.RegisterAnew || f.There == Refuses):
		return decideAnew(f.Hub)
	case f.Stored == Present:
		return decideStored(f)
	case f.Bootstrap == Present:
		return Register
	default:
		return WaitForBootstrap
	}
}

// decideLeaving: who installed the agent anew wants it to stay. The hub it leaves has forgotten it, and is not asked.
func decideLeaving(f Facts) Action {
	if f.Bootstrap == Present && f.RegisterAnew {
		return Register
	}
	return Leave
}

// decideAnew: the hub that does not answer may be the old one, and the bootstrap Secret name the new one; so registering
// does not wait for the stored credential to be heard.
func decideAnew(hub Answer) Action {
	if hub == Accepts {
		return ReplaceStored
	}
	return Register
}

func decideStored(f Facts) Action {
	switch {
	case f.Hub == Accepts && f.There == NotAsked:
		return UseStored
	case f.Hub == Accepts:
		return StayPut
	case f.Hub == Refuses && f.Bootstrap == Present:
		return Register
	case f.Hub == Refuses:
		return ReportRefused
	}
	return WaitForHub
}

func (p Presence) String() string {
	return [...]string{"absent", "present", "malformed"}[p]
}

func (a Action) String() string {
	return [...]string{
		"WaitForBootstrap", "Register", "UseStored", "ReplaceStored", "MoveStored", "StayPut", "WaitForHub", "ReportRefused", "Leave",
	}[a]
}

// works says that the stored credential is in use with this action.
func (a Action) works() bool { return a == UseStored || a == ReplaceStored || a == StayPut }
