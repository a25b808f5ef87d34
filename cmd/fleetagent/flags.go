package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/agent"
	"github.com/muster-fleet/muster/pkg/version"
)

// raw is what the command line and the environment say, word for word.
type raw struct {
	kubeconfig, namespace, scope, checkinInterval string
	leaderElect, debug                            bool
	debugLevel                                    int
	leaseDuration, renewDeadline, retryPeriod     string
	podName, hostname                             string
}

// newApp reads the flags and hands one validated configuration to run.
func newApp(run func(context.Context, agent.Config) error) *cli.App {
	r := &raw{}
	return &cli.App{
		Name:            "fleetagent",
		Usage:           "registers this cluster with a hub and reports to it",
		Version:         version.Version,
		Flags:           r.flags(),
		HideHelpCommand: true,
		// A wrong flag is one line, not the whole help with the reason lost above it.
		OnUsageError: func(_ *cli.Context, err error, _ bool) error { return fmt.Errorf("%w; see --help", err) },
		// main decides about the exit; a library that ends the process would leave the Lease held.
		ExitErrHandler: func(*cli.Context, error) {},
		ErrWriter:      io.Discard,
		Action: func(c *cli.Context) error {
			config, err := r.config()
			if err != nil {
				return err
			}
			setUpLog(r.debug, r.debugLevel)
			return run(c.Context, config)
		},
	}
}

func (r *raw) flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "kubeconfig", Destination: &r.kubeconfig, Usage: "`FILE` to reach this cluster with; default: the pod's own ServiceAccount, then $KUBECONFIG"},
		&cli.StringFlag{Name: "namespace", Destination: &r.namespace, EnvVars: []string{"NAMESPACE"}, Usage: "`NAMESPACE` the agent runs in (required)"},
		&cli.StringFlag{Name: "agent-scope", Destination: &r.scope, EnvVars: []string{"AGENT_SCOPE"}, Usage: "`NAME` that keeps this agent apart from others in this cluster"},
		&cli.StringFlag{Name: "checkin-interval", Destination: &r.checkinInterval, EnvVars: []string{"CHECKIN_INTERVAL"}, Usage: "`DURATION` between two heartbeats; empty or 0: 15m"},
		&cli.BoolFlag{Name: "leader-elect", Destination: &r.leaderElect, Value: true, Usage: "take turns with other agents of the namespace by a Lease"},
		&cli.StringFlag{Name: "lease-duration", Destination: &r.leaseDuration, EnvVars: []string{"CATTLE_ELECTION_LEASE_DURATION"}, Usage: "`DURATION` others wait for a holder that is silent; default: 30s"},
		&cli.StringFlag{Name: "renew-deadline", Destination: &r.renewDeadline, EnvVars: []string{"CATTLE_ELECTION_RENEW_DEADLINE"}, Usage: "`DURATION` the holder tries to renew; default: 25s"},
		&cli.StringFlag{Name: "retry-period", Destination: &r.retryPeriod, EnvVars: []string{"CATTLE_ELECTION_RETRY_PERIOD"}, Usage: "`DURATION` between two tries; default: 10s"},
		&cli.StringFlag{Name: "pod-name", Destination: &r.podName, EnvVars: []string{"POD_NAME"}, Usage: "`NAME` in the Lease; default: hostname and process ID"},
		&cli.StringFlag{Name: "hostname", Destination: &r.hostname, EnvVars: []string{"HOSTNAME"}, Usage: "`NAME` of the pod, told to the hub as a label of the cluster"},
		&cli.BoolFlag{Name: "debug", Destination: &r.debug, Usage: "log more"},
		&cli.IntFlag{Name: "debug-level", Destination: &r.debugLevel, Usage: "`LEVEL` of the Kubernetes client's log, with --debug"},
	}
}

// config turns what was said into what is meant, and reports everything that is wrong at once.
func (r *raw) config() (agent.Config, error) {
	checkin, errCheckin := duration("--checkin-interval", r.checkinInterval)
	election, errElection := r.election()
	c := agent.Config{
		Namespace:       r.namespace,
		Scope:           r.scope,
		CheckinInterval: checkin,
		LeaderElection:  election,
		Pod:             r.hostname,
		Version:         version.Version,
		Log:             logrus.StandardLogger(),
	}
	member, errMember := memberConfig(r.kubeconfig)
	c.Member = member
	if errMember != nil {
		errMember = fmt.Errorf("no way to the API server of this cluster: pass --kubeconfig, set KUBECONFIG or run in a pod: %w", errMember)
		c.Member = &rest.Config{} // so that Validate speaks of the rest only
	}
	return c, errors.Join(errCheckin, errElection, errMember, c.Validate())
}

func (r *raw) election() (*agent.LeaderElection, error) {
	if !r.leaderElect {
		return nil, nil
	}
	lease, errLease := duration("CATTLE_ELECTION_LEASE_DURATION", r.leaseDuration)
	renew, errRenew := duration("CATTLE_ELECTION_RENEW_DEADLINE", r.renewDeadline)
	retry, errRetry := duration("CATTLE_ELECTION_RETRY_PERIOD", r.retryPeriod)
	identity, errIdentity := r.identity()
	return &agent.LeaderElection{
		Identity: identity, LeaseDuration: lease, RenewDeadline: renew, RetryPeriod: retry,
	}, errors.Join(errLease, errRenew, errRetry, errIdentity)
}

func (r *raw) identity() (string, error) {
	if r.podName != "" {
		return r.podName, nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("no name for the Lease: set POD_NAME: %w", err)
	}
	return fmt.Sprintf("%s_%d", hostname, os.Getpid()), nil
}

// duration reads an optional duration; empty is 0, which means the default.
func duration(name, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s is %q: it must be a duration like 15m or 90s, or empty for the default", name, text)
	}
	return d, nil
}
