package launch

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/pkg/leader"
)

// Election is what the command line and the environment say about a Lease, word for word.
type Election struct {
	lease, renew, retry, pod string
}

// Flags are the flags of the program's own Lease.
func (e *Election) Flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "pod-name", Destination: &e.pod, EnvVars: []string{"POD_NAME"}, Usage: "`NAME` in the Lease; default: hostname and process ID"},
		&cli.StringFlag{Name: "lease-duration", Destination: &e.lease, EnvVars: []string{"CATTLE_ELECTION_LEASE_DURATION"}, Usage: "`DURATION` others wait for a silent holder before they take over; default: 30s"},
		&cli.StringFlag{Name: "renew-deadline", Destination: &e.renew, EnvVars: []string{"CATTLE_ELECTION_RENEW_DEADLINE"}, Usage: "`DURATION` the holder keeps trying to renew; default: 25s"},
		&cli.StringFlag{Name: "retry-period", Destination: &e.retry, EnvVars: []string{"CATTLE_ELECTION_RETRY_PERIOD"}, Usage: "`DURATION` between two attempts; default: 10s"},
	}
}

// AgentFlags are the flags of the Lease of agents that the hub installs.
func (e *Election) AgentFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "agent-lease-duration", Destination: &e.lease, EnvVars: []string{"FLEET_AGENT_ELECTION_LEASE_DURATION"}, Usage: "like --lease-duration, for agents the hub installs"},
		&cli.StringFlag{Name: "agent-renew-deadline", Destination: &e.renew, EnvVars: []string{"FLEET_AGENT_ELECTION_RENEW_DEADLINE"}, Usage: "like --renew-deadline, for agents the hub installs"},
		&cli.StringFlag{Name: "agent-retry-period", Destination: &e.retry, EnvVars: []string{"FLEET_AGENT_ELECTION_RETRY_PERIOD"}, Usage: "like --retry-period, for agents the hub installs"},
	}
}

// Times reads the three durations; prefix is that of their environment variables. One that is unset has its default: a
// chart that sets none must not keep anything from working.
func (e *Election) Times(prefix string) (leader.Times, error) {
	times, err := e.read(prefix)
	if err != nil {
		return leader.Times{}, err
	}
	times = times.WithDefaults()
	return times, times.Validate()
}

func (e *Election) read(prefix string) (leader.Times, error) {
	lease, errLease := Duration(prefix+"_ELECTION_LEASE_DURATION", e.lease)
	renew, errRenew := Duration(prefix+"_ELECTION_RENEW_DEADLINE", e.renew)
	retry, errRetry := Duration(prefix+"_ELECTION_RETRY_PERIOD", e.retry)
	return leader.Times{LeaseDuration: lease, RenewDeadline: renew, RetryPeriod: retry}, errors.Join(errLease, errRenew, errRetry)
}

// Identity tells this process from others in a Lease: the name of its pod, else of its host with the process ID.
func (e *Election) Identity() (string, error) {
	if e.pod != "" {
		return e.pod, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("no name for the Lease: set POD_NAME: %w", err)
	}
	return fmt.Sprintf("%s_%d", host, os.Getpid()), nil
}
