package launch

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/pkg/leader"
)

// Election has the settings of a Lease as given on the command line and in the environment.
type Election struct {
	lease, renew, retry, pod string
}

// Flags returns the flags for the program's own Lease.
func (e *Election) Flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "pod-name", Destination: &e.pod, EnvVars: []string{"POD_NAME"}, Usage: "`NAME` in the Lease; default: hostname and process ID"},
		&cli.StringFlag{Name: "lease-duration", Destination: &e.lease, EnvVars: []string{"CATTLE_ELECTION_LEASE_DURATION"}, Usage: "`DURATION` after which another process takes over if the holder does not renew; default: 30s"},
		&cli.StringFlag{Name: "renew-deadline", Destination: &e.renew, EnvVars: []string{"CATTLE_ELECTION_RENEW_DEADLINE"}, Usage: "`DURATION` for which the holder tries to renew; default: 25s"},
		&cli.StringFlag{Name: "retry-period", Destination: &e.retry, EnvVars: []string{"CATTLE_ELECTION_RETRY_PERIOD"}, Usage: "`DURATION` between two attempts to acquire or renew; default: 10s"},
	}
}

// AgentFlags returns the flags for the Lease of agents that the hub installs.
func (e *Election) AgentFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "agent-lease-duration", Destination: &e.lease, EnvVars: []string{"FLEET_AGENT_ELECTION_LEASE_DURATION"}, Usage: "like --lease-duration, for agents the hub installs"},
		&cli.StringFlag{Name: "agent-renew-deadline", Destination: &e.renew, EnvVars: []string{"FLEET_AGENT_ELECTION_RENEW_DEADLINE"}, Usage: "like --renew-deadline, for agents the hub installs"},
		&cli.StringFlag{Name: "agent-retry-period", Destination: &e.retry, EnvVars: []string{"FLEET_AGENT_ELECTION_RETRY_PERIOD"}, Usage: "like --retry-period, for agents the hub installs"},
	}
}

// Times parses the three durations. prefix is the beginning of their environment variables. An unset duration has the default of package leader.
func (e *Election) Times(prefix string) (leader.Times, error) {
	lease, errLease := Duration(prefix+"_ELECTION_LEASE_DURATION", e.lease)
	renew, errRenew := Duration(prefix+"_ELECTION_RENEW_DEADLINE", e.renew)
	retry, errRetry := Duration(prefix+"_ELECTION_RETRY_PERIOD", e.retry)
	if err := errors.Join(errLease, errRenew, errRetry); err != nil {
		return leader.Times{}, err
	}
	times := leader.Times{LeaseDuration: lease, RenewDeadline: renew, RetryPeriod: retry}.WithDefaults()
	return times, times.Validate()
}

// Identity returns the name of this process in a Lease: the name of its pod, or the name of its host with the process ID.
func (e *Election) Identity() (string, error) {
	if e.pod != "" {
		return e.pod, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot determine the identity for the Lease: set POD_NAME: %w", err)
	}
	return fmt.Sprintf("%s_%d", host, os.Getpid()), nil
}
