package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
)

// takeover measures two replicas of the hub with the chart's leader election times: how long an agent waits that registers when the
// leader is killed, and when it is stopped, and how many requests the new leader sends for settled clusters.
func takeover(ctx context.Context, o Options) ([]figures.Figure, error) {
	r, err := newReplicas(ctx, o)
	if err != nil {
		return nil, err
	}
	defer r.close()

	// The requests of a registration without a takeover are subtracted.
	plain, _, err := r.registerDuring(ctx, func() error { return nil })
	if err != nil {
		return nil, err
	}
	var killed, stopped figures.Samples
	var writes, reads int
	for range o.Takeovers {
		for _, way := range []struct {
			took *figures.Samples
			end  func() error
		}{{&killed, r.killLeader}, {&stopped, r.stopLeader}} {
			c, took, err := r.registerDuring(ctx, way.end)
			if err != nil {
				return nil, err
			}
			*way.took = append(*way.took, took)
			writes, reads = max(writes, c.Writes-plain.Writes), max(reads, c.Reads-plain.Reads)
			if err := r.addStandby(ctx); err != nil {
				return nil, err
			}
		}
	}
	idle, err := r.requestsDuring(ctx, func() error { return sim.Pause(ctx, o.Window) })
	if err != nil {
		return nil, err
	}
	standby, err := usageOf(r.processes[1].pid())
	r.logf("takeover: killed %v, stopped %v", killed, stopped)
	title := func(what string) string {
		return fmt.Sprintf("2 replicas with %d clusters, election times of the chart: %s", len(r.agents.Registered), what)
	}
	return []figures.Figure{
		figures.Seconds("takeover/kill", title("an agent that registers when the leader is killed is answered after, at most"), slices.Max(killed)),
		figures.Seconds("takeover/stop", title("an agent that registers when the leader is stopped is answered after, at most"), slices.Max(stopped)),
		figures.Counted("takeover/writes", title("writes of the new leader in addition to those of a registration"), float64(writes)),
		figures.Counted("takeover/reads", title("reads of the new leader in addition to those of a registration"), float64(reads)),
		figures.Counted("takeover/idle", title(fmt.Sprintf("requests of both replicas in %s, without the Lease", o.Window)), float64(idle.Requests())),
		figures.Bytes("takeover/standby-memory", title("peak memory of the standby"), standby.peakMemory),
	}, err
}

// replicas are processes of one hub. The first is the leader.
type replicas struct {
	*environment
	agents    *sim.Agents
	processes []*hubProcess
	started   int
	args      []string
}

// newReplicas starts a leader, registers the clusters, and starts a standby.
func newReplicas(ctx context.Context, o Options) (*replicas, error) {
	chart, err := charts.Load(charts.Hub)
	if err != nil {
		return nil, err
	}
	times, ok := chart.Values["leaderElection"].(map[string]any)
	if !ok {
		return nil, errors.New("the chart of the hub has no leaderElection")
	}
	r := &replicas{args: []string{
		fmt.Sprintf("--lease-duration=%v", times["leaseDuration"]), fmt.Sprintf("--renew-deadline=%v", times["renewDeadline"]),
		fmt.Sprintf("--retry-period=%v", times["retryPeriod"]),
	}}
	if r.environment, err = newEnvironment(ctx, o, extraArgs{}); err != nil {
		return nil, err
	}
	err = r.prepare(ctx)
	if err != nil {
		r.close()
	}
	return r, err
}

func (r *replicas) prepare(ctx context.Context) (err error) {
	if err := r.addStandby(ctx); err != nil {
		return err
	}
	if err := r.awaitHub(ctx); err != nil {
		return err
	}
	if r.agents, err = sim.NewAgents(ctx, r.API, "replicas"); err != nil {
		return err
	}
	clusters := r.Clusters[0]
	if _, err := r.agents.Register(ctx, clusters, r.InFlight); err != nil {
		return err
	}
	if _, err := r.agents.Beat(ctx, sim.Numbers(0, clusters), sim.Beats{Limit: r.InFlight}); err != nil {
		return err
	}
	return r.addStandby(ctx)
}

func (r *replicas) close() {
	for _, p := range r.processes {
		p.stop()
	}
	r.environment.close()
}

// addStandby starts another process and waits until its caches are full, so that it sends nothing more.
func (r *replicas) addStandby(ctx context.Context) error {
	r.started++
	p, err := r.prepareHub(fmt.Sprintf("hub-%d", r.started), r.args...)
	if err != nil {
		return err
	}
	if err := p.start(); err != nil {
		return err
	}
	r.processes = append(r.processes, p)
	_, err = r.awaitQuiet(ctx)
	return err
}

// removeLeader forgets the leader. The standby is the leader then.
func (r *replicas) removeLeader() *hubProcess {
	leader := r.processes[0]
	r.processes = r.processes[1:]
	return leader
}

func (r *replicas) killLeader() error {
	r.removeLeader().process.Kill()
	return nil
}

// stopLeader asks the leader to stop, and returns at once.
func (r *replicas) stopLeader() error {
	go r.removeLeader().stop()
	return nil
}

// registerDuring registers an agent while event happens, and sends its first heartbeat, with which the hub writes the status of the Cluster. It returns
// the requests of the replicas until they were quiet, and how long the agent waited for its credential.
func (r *replicas) registerDuring(ctx context.Context, event func() error) (c audit.Counts, took time.Duration, err error) {
	c, err = r.requestsDuring(ctx, func() error {
		if err := event(); err != nil {
			return err
		}
		times, err := r.agents.Register(ctx, 1, 1)
		if err != nil {
			return err
		}
		took = times.Quantile(1)
		_, err = r.agents.Beat(ctx, sim.Numbers(len(r.agents.Registered)-1, 1), sim.Beats{Limit: 1})
		return err
	})
	return c, took, err
}

func (r *replicas) requestsDuring(ctx context.Context, event func() error) (c audit.Counts, err error) {
	if _, err := r.awaitQuiet(ctx); err != nil {
		return c, err
	}
	if err := event(); err != nil {
		return c, err
	}
	requests, err := r.awaitQuiet(ctx)
	return audit.Count(requests), err
}
