// Package bench measures the hub from outside: it sends requests to the hub's API server, and reads the audit log and the kernel's process
// accounting. It does not depend on the implementation of the hub.
package bench

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	systemNamespace = registration.DefaultSystemNamespace
	workspace       = "fleet-default"
)

// Options are the parts to measure and their sizes.
type Options struct {
	// Hub is the fleetcontroller program to start.
	Hub string
	// Agent is the fleetagent program of part deployments.
	Agent string
	// Binaries is the directory with etcd, kube-apiserver and kube-controller-manager; empty means the one that this repository builds.
	Binaries string
	// Parts are the names of the parts to measure.
	Parts []string
	// Log receives the progress.
	Log io.Writer
	Sizes
}

// Sizes are the amounts of work.
type Sizes struct {
	// Storm is the number of agents that register at the same time.
	Storm int
	// InFlight is the number of concurrent requests of agents.
	InFlight int
	// Idle is the number of agents that register one after the other.
	Idle int
	// Imports is the number of clusters that are imported at the same time.
	Imports int
	// Clusters are the numbers of clusters at which growth is measured, in ascending order.
	Clusters []int
	// Window is how long an idle hub is observed.
	Window time.Duration
	// Hour is the time into which an hour of heartbeats is compressed.
	Hour time.Duration
	// Spread is the time over which agents come back after an outage.
	Spread time.Duration
	// Takeovers is how often a leader is killed, and how often it is stopped.
	Takeovers int
	// Bundles is the number of Bundles that are deployed to one member.
	Bundles int
	// Hostile is the number of hostile members of a tenant. The hub makes calls to 128 members of one workspace at the same time.
	Hostile int
	// Rounds is how often imports are measured alone and beside a tenant.
	Rounds int
	// Minute is the time in which all agents of a fleet send one heartbeat each.
	Minute time.Duration
	// Flood is the number of requests that are sent with a stolen token.
	Flood int
}

// Whole returns the sizes of a whole run that ends with the given number of clusters. Agents come back over the longest pause between two attempts
// of an agent with the default check-in interval.
func Whole(clusters int) Sizes {
	return Sizes{
		Storm: 1000, InFlight: 200, Idle: 50, Imports: 200, Clusters: slices.Compact([]int{min(100, clusters), min(300, clusters), clusters}),
		Window: 10 * time.Second, Hour: 5 * time.Minute, Spread: 5 * time.Minute, Takeovers: 3, Bundles: 200, Flood: 10_000,
		Hostile: 128, Rounds: 3, Minute: time.Minute,
	}
}

// Small returns the sizes of the run in CI, which are sufficient for counting requests.
func Small() Sizes {
	return Sizes{
		Storm: 100, InFlight: 50, Idle: 5, Imports: 20, Clusters: []int{100},
		Window: 3 * time.Second, Hour: 5 * time.Minute, Spread: 5 * time.Minute, Takeovers: 1, Bundles: 20, Flood: 1000,
		Hostile: 24, Rounds: 3, Minute: time.Minute,
	}
}

func (o Options) validate() error {
	switch {
	case o.Hub == "":
		return fmt.Errorf("no hub: pass a program to start")
	case len(o.Clusters) == 0 || !slices.IsSorted(o.Clusters):
		return fmt.Errorf("the numbers of clusters %v are not in ascending order", o.Clusters)
	case o.Clusters[0] < o.Idle:
		return fmt.Errorf("there must be at least %d clusters, the number that registers one after the other", o.Idle)
	}
	for _, name := range o.Parts {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			var names []string
			for _, p := range parts {
				names = append(names, p.name)
			}
			return fmt.Errorf("there is no part %q; the parts are %v", name, names)
		}
	}
	return nil
}

// hubRequests matches the requests of the hub in the audit log.
func (o Options) hubRequests() func(audit.Request) bool {
	return audit.ByUserAgents("fleetcontroller", filepath.Base(o.Hub)) // client-go uses the name of the program
}

// Settings describes the sizes. Only runs with the same description are compared.
func (o Options) Settings() string {
	return fmt.Sprintf("%d at once, %d in flight; %d one by one; %d imports; growth to %v; idle %s; hour %s; spread %s",
		o.Storm, o.InFlight, o.Idle, o.Imports, o.Clusters, o.Window, o.Hour, o.Spread)
}

// part is one group of measurements, on control planes of its own.
type part struct {
	name    string
	measure func(context.Context, Options) ([]figures.Figure, error)
	// whole is true if the part belongs to a whole run.
	whole bool
}

var parts = []part{
	{name: "registrations", measure: registrations, whole: true},
	{name: "join", measure: join, whole: true},
	{name: "throttled", measure: throttled, whole: true},
	{name: "clusternet", measure: clusternet, whole: true},
	{name: "imports", measure: imports, whole: true},
	{name: "silence", measure: silence, whole: true},
	{name: "tenant", measure: tenant, whole: true},
	{name: "deployments", measure: deployments, whole: true},
	{name: "growth", measure: growth, whole: true},
	{name: "takeover", measure: takeover, whole: true},
	{name: "flood", measure: flood},
	{name: "small", measure: small},
	{name: "day", measure: day},
	{name: "fleet-lease", measure: fleetOf(true)},
	{name: "fleet-status", measure: fleetOf(false)},
}

// WholeParts are the names of the parts of a whole run.
func WholeParts() (names []string) {
	for _, p := range parts {
		if p.whole {
			names = append(names, p.name)
		}
	}
	return names
}

// Run measures the requested parts. If a part fails, it returns the error together with the figures measured so far.
func Run(ctx context.Context, o Options) (all []figures.Figure, err error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Binaries == "" {
		if o.Binaries, err = controlplane.Binaries(ctx, o.Log); err != nil {
			return nil, err
		}
	}
	for _, name := range o.Parts {
		p := parts[slices.IndexFunc(parts, func(p part) bool { return p.name == name })]
		measured, err := p.measure(ctx, o)
		all = append(all, measured...)
		if err != nil {
			return all, fmt.Errorf("measuring %s: %w", p.name, err)
		}
	}
	return all, nil
}
