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
	// from. It means nothing unless both are Present.
	RegisterAnew bool
	// HubMoved says that the bootstrap Secret names another URL or CA of the hub than the stored credential. Like
	// RegisterAnew it needs both to be Present.
	HubMoved bool
	// Hub is what the hub answered to the stored credential; NotAsked when there is none to ask with.
	Hub Answer
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
	// WaitForHub keeps everything and asks again later: nobody refused the credential.
	WaitForHub
	// ReportRefused says that a person has to act, keeps everything and asks again later.
	ReportRefused
)

// Decide is the agent's one switch. Two rules are behind all of it: a stored credential is given up only when the hub
// itself refused it, and a new registration starts only when there is a bootstrap Secret to start it with.
func Decide(f Facts) Action {
	switch {
	case f.Stored == Present && f.RegisterAnew && f.Bootstrap == Present:
		return decideAnew(f.Hub)
	case f.Stored == Present:
		return decideStored(f)
	case f.Bootstrap == Present:
		return Register
	default:
		return WaitForBootstrap
	}
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
	switch f.Hub {
	case Accepts:
		return UseStored
	case Refuses:
		if f.Bootstrap == Present {
			return Register
		}
		return ReportRefused
	case Unreachable, Obstructed, NotAsked:
		// A hub that is silent at the old address may have moved; the stored credential is kept while we try.
		if f.Bootstrap == Present && f.HubMoved {
			return Register
		}
	}
	return WaitForHub
}

func (p Presence) String() string {
	return [...]string{"absent", "present", "malformed"}[p]
}

func (a Action) String() string {
	return [...]string{
		"WaitForBootstrap", "Register", "UseStored", "ReplaceStored", "WaitForHub", "ReportRefused",
	}[a]
}
