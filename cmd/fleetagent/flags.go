package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/pkg/agent"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
	"github.com/muster-fleet/muster/pkg/version"
)

// raw has the flags and environment variables. Those that need no parsing are in the configuration already.
type raw struct {
	config                                   agent.Config
	kubeconfig, checkinInterval, lifetime    string
	leaderElect, debug                       bool
	debugLevel                               int
	workers, driftWorkers                    string
	healthAddress, metricsAddress, logFormat string
	lease                                    launch.Election
}

// newApp reads the flags and calls run with a validated configuration.
func newApp(run func(context.Context, agent.Config) error) *cli.App {
	r := &raw{}
	app := launch.App("fleetagent", "registers this cluster with a hub and reports to it")
	app.Flags = append(r.flags(), r.lease.Flags()...)
	app.Commands = []*cli.Command{checkCommand(r)}
	app.Action = func(c *cli.Context) error {
		if c.Args().Present() {
			return fmt.Errorf("there is no command %q; see --help", c.Args().First())
		}
		config, err := r.complete()
		if err != nil {
			return err
		}
		launch.SetUpLog(r.logFormat, r.debug, r.debugLevel)
		// The agent is ready from its start: it serves no requests, and its registration may wait for the approval of a person. If it were ready
		// only after that, an installation that waits would fail, and a rolling update would stop.
		health := launch.NewHealth()
		health.Ready("starting: asking for the Lease of the agents of this namespace")
		if err := health.Serve(c.Context, r.healthAddress); err != nil {
			return err
		}
		config.OnState = health.Ready
		if r.metricsAddress != "" {
			launch.MeasureRequests(launch.HostOf(config.Member))
			if config.Metrics, err = launch.Metrics(c.Context, r.metricsAddress); err != nil {
				return err
			}
		}
		return run(c.Context, config)
	}
	return app
}

func (r *raw) flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "kubeconfig", Destination: &r.kubeconfig, Usage: "`FILE` to reach this cluster with; default: the pod's own ServiceAccount, then $KUBECONFIG"},
		&cli.StringFlag{Name: "namespace", Destination: &r.config.Namespace, EnvVars: []string{"NAMESPACE"}, Usage: "`NAMESPACE` the agent runs in (required)"},
		&cli.StringFlag{Name: "agent-scope", Destination: &r.config.Scope, EnvVars: []string{"AGENT_SCOPE"}, Usage: "`NAME` that distinguishes this agent from others in this cluster"},
		&cli.StringFlag{Name: "checkin-interval", Destination: &r.checkinInterval, EnvVars: []string{"CHECKIN_INTERVAL"}, Usage: "`DURATION` between two heartbeats, at least 1s; empty or 0: 1m with a Lease, else 15m"},
		&cli.StringFlag{Name: "credential-lifetime", Destination: &r.lifetime, EnvVars: []string{"CREDENTIAL_LIFETIME"}, Usage: "`DURATION` to request when the credential for the hub is renewed; empty or 0: that of the credential"},
		&cli.BoolFlag{Name: "heartbeat-lease", Destination: &r.config.HeartbeatLease, Value: true, EnvVars: []string{"HEARTBEAT_LEASE"}, Usage: "register for heartbeats to a Lease on the hub, where the hub supports it, instead of the status of the Cluster"},
		&cli.BoolFlag{Name: "leader-elect", Destination: &r.leaderElect, Value: true, Usage: "work only while this process holds a Lease, so that one agent of the namespace works at a time"},
		&cli.StringFlag{Name: "hostname", Destination: &r.config.Pod, EnvVars: []string{"POD_NAME", "HOSTNAME"}, Usage: "`NAME` of the pod, sent to the hub as a label of the cluster"},
		&cli.StringFlag{Name: "generation", Destination: &r.config.Generation, EnvVars: []string{registration.GenerationEnv}, Usage: "`TEXT` reported to the hub, which changes it to restart the agent"},
		&cli.StringFlag{Name: "workers", Destination: &r.workers, EnvVars: []string{"BUNDLEDEPLOYMENT_RECONCILER_WORKERS"}, Usage: "`NUMBER` of BundleDeployments to deploy in parallel; empty: 50"},
		&cli.StringFlag{Name: "drift-workers", Destination: &r.driftWorkers, EnvVars: []string{"DRIFT_RECONCILER_WORKERS"}, Usage: "`NUMBER` of BundleDeployments to compare with the cluster in parallel; empty: 50"},
		launch.HealthFlag(&r.healthAddress),
		launch.MetricsFlag(&r.metricsAddress),
		launch.LogFormatFlag(&r.logFormat),
		&cli.BoolFlag{Name: "debug", Destination: &r.debug, Usage: "log more"},
		&cli.IntFlag{Name: "debug-level", Destination: &r.debugLevel, Usage: "`LEVEL` of the Kubernetes client's log, with --debug"},
	}
}

// complete parses the flags and returns all errors at once.
func (r *raw) complete() (agent.Config, error) {
	c := r.config
	c.Version, c.Log = version.Version, logrus.StandardLogger()
	checkin, errCheckin := launch.Duration("--checkin-interval", r.checkinInterval)
	c.CheckinInterval = longEnough(checkin)
	var errLifetime error
	c.CredentialLifetime, errLifetime = launch.Duration("--credential-lifetime", r.lifetime)
	var errElection, errWorkers, errDriftWorkers, errMember error
	c.LeaderElection, errElection = r.election()
	c.Workers, errWorkers = number("--workers", r.workers)
	c.DriftWorkers, errDriftWorkers = number("--drift-workers", r.driftWorkers)
	c.Member, errMember = launch.RESTConfig(r.kubeconfig)
	if errMember != nil {
		c.Member = &rest.Config{} // so that Validate reports the other fields only
	}
	errNamespace := r.checkNamespace()
	if errNamespace != nil {
		c.Namespace = "none" // as above
	}
	return c, errors.Join(errNamespace, errCheckin, errLifetime, errElection, errWorkers, errDriftWorkers, errMember, c.Validate())
}

func (r *raw) checkNamespace() error {
	if r.config.Namespace == "" {
		return errors.New("the agent's namespace is not set: pass --namespace or set the environment variable NAMESPACE")
	}
	return nil
}

// longEnough replaces an interval that is far too short, and probably a typo, by the default, as the hub does in its configuration. An agent that
// ends because of it would be worse.
func longEnough(checkin time.Duration) time.Duration {
	if checkin <= 0 || checkin >= config.LeastCheckinInterval {
		return checkin
	}
	logrus.Warnf("--checkin-interval is %s, which is shorter than %s; it is left at its default", checkin, config.LeastCheckinInterval)
	return 0
}

// number parses a positive number. An empty text, which the chart passes for a value that is not set, is 0: the default.
func number(flag, text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s is %q: it must be a positive number", flag, text)
	}
	return n, nil
}

func (r *raw) election() (*agent.LeaderElection, error) {
	if !r.leaderElect {
		return nil, nil
	}
	times, errTimes := r.lease.Times("CATTLE")
	identity, errIdentity := r.lease.Identity()
	return &agent.LeaderElection{Identity: identity, Times: times}, errors.Join(errTimes, errIdentity)
}
