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

	"github.com/muster-fleet/muster/internal/bench/audit"
	"github.com/muster-fleet/muster/internal/bench/figures"
	"github.com/muster-fleet/muster/internal/bench/sim"
	"github.com/muster-fleet/muster/internal/clusternetagent"
	"github.com/muster-fleet/muster/pkg/admission"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
)

// clusternet measures unchanged agents of Clusternet, which register at once, and then only send heartbeats. A hub that already runs need
// not serve them.
func clusternet(ctx context.Context, o Options) (all []figures.Figure, err error) {
	if o.External != nil {
		return nil, nil
	}
	e, err := withHub(ctx, o, extraArgs{hub: []string{"--clusternet"}})
	if err != nil {
		return nil, err
	}
	defer e.close()
	if err := e.awaitClusternet(ctx); err != nil {
		return nil, err
	}
	tokens, err := sim.NewAgents(ctx, e.API, e.runName("clusternet"))
	if err != nil {
		return nil, err
	}
	clients, err := versioned.NewForConfig(e.Config)
	if err != nil {
		return nil, err
	}

	// They run until the end, with the periods of real ones but for the heartbeat.
	sent, log := &clusternetagent.SentRequests{}, logrus.New()
	log.SetOutput(io.Discard)
	periods := clusternetagent.DefaultPeriods()
	periods.Heartbeat = time.Minute
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
					HubURL: e.plane.URL(), Token: tokens.Token(), Periods: periods, Sent: sent, Log: log,
				})
			})
		}
		return sim.Await(ctx, "the hub to delete the requests of all agents, which have registered", func(ctx context.Context) (bool, error) {
			if sent.Count("/status 200") < o.Storm {
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
	perAgent := func(count int) float64 { return float64(count) / float64(o.Storm) }
	requests := sent.Count("") - (sent.Count("/status 200") - o.Storm) // without later heartbeats
	all = append(all,
		figures.Counted("clusternet/writes", title("writes of the hub for each"), perAgent(registered.Writes)),
		figures.Counted("clusternet/reads", title("reads of the hub for each"), perAgent(registered.Reads)),
		figures.Counted("clusternet/failed", title("failed requests of the hub"), float64(registered.Failed)).WithNote(registered.PerItem(o.Storm)),
		figures.Processor("clusternet/cpu", title("CPU of the hub for each"), registered.hubCPU, o.Storm),
		figures.Counted("clusternet/agent-requests", title("requests of each agent, with its first heartbeat and watches"), perAgent(requests)))

	// Heartbeats.
	recorded, err := e.audit.FromHere()
	if err != nil {
		return all, err
	}
	before, agentBefore := sent.Count("/status 200"), sent.Count("")
	err = sim.Await(ctx, "a heartbeat of each agent", func(ctx context.Context) (bool, error) {
		return sent.Count("/status 200") >= before+o.Storm, sim.Pause(ctx, every)
	})
	if err != nil {
		return all, err
	}
	beats, agentRequests := sent.Count("/status 200")-before, sent.Count("")-agentBefore
	answered, err := recorded.Next(audit.ByUserAgents(e.UserAgents...))
	if err != nil {
		return all, err
	}
	hub := audit.Count(answered)
	perBeat := func(count int) float64 { return float64(count) / float64(beats) }
	return append(all,
		figures.Counted("clusternet/beat-writes", "writes of the hub for a heartbeat of an agent of Clusternet", perBeat(hub.Writes)).WithNote(hub.PerItem(beats)),
		figures.Counted("clusternet/beat-reads", "reads of the hub for it", perBeat(hub.Reads)),
		figures.Counted("clusternet/beat-agent-requests", "requests of the agent for it", perBeat(agentRequests))), nil
}

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
		since, inForce := monitor.InForce()
		return inForce && !time.Now().Before(since), nil
	})
}
