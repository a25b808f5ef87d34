package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/pkg/crds"
)

// registrations measures registrations on an idle hub, a storm, and the first heartbeats after it. Before and after that it measures the cost of
// the same writes by a plain client without a hub (the floor), on other API servers, because the speed of the machine changes from one hour to
// the next.
func registrations(ctx context.Context, o Options) (all []figures.Figure, err error) {
	before, err := measureFloor(ctx, o)
	if err != nil {
		return nil, err
	}
	e, err := withHub(ctx, o, extraArgs{})
	if err != nil {
		return nil, err
	}
	defer e.close()

	idle, err := sim.NewAgents(ctx, e.API, "idle")
	if err != nil {
		return nil, err
	}
	took, err := idle.Register(ctx, e.Idle, 1)
	if err != nil {
		return nil, err
	}
	e.logf("idle: p50 %s, p99 %s", took.Quantile(.5), took.Quantile(.99))
	all = append(all, figures.Milliseconds("idle/p50", "idle hub: one registration, from the request to the readable credential, p50", took.Quantile(.5)))

	agents, err := sim.NewAgents(ctx, e.API, "storm")
	if err != nil {
		return all, err
	}
	s, err := e.storm(ctx, agents.Register, o.Storm, o.InFlight)
	if err != nil {
		return all, err
	}
	all = append(all, s.figures("storm")...)
	beats, err := e.firstHeartbeats(ctx, agents, s)
	if err != nil {
		return all, err
	}
	all = append(all, beats...)
	e.close() // the hub must not take CPU from the plain client

	after, err := measureFloor(ctx, o)
	if err != nil {
		return all, err
	}
	return append(all, before.mean(after).figures(s)...), nil
}

// join measures agents that act like real agents: they register, send a heartbeat, and deploy the agent's own Bundle.
func join(ctx context.Context, o Options) ([]figures.Figure, error) {
	e, err := withHub(ctx, o, extraArgs{})
	if err != nil {
		return nil, err
	}
	defer e.close()
	first, err := sim.NewAgents(ctx, e.API, "warm-up")
	if err != nil {
		return nil, err
	}
	if _, err := first.Register(ctx, o.Idle, 1); err != nil {
		return nil, err
	}
	return e.join(ctx)
}

func (e *environment) join(ctx context.Context) ([]figures.Figure, error) {
	agents, err := sim.NewAgents(ctx, e.API, "join")
	if err != nil {
		return nil, err
	}
	s, err := e.storm(ctx, agents.Join, e.Storm, e.InFlight)
	if err != nil {
		return nil, err
	}
	return append(s.figures("join"),
		figures.Seconds("join/settled", s.title("until the hub's last request"), s.cost.duration())), nil
}

// throttled measures a hub whose kube-controller-manager sends 20 requests per second, its default. A hub that needs the controller
// manager for each registration cannot be faster than that.
func throttled(ctx context.Context, o Options) ([]figures.Figure, error) {
	e, err := withHub(ctx, o, extraArgs{controllerManager: []string{"--kube-api-qps=20", "--kube-api-burst=30"}})
	if err != nil {
		return nil, err
	}
	defer e.close()
	agents, err := sim.NewAgents(ctx, e.API, "throttled")
	if err != nil {
		return nil, err
	}
	if _, err := agents.Register(ctx, 5, 1); err != nil { // to open the connections
		return nil, err
	}
	s, err := e.storm(ctx, agents.Register, 100, 100)
	if err != nil {
		return nil, err
	}
	return []figures.Figure{
		figures.Rate("throttled/rate", "100 agents at once, kube-controller-manager at 20 requests per second: registrations per second", s.rate),
	}, nil
}

// storm is the registration of many agents at the same time.
type storm struct {
	count int
	rate  float64 // agents per second
	took  figures.Samples
	cost  cost
	peak  int64 // bytes
}

func (e *environment) storm(ctx context.Context, register func(ctx context.Context, count, limit int) (figures.Samples, error), count, limit int) (s storm, err error) {
	s.count = count
	s.cost, err = e.measure(ctx, func(ctx context.Context) (err error) {
		began := time.Now()
		s.took, err = register(ctx, count, limit)
		s.rate = figures.PerSecond(count, time.Since(began))
		return err
	})
	if err != nil {
		return s, err
	}
	used, err := usageOf(e.hub.pid())
	s.peak = used.peakMemory
	e.logf("%d at once: %.1f/s, p99 %s, %s of CPU and %d writes", count, s.rate, s.took.Quantile(.99), s.cost.hubCPU, s.cost.Writes)
	return s, err
}

func (s storm) title(what string) string { return fmt.Sprintf("%d agents at once: %s", s.count, what) }

func (s storm) perAgent(count int) float64 { return float64(count) / float64(s.count) }

func (s storm) figures(part string) []figures.Figure {
	title := s.title
	unit := "registrations per second"
	if part == "join" {
		title = func(what string) string {
			return fmt.Sprintf("%d agents at once register, send a heartbeat and deploy their Bundle: %s", s.count, what)
		}
		unit = "agents per second"
	}
	return []figures.Figure{
		figures.Rate(part+"/rate", title(unit), s.rate),
		figures.Seconds(part+"/p99", title("time of one agent from its first to its last request, p99"), s.took.Quantile(.99)),
		figures.Processor(part+"/cpu", title("CPU of the hub for each"), s.cost.hubCPU, s.count),
		figures.Counted(part+"/writes", title("writes of the hub for each"), s.perAgent(s.cost.Writes)),
		figures.Counted(part+"/reads", title("reads of the hub for each"), s.perAgent(s.cost.Reads)),
		figures.Counted(part+"/failed", title("failed requests of the hub"), float64(s.cost.Failed)).WithNote(s.cost.PerItem(s.count)),
		figures.Bytes(part+"/memory", title("peak memory of the hub"), s.peak),
		figures.Processor(part+"/apiserver-cpu", title("CPU of the API server for each"), s.cost.apiServerCPU, s.count),
	}
}

// firstHeartbeats sends the first heartbeat of each agent of a storm, and measures how the hub then creates their Bundles.
func (e *environment) firstHeartbeats(ctx context.Context, agents *sim.Agents, s storm) ([]figures.Figure, error) {
	c, err := e.measure(ctx, func(ctx context.Context) error {
		_, err := agents.Beat(ctx, sim.Numbers(0, len(agents.Registered)), sim.Beats{Limit: e.InFlight})
		return err
	})
	return s.heartbeatFigures(c), err
}

func (s storm) heartbeatFigures(c cost) []figures.Figure {
	const title = "after the first heartbeat of an agent"
	return []figures.Figure{
		figures.Counted("storm/writes-with-bundle", "writes of the hub for a registration and the agent's Bundle", s.perAgent(s.cost.Writes+c.Kinds["create bundles"])),
		figures.Counted("beat/writes", "writes of the hub "+title+", for its Bundle", s.perAgent(c.Writes)).WithNote(c.PerItem(s.count)),
		figures.Counted("beat/reads", "reads of the hub "+title, s.perAgent(c.Reads)),
		figures.Counted("beat/failed", "failed requests of the hub after the first heartbeats", float64(c.Failed)),
		figures.Processor("beat/cpu", "CPU of the hub "+title, c.hubCPU, s.count),
		figures.Processor("beat/apiserver-cpu", "CPU of the API server for the first heartbeat of an agent and its Bundle", c.apiServerCPU, s.count),
	}
}

// floor is the cost of the writes of a registration without a hub, see sim.PlainClient.
type floor struct {
	rate         float64       // registrations per second
	clientCPU    time.Duration // of the plain client for one registration
	apiServerCPU time.Duration // for one registration
}

// measureFloor measures the plain client on an API server of its own, because a hub would process the objects that the client creates.
func measureFloor(ctx context.Context, o Options) (f floor, err error) {
	e, err := newEnvironment(ctx, o, extraArgs{})
	if err != nil {
		return f, err
	}
	defer e.close()
	client, err := apiextensions.NewForConfig(e.Config)
	if err != nil {
		return f, err
	}
	if _, err := crds.Ensure(ctx, client); err != nil {
		return f, err
	}
	if err := e.awaitKinds(ctx); err != nil { // no hub applies policies
		return f, err
	}
	warmUp, measured := floorCounts(o.Storm)
	if _, err := e.plainClient(ctx, "warm-up", warmUp); err != nil { // a new API server is slow at first
		return f, err
	}
	f, err = e.plainClient(ctx, "measured", measured)
	e.logf("plain client without a hub: %.1f registrations/s", f.rate)
	return f, err
}

// floorCounts returns how many registrations of the plain client precede those that are measured, and how many are measured.
func floorCounts(storm int) (warmUp, measured int) { return max(1, storm/4), max(1, storm/2) }

func (e *environment) plainClient(ctx context.Context, run string, count int) (f floor, err error) {
	client := sim.PlainClient{API: e.API, Run: "floor-" + run}
	apiServerCPU, err := cpuDuring([]int{e.plane.APIServerPid()}, func() (err error) {
		f.clientCPU, err = cpuDuring([]int{os.Getpid()}, func() error {
			began := time.Now()
			err := client.Register(ctx, count, e.InFlight)
			f.rate = figures.PerSecond(count, time.Since(began))
			return err
		})
		return err
	})
	f.clientCPU, f.apiServerCPU = f.clientCPU/time.Duration(count), apiServerCPU/time.Duration(count)
	return f, err
}

func (f floor) mean(g floor) floor {
	return floor{
		rate:      (f.rate + g.rate) / 2,
		clientCPU: (f.clientCPU + g.clientCPU) / 2, apiServerCPU: (f.apiServerCPU + g.apiServerCPU) / 2,
	}
}

func (f floor) figures(s storm) []figures.Figure {
	share := figures.Quotient("storm/share-of-floor", "registrations per second, divided by those of the plain client", s.rate, f.rate)
	share.MoreIsBetter = true
	all := []figures.Figure{
		figures.Rate("floor/token-request", "a plain client that makes the same writes: registrations per second", f.rate),
		figures.Processor("floor/apiserver-cpu", "CPU of the API server for a registration of the plain client", f.apiServerCPU, 1),
		share,
	}
	return append(all, f.cpuInFloors(s)...)
}

// cpuInFloors returns the CPU times of a storm divided by the CPU times of the floor. These ratios do not depend on the processor.
func (f floor) cpuInFloors(s storm) []figures.Figure {
	each := func(d time.Duration) float64 { return figures.Millis(d) / float64(s.count) }
	return []figures.Figure{
		figures.Quotient("storm/cpu-in-floors", "CPU of the hub for a registration, divided by that of the plain client", each(s.cost.hubCPU), figures.Millis(f.clientCPU)),
		figures.Quotient("storm/apiserver-cpu-in-floors", "CPU of the API server for a registration, divided by that for one of the plain client",
			each(s.cost.apiServerCPU), figures.Millis(f.apiServerCPU)),
	}
}
