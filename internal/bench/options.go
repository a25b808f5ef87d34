package bench

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Options says what to measure, and how much of it.
type Options struct {
	// Hub is the program of the hub, of this project. Required unless the hub is named.
	Hub string
	// Named is a hub that runs already, of whoever made it; nil means one that is started here.
	Named *Named
	// HubArgs are further arguments of Hub, such as those by which several processes share its work.
	HubArgs []string
	// UserAgents are how the User-Agents of the hub's processes begin; none means fleetcontroller, and
	// the name of Hub.
	UserAgents []string
	// Binaries is the folder with etcd, kube-apiserver and kube-controller-manager; empty means that of this repository.
	Binaries string
	// Parts are what is measured; none means all of a whole run.
	Parts []string
	// Log gets the progress. Required.
	Log io.Writer
	Sizes
}

// Named is a hub that runs already, on an API server of its own that may be thrown away afterwards.
type Named struct {
	// Kubeconfig is the file to reach that API server with, as an administrator. Required.
	Kubeconfig string
	// Pids are those of the hub's processes, for CPU and memory. Required.
	Pids []int
	// AuditLog is the file that the API server notes every request in, once, at level Metadata. Required.
	AuditLog string
	// Restart is a shell command that ends the hub, starts it again, and prints the new pids; empty means that the rows of
	// restarts are left out.
	Restart string
}

// Sizes are how much there is to do.
type Sizes struct {
	// Storm is how many agents register at once; 0 means 1000.
	Storm int
	// InFlight is how many of them have sent a request that is not answered; 0 means 200.
	InFlight int
	// Idle is how many register one after the other; 0 means 50.
	Idle int
	// Imports is how many clusters the hub imports at once; 0 means 200.
	Imports int
	// Clusters are the numbers of clusters at which growth is measured, the smallest first; none means 100, 300 and 1000.
	Clusters []int
	// Window is for how long an idle hub is watched; 0 means 10 s.
	Window time.Duration
	// Hour is how long an hour of heartbeats takes; 0 means 5 minutes.
	Hour time.Duration
	// Spread is how long agents take to come back after an outage; 0 means 5 minutes, the longest pause between two tries of
	// this project's agent that checks in every quarter of an hour.
	Spread time.Duration
	// Balance is for how long processes of one hub may divide its work before they are measured; 0 means 15 s.
	Balance time.Duration
	// Replicas are the numbers of processes of a hub that are measured together; none means 1, 2 and 4.
	Replicas []int
}

// Whole are the sizes of a whole run, which has as many clusters in the end as given.
func Whole(clusters int) Sizes {
	const some, more = 100, 300
	s := Sizes{
		Storm: 1000, InFlight: 200, Idle: 50, Imports: 200, Replicas: []int{1, 2, 4},
		Window: 10 * time.Second, Hour: 5 * time.Minute, Spread: 5 * time.Minute, Balance: 15 * time.Second,
	}
	s.Clusters = slices.Compact([]int{min(some, clusters), min(more, clusters), clusters})
	return s
}

// Small are the sizes of the run that CI makes: enough to count.
func Small() Sizes {
	return Sizes{Storm: 100, InFlight: 50, Idle: 5, Imports: 20, Clusters: []int{100}, Window: 3 * time.Second}
}

func (o Options) withDefaults() Options {
	o.Sizes = o.Sizes.withDefaults()
	if len(o.UserAgents) == 0 {
		o.UserAgents = []string{"fleetcontroller"}
		if name := filepath.Base(o.Hub); o.Hub != "" && name != o.UserAgents[0] { // client-go takes the name of the program
			o.UserAgents = append(o.UserAgents, name)
		}
	}
	if len(o.Parts) == 0 {
		o.Parts = WholeParts()
	}
	return o
}

func (s Sizes) withDefaults() Sizes {
	whole := Whole(1000)
	s.Storm, s.InFlight, s.Idle, s.Imports = cmp.Or(s.Storm, whole.Storm), cmp.Or(s.InFlight, whole.InFlight), cmp.Or(s.Idle, whole.Idle), cmp.Or(s.Imports, whole.Imports)
	s.Window, s.Hour, s.Spread = cmp.Or(s.Window, whole.Window), cmp.Or(s.Hour, whole.Hour), cmp.Or(s.Spread, whole.Spread)
	s.Balance = cmp.Or(s.Balance, whole.Balance)
	if len(s.Clusters) == 0 {
		s.Clusters = whole.Clusters
	}
	if len(s.Replicas) == 0 {
		s.Replicas = whole.Replicas
	}
	return s
}

// validate says what is missing or makes no sense.
func (o Options) validate() error {
	switch {
	case o.Named == nil && o.Hub == "":
		return fmt.Errorf("which hub? name a program to start, or one that runs by kubeconfig, pid and audit log")
	case o.Named != nil && (o.Named.Kubeconfig == "" || len(o.Named.Pids) == 0 || o.Named.AuditLog == ""):
		return fmt.Errorf("a hub that runs is named by all three of kubeconfig, pid and audit log")
	case !slices.IsSorted(o.Clusters):
		return fmt.Errorf("the numbers of clusters %v must grow", o.Clusters)
	case o.Clusters[0] < o.Idle:
		return fmt.Errorf("there must be at least %d clusters, which register one by one", o.Idle)
	}
	for _, name := range o.Parts {
		if _, found := partOf(name); !found {
			return fmt.Errorf("there is no part %q; the parts are %v", name, allParts())
		}
	}
	return nil
}

// Settings are the sizes in words; runs with the same are compared.
func (o Options) Settings() string {
	o = o.withDefaults()
	return fmt.Sprintf("parts %v: %d at once, %d in flight; %d one by one; %d imports; growth to %v; idle %s; hour %s; spread %s; processes %v",
		o.Parts, o.Storm, o.InFlight, o.Idle, o.Imports, o.Clusters, o.Window, o.Hour, o.Spread, o.Replicas)
}

const (
	systemNamespace = registration.DefaultSystemNamespace
	workspace       = "fleet-default"
)

// titled is the title of a figure that was taken at some size.
func titled(format string, arguments ...any) string { return fmt.Sprintf(format, arguments...) }

// The kinds of figures, each with what makes it comparable.

func counted(row, title string, value float64) figures.Figure {
	return figures.Figure{Row: row, Title: title, Value: value, Kind: figures.Count}
}

func timed(row, title string, value float64, unit string) figures.Figure {
	return figures.Figure{Row: row, Title: title, Value: value, Unit: unit, Kind: figures.Time}
}

func rated(row, title string, value float64) figures.Figure {
	return figures.Figure{Row: row, Title: title, Value: value, Unit: "1/s", Kind: figures.Time, MoreIsBetter: true}
}
