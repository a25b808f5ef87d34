package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/clusternetagent"
	"github.com/muster-fleet/muster/pkg/admission"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
)

// clusternet measures simulated agents of Clusternet, which register at once, and then only send heartbeats.
func clusternet(ctx context.Context, o Options) (all []figures.Figure, err error) {
	e, err := withHub(ctx, o, extraArgs{hub: []string{"--clusternet"}})
	if err != nil {
		return nil, err
	}
	defer e.close()
	if err := e.awaitClusternet(ctx); err != nil {
		return nil, err
	}
	tokens, err := sim.NewAgents(ctx, e.API, "clusternet")
	if err != nil {
		return nil, err
	}
	clients, err := versioned.NewForConfig(e.Config)
	if err != nil {
		return nil, err
	}

	// The agents run until the end of the part, and poll as often as real ones. They send their second heartbeat when the bench triggers it: if
	// 1,000 agents sent heartbeats periodically, the hub would never be quiet.
	sent, log, next := &clusternetagent.SentRequests{}, logrus.New(), make(chan struct{})
	log.SetOutput(io.Discard)
	periods := clusternetagent.DefaultPeriods()
	periods.Heartbeat = time.Hour
	running, stop := context.WithCancel(ctx)
	var agents errgroup.Group
	defer func() {
		stop()
		err = errors.Join(err, agents.Wait())
	}()
	registered, err := e.measure(ctx, func(ctx context.Context) error {
		for range o.Storm {
			agents.Go(func() error {
				return clusternetagent.Run(running, clusternetagent.NewMember(), clusternetagent.Options{
					HubURL: e.plane.URL(), Token: tokens.Token(), Periods: periods, HeartbeatNow: next, Sent: sent, Log: log,
				})
			})
		}
		return sim.Await(ctx, "the hub to delete the requests of all agents, which have registered", func(ctx context.Context) (bool, error) {
			if sent.Count(heartbeat) < o.Storm {
				return false, sim.Pause(ctx, every)
			}
			left, err := clients.ClustersV1beta1().ClusterRegistrationRequests().List(ctx, metav1.ListOptions{Limit: 1})
			return err == nil && len(left.Items) == 0, errors.Join(err, sim.Pause(ctx, every))
		})
	})
	if err != nil {
		return nil, err
	}
	title := func(what string) string { return fmt.Sprintf("%d agents of Clusternet at once: %s", o.Storm, what) }
	perAgent := storm{count: o.Storm}.perAgent
	polls := sent.Count("boot GET") - o.Storm // their number depends on the duration of the registrations
	all = append(all,
		figures.Counted("clusternet/writes", title("writes of the hub for each"), perAgent(registered.Writes)),
		figures.Counted("clusternet/reads", title("reads of the hub for each"), perAgent(registered.Reads)),
		figures.Counted("clusternet/failed", title("failed requests of the hub"), float64(registered.Failed)).WithNote(registered.PerItem(o.Storm)),
		figures.Processor("clusternet/cpu", title("CPU of the hub for each"), registered.hubCPU, o.Storm),
		figures.Seconds("clusternet/settled", title("until the hub's last request"), registered.duration()),
		figures.Counted("clusternet/agent-requests", title("requests of each agent until its first heartbeat, without waiting for the answer"), perAgent(sent.Count("")-polls)),
		figures.Counted("clusternet/agent-polls", title("requests of each agent that waits for the answer"), perAgent(polls)),
		figures.Processor("clusternet/apiserver-cpu", title("CPU of the API server for each"), registered.apiServerCPU, o.Storm))

	// Heartbeats.
	before := sent.Count("")
	beats, err := e.measure(ctx, func(ctx context.Context) error {
		wanted := sent.Count(heartbeat) + o.Storm
		for range o.Storm { // one heartbeat of each agent: the channel serves the agent that has waited the longest
			select {
			case next <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return sim.Await(ctx, "a heartbeat of each agent", func(ctx context.Context) (bool, error) {
			return sent.Count(heartbeat) >= wanted, sim.Pause(ctx, every)
		})
	})
	if err != nil {
		return all, err
	}
	return append(all,
		figures.Counted("clusternet/beat-writes", "writes of the hub for a heartbeat of an agent of Clusternet", perAgent(beats.Writes)).WithNote(beats.PerItem(o.Storm)),
		figures.Counted("clusternet/beat-reads", "reads of the hub for it", perAgent(beats.Reads)),
		figures.Processor("clusternet/beat-cpu", "CPU of the hub for it", beats.hubCPU, o.Storm),
		figures.Counted("clusternet/beat-agent-requests", "requests of the agent for it", perAgent(sent.Count("")-before))), nil
}

// heartbeat is the part of a record of SentRequests that shows that the hub has accepted a heartbeat.
const heartbeat = "/status 200"

const every = 500 * time.Millisecond

// awaitClusternet waits until the API server records who creates a request of a Clusternet agent.
func (e *environment) awaitClusternet(ctx context.Context) error {
	monitor, err := admission.New(admission.Options{RESTConfig: e.Config, Namespace: systemNamespace, Clusternet: true})
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer func() { stop(); monitor.Wait() }()
	monitor.Start(watching)
	return sim.Await(ctx, "the admission policies for Clusternet agents", func(context.Context) (bool, error) {
		policies := monitor.State()
		return policies.InForce() && !time.Now().Before(policies.Since), nil
	})
}
