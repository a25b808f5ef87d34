package deploy

import "strings"

// agentBundles is how the names of the Bundles begin that agents run by.
const agentBundles = "fleet-agent"

// facts is all that decide looks at.
type facts struct {
	// Name is that of the BundleDeployment.
	Name string
	// Wanted says that the BundleDeployment exists and is not being deleted.
	Wanted bool
	// Elsewhere says that it is of an agent in another namespace: after a move two agents see the same BundleDeployment for a
	// while, and only the one it is meant for may act on it.
	Elsewhere bool
	// Empty says that the hub has not said yet what to deploy.
	Empty bool
	// Paused says that nothing is to change now.
	Paused bool
	// Current says that the release on the cluster is what is to be deployed.
	Current bool
	// Unswept says that beside that release something is left of attempts that came to nothing.
	Unswept bool
	// WaitsFor is what has to be there first; "" when nothing is missing.
	WaitsFor string
	// Drifted says that the cluster differs from what was deployed, Correct that this is to be undone.
	Drifted, Correct bool
	// Held says that it is too early to try the same again.
	Held bool
}

type action int

const (
	// observe looks at what is deployed.
	observe action = iota
	// deploy installs or upgrades.
	deploy
	// correct deploys the same again, to undo what others changed.
	correct
	// sweep removes what attempts that came to nothing have left beside the release.
	sweep
	// await does nothing until something else is there.
	await
	// hold leaves everything as it is, because it is paused or there is nothing to deploy yet.
	hold
	// remove uninstalls.
	remove
	// forget removes the history only.
	forget
	// ignore does nothing and says nothing: another agent does.
	ignore
)

// decide is the one switch. An agent never uninstalls an agent: it would be itself, or one that works beside it.
func decide(f facts) action {
	switch {
	case !f.Wanted:
		return decideGone(f)
	case f.Elsewhere:
		return ignore
	case f.Empty || f.Paused:
		return hold
	case f.Current:
		return decideCurrent(f)
	case f.WaitsFor != "":
		return await
	case f.Held:
		return observe
	}
	return deploy
}

// decideCurrent is about a release that is what is wanted.
func decideCurrent(f facts) action {
	switch {
	case f.Held:
		return observe
	case f.Drifted && (f.Correct || isAgent(f.Name)): // first: what cannot be swept up must not keep drift from being corrected
		return correct
	case f.Unswept:
		return sweep
	}
	return observe
}

func decideGone(f facts) action {
	if isAgent(f.Name) {
		return forget
	}
	return remove
}

func isAgent(name string) bool {
	return name == agentBundles || strings.HasPrefix(name, agentBundles+"-")
}

func (a action) String() string {
	return [...]string{"observe", "deploy", "correct", "sweep", "await", "hold", "remove", "forget", "ignore"}[a]
}
