package agent

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/muster-fleet/muster/pkg/agent/heartbeat"
	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/leader"
)

// Config is the configuration from the program that runs the agent. Run validates it. The Secrets and ConfigMaps in the agent's
// namespace are not part of it: the agent reads them while it runs.
type Config struct {
	// Member is the connection to the API server of the cluster the agent runs in. Required.
	Member *rest.Config
	// Namespace is the agent's namespace on the member, with its Secrets, its ConfigMaps and its Lease. Required.
	Namespace string
	// Scope distinguishes several agents of one cluster: it is part of the labels of their imported objects, and of the objects that they
	// deploy. Empty is the default agent.
	Scope string
	// CheckinInterval is the time between two heartbeats; 0 means config.DefaultLeaseInterval for an agent that renews a Lease, and
	// config.DefaultCheckinInterval for one that writes the status of its Cluster.
	CheckinInterval time.Duration
	// CredentialLifetime is the lifetime that the agent requests when it renews its credential for the hub; 0 means that of the current credential.
	CredentialLifetime time.Duration
	// HeartbeatLease makes the agent announce, when it registers, that it sends heartbeats to a Lease on the hub.
	HeartbeatLease bool
	// Workers is the number of BundleDeployments that are deployed in parallel, DriftWorkers the number that are compared with the
	// cluster in parallel; 0 means deploy.DefaultWorkers and deploy.DefaultDriftWorkers.
	Workers, DriftWorkers int
	// LeaderElection lets only one agent of the namespace work at a time, with a Lease; nil runs without.
	LeaderElection *LeaderElection
	// Pod is the name of the agent's Pod, sent as a label of the cluster. An empty or invalid label value is not sent.
	Pod string
	// Version is the program's, for the user agent; empty means "dev".
	Version string
	// Generation is the environment variable registration.GenerationEnv of the program. The agent reports it to the hub, which sees from it
	// whether the import or the agent's Bundle has deployed this process. Empty reports none.
	Generation string
	// OnState is called after each decision with a short description of the agent's activity, without names, addresses and errors; nil is not
	// called.
	OnState func(state string)
	// Metrics, if given, is the registry of the agent's metrics while it works.
	Metrics prometheus.Registerer
	// Log is logrus's standard logger if nil.
	Log logrus.FieldLogger
	// Clock and Timing are for tests; nil means the real clock and timing.Default.
	Clock  clock.WithTicker
	Timing *timing.Durations

	heartbeats *heartbeat.AgentMetrics // nil without Metrics
}

// LeaderElection configures the Lease of the agents in one namespace. All of them must have the same times.
type LeaderElection struct {
	// Identity is the holder in the Lease; it must differ between two agents.
	Identity string
	// Times of the Lease; a zero value has its default.
	leader.Times
}

// Validate returns all errors of the configuration. A zero value that has a default is valid.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

func (c Config) withDefaults() (Config, error) {
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
		fail("the agent's Config.Namespace is empty: set it to the namespace that the agent runs in")
	} else if problems := validation.ValidateNamespaceName(c.Namespace, false); len(problems) > 0 {
		fail("the agent's namespace %q is not a name of a namespace: %s", c.Namespace, problems[0])
	}
	if c.CheckinInterval < 0 {
		fail("the check-in interval is %s: it must not be negative", c.CheckinInterval)
	}
	if c.CredentialLifetime < 0 {
		fail("the lifetime of the credential is %s: it must not be negative", c.CredentialLifetime)
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
