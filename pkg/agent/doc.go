// Package agent is the agent's life on a member cluster: it registers with the hub, keeps the credential it gets, reports
// that it is alive, and comes back from whatever happens to it or to the hub.
//
// The map:
//
//	run.go         Run: the lease, the watch, the life; everything stops when the context ends
//	life.go        the loop: look at what is there, decide, carry it out
//	decide.go      what to do, as one switch without I/O
//	answer.go      what an answer of the hub says about the credential
//	register.go    one attempt to register, step by step
//	ways.go        where the hub should be, from all that say so; move.go goes there
//	report.go      what a heartbeat says; stock.go and skew.go find it out
//	leave.go       the agent's end: mark, owner (belongings.go), one deletion
//	denied.go      a registration the hub refuses: told once, looked at rarely, and at once when something changes
//	vouch.go       the proof that a new request is of the agent that holds the old credential
//	refusal.go     how a lost identity is told
//	session.go     what runs while registered, as a list of parts
//	renew.go       the part that renews the credential (term.go knows when, tokens.go swaps it, bearer.go sends it)
//	trust.go       which CAs the hub's certificate may come from
//	timing.go      every duration and every backoff
package agent
