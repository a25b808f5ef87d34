// Package release keeps Helm releases on a member cluster: it installs, upgrades and removes them, and says what of them
// differs from what was deployed. The agent uses it at work, the hub when it says farewell to a member.
//
// It needs no home directory, no cache and no plugins: charts come as resources in memory, history is kept in Secrets beside
// the release, as Helm does it, so that `helm list` shows what an agent deployed.
//
// The map:
//
//	client.go      the way to the member; operation is one Helm action with its own context
//	deploy.go      install or upgrade, from whatever state the last attempt left behind
//	uninstall.go   remove a release, or only its history
//	list.go        what agents deployed, from the labels of the history
//	chart.go       resources to charts: real ones, and manifests that are not templates
//	place.go       where a release goes and what it is called
//	cluster.go     Helm's client of the cluster, which deletes nothing that another release took over
//	drift.go       what differs on the cluster
package release
