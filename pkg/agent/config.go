package agent

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/leader"
)

// Config is all an agent is told by the program that runs it. Run validates it; what the cluster says (the Secrets and
// ConfigMap beside the agent) is not part of it.
type Config struct {
	// Member is how to reach the API server of the cluster the agent runs in. Required.
	Member *rest.Config
	// Namespace is the agent's own on the member: its Secrets, its ConfigMap and its Lease are there. Required.
	Namespace string
	// Scope keeps several agents of one cluster apart: it becomes part of what they name cluster-wide. Empty is the
	// default agent.
	Scope string
	// CheckinInterval is the time between two heartbeats; 0 means config.DefaultCheckinInterval.
	CheckinInterval time.Duration
	// Workers is how many BundleDeployments are deployed side by side, DriftWorkers how many are compared with the cluster;
	// 0 is deploy.DefaultWorkers and deploy.DefaultDriftWorkers.
	Workers, DriftWorkers int
	// LeaderElection makes agents of one namespace take turns by a Lease; nil runs without.
	LeaderElection *LeaderElection
	// Pod is the name of the agent's pod, sent as a label of the cluster; empty, or no valid label value, sends none.
	Pod string
	// Version is that of the program, for the user agent; empty means "dev".
	Version string
	// Generation is the environment variable registration.GenerationEnv of the program, reported to the hub: it tells an
	// agent that runs as its import made it from one that runs as its Bundle does. Empty reports none.
	Generation string
	// OnState, if given, is told in a few words what the agent does or waits for, each time it decides. The words hold no
	// names, addresses or errors; the log has those.
	OnState func(state string)
	// Log receives what happens; nil means logrus's standard logger.
	Log logrus.FieldLogger
	// Clock and Timing are for tests; unset they are the real clock and DefaultTiming.
	Clock  clock.WithTicker
	Timing *timing.Durations
}

// LeaderElection is how agents of one namespace take turns. Every one of them must have the same times.
type LeaderElection struct {
	// Identity is what the holder writes into the Lease; it must differ between two agents.
	Identity string
	// Times of the Lease; a zero one has its default.
	leader.Times
}

// Validate says everything that is wrong. Zero values that have a default are fine.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

func (c Config) withDefaults() (Config, error) {
	c.CheckinInterval = cmp.Or(c.CheckinInterval, config.DefaultCheckinInterval)
	c.Version = cmp.Or(c.Version, "dev")
	c.Log = cmp.Or[logrus.FieldLogger](c.Log, logrus.StandardLogger())
	c.Clock = cmp.Or[clock.WithTicker](c.Clock, clock.RealClock{})
	if c.OnState == nil {
		c.OnState = func(string) {}
	}
	if c.Timing == nil {
		defaults := timing.Default()
		c.Timing = &defaults
	}
	if c.LeaderElection != nil {
		c.LeaderElection = &LeaderElection{Identity: c.LeaderElection.Identity, Times: c.LeaderElection.WithDefaults()}
	}
	return c, c.validate()
}

func (c Config) validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Member == nil {
		fail("the agent's Config.Member is nil: set it to the connection to the cluster's API server")
	}
	if c.Namespace == "" {
		fail("the agent's namespace is not set: pass --namespace or set the environment variable NAMESPACE")
	} else if problems := validation.ValidateNamespaceName(c.Namespace, false); len(problems) > 0 {
		fail("the agent's namespace %q is not a name of a namespace: %s", c.Namespace, problems[0])
	}
	if c.CheckinInterval <= 0 {
		fail("the check-in interval is %s: it must not be negative", c.CheckinInterval)
	}
	if c.Workers < 0 || c.DriftWorkers < 0 {
		fail("the numbers of workers are %d and %d: they must not be negative", c.Workers, c.DriftWorkers)
	}
	if c.LeaderElection != nil {
		if c.LeaderElection.Identity == "" {
			fail("leader election needs an identity that differs between two agents")
		}
		errs = append(errs, c.LeaderElection.Times.Validate())
	}
	return errors.Join(errs...)
}

func (c Config) userAgent() string { return "fleetagent/" + c.Version }
