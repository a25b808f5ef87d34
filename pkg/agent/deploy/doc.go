// Package deploy is the agent's work: it makes the Helm releases of its cluster what the BundleDeployments on the hub say,
// and reports what became of them.
//
// What was deployed is known from the releases themselves: the history of each carries the BundleDeployment and the
// deployment ID as labels. So an agent that is killed anywhere, by the Deployment it has just changed for example, goes on
// where it was, and what it wrote to the hub is a report and nothing it relies on.
//
// The map:
//
//	run.go        Run: the watches, the workers, the end
//	decide.go     what to do with a BundleDeployment, as one switch without I/O
//	work.go       carrying it out: one worker at a time for each BundleDeployment
//	shelf.go      which revisions of which releases there are
//	live.go       the objects of the releases as the cluster has them
//	drift.go      what of them differs from what was deployed
//	assess.go     the status, from all of that
//	report.go     writing the status, when it changed
//	depends.go    Bundles that have to be there first
//	farewell.go   removing everything when the hub says so
package deploy
