package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/api/validation"

	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/pkg/leader"
	"github.com/muster-fleet/muster/pkg/registration"
)

// raw holds the flags and environment variables before they are checked. Those that need no more than a check are in the configuration already.
type raw struct {
	config                                 config
	kubeconfig, logFormat                  string
	debug                                  bool
	debugLevel                             int
	propagateDebug, disableSecurityContext bool
	election, agentElection                launch.Election
}

// newApp reads the flags and passes one validated configuration to run. The charts of Fleet call the sub-command agentmanagement, which
// does the same.
func newApp(run func(context.Context, config) error) *cli.App {
	r := &raw{}
	action := func(c *cli.Context) error {
		cfg, err := r.complete()
		if err != nil {
			return err
		}
		launch.SetUpLog(r.logFormat, r.debug, r.debugLevel)
		return run(c.Context, cfg)
	}
	hub := launch.App("fleetcontroller", "registers member clusters with the cluster it runs in")
	hub.Flags, hub.Action = r.flags(), action
	hub.Commands = []*cli.Command{{
		Name:         "agentmanagement",
		Usage:        "the same as without a sub-command, under the name that Fleet's charts use",
		Flags:        r.flags(),
		Before:       refuseFlagsBefore,
		Action:       action,
		OnUsageError: hub.OnUsageError,
	}}
	return hub
}

// refuseFlagsBefore returns an error for flags before the name of the sub-command. The flags of the sub-command set the same variables
// again, so the earlier flags would be dropped silently.
func refuseFlagsBefore(c *cli.Context) error {
	for _, before := range c.Lineage()[1:] {
		if before.NumFlags() > 0 {
			return fmt.Errorf("there are flags before %s, which do not reach it: put them behind it, as in fleetcontroller %s --debug",
				c.Command.Name, c.Command.Name)
		}
	}
	return nil
}

func (r *raw) flags() []cli.Flag {
	return slices.Concat(r.commandLine(), r.election.Flags(), r.environment(), r.agentElection.AgentFlags())
}

func (r *raw) commandLine() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "kubeconfig", Destination: &r.kubeconfig, Usage: "`FILE` to reach the hub's cluster with; default: the pod's own ServiceAccount, then $KUBECONFIG"},
		&cli.StringFlag{Name: "namespace", Destination: &r.config.hub.SystemNamespace, EnvVars: []string{"NAMESPACE"}, Usage: "`NAMESPACE` the hub runs in and is configured in (required)"},
		&cli.BoolFlag{Name: "disable-bootstrap", Destination: &r.config.hub.DisableBootstrap, Usage: "do not register the hub's own cluster"},
		launch.MetricsFlag(&r.config.metricsAddress),
		launch.HealthFlag(&r.config.healthAddress),
		launch.ProfilesFlag(&r.config.profilesAddress),
		launch.LogFormatFlag(&r.logFormat),
		&cli.BoolFlag{Name: "debug", Destination: &r.debug, Usage: "log more"},
		&cli.IntFlag{Name: "debug-level", Destination: &r.debugLevel, Usage: "`LEVEL` of the Kubernetes client's log, with --debug"},
	}
}

// environment returns the settings that charts pass in environment variables. Each has a flag too, which --help explains.
func (r *raw) environment() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "config-version", Destination: &r.config.hub.ConfigVersion, EnvVars: []string{"FLEET_CONFIG_VERSION"}, Usage: "apply the hub's ConfigMap only if it has no annotation fleet.cattle.io/version or this `VERSION`; default: the version of the first ConfigMap"},
		&cli.BoolFlag{Name: "token-ttl-required", Destination: &r.config.hub.TokenTTLRequired, EnvVars: []string{"FLEET_REGISTRATION_TOKEN_TTL_REQUIRED"}, Usage: "refuse ClusterRegistrationTokens that never expire"},
		&cli.BoolFlag{Name: "disable-bundles", Destination: &r.config.hub.DisableBundles, EnvVars: []string{"FLEET_DISABLE_BUNDLES"}, Usage: "leave Bundles, BundleDeployments and Contents to Fleet's own controllers, beside this hub"},
		&cli.BoolFlag{Name: "clusternet", Destination: &r.config.hub.Clusternet, EnvVars: []string{"FLEET_CLUSTERNET"}, Usage: "let unchanged agents of Clusternet register with this hub"},
		&cli.BoolFlag{Name: "leave-admission-policies", Destination: &r.config.hub.LeaveAdmission, EnvVars: []string{"FLEET_LEAVE_ADMISSION_POLICIES"}, Usage: "leave the hub's admission policies to others, such as the chart, and only watch them"},
		&cli.IntFlag{Name: "agent-replicas", Destination: &r.config.hub.Agent.Replicas, EnvVars: []string{"FLEET_AGENT_REPLICA_COUNT"}, Usage: "`NUMBER` of replicas of the agents the hub installs", DefaultText: "1"},
		&cli.BoolFlag{Name: "disable-agent-probes", Destination: &r.config.hub.Agent.DisableProbes, EnvVars: []string{"FLEET_DISABLE_AGENT_PROBES"}, Usage: "install agents without probes, for an agent image that does not serve /healthz and /readyz"},
		&cli.BoolFlag{Name: "agent-metrics", Destination: &r.config.hub.Agent.ServeMetrics, EnvVars: []string{"FLEET_AGENT_METRICS"}, Usage: "install agents that serve Prometheus metrics at port 8080"},
		&cli.BoolFlag{Name: "fleet-metrics", Destination: &r.config.hub.FleetMetrics, EnvVars: []string{"FLEET_METRICS"}, Usage: "serve the metrics of Clusters, ClusterGroups, Bundles and BundleDeployments under the names of Fleet's own controllers too, with series for each object"},
		&cli.BoolFlag{Name: "propagate-debug", Destination: &r.propagateDebug, EnvVars: []string{"FLEET_PROPAGATE_DEBUG_SETTINGS_TO_AGENTS"}, Usage: "with --debug: make the agents the hub installs log more too"},
		&cli.BoolFlag{Name: "disable-agent-security-context", Destination: &r.disableSecurityContext, EnvVars: []string{"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT"}, Usage: "with --propagate-debug: install agents without security contexts, for debuggers"},
	}
}

// complete validates the flags and returns the configuration, or all errors at once.
func (r *raw) complete() (config, error) {
	client, errClient := launch.RESTConfig(r.kubeconfig)
	identity, errIdentity := r.election.Identity()
	times, errTimes := r.election.Times("CATTLE")
	agents, errAgents := r.agentElection.Times("FLEET_AGENT")
	err := errors.Join(r.checkNamespace(), errClient, errIdentity, errTimes, errAgents, r.checkReplicas())
	if err != nil {
		return config{}, err
	}
	c := r.config
	c.hub.RESTConfig = client
	c.election = leader.Config{Client: client, Namespace: c.hub.SystemNamespace, Name: registration.HubLease, Identity: identity, Times: times}
	a := &c.hub.Agent
	a.LeaseDuration, a.RenewDeadline, a.RetryPeriod = agents.LeaseDuration, agents.RenewDeadline, agents.RetryPeriod
	a.LogJSON = r.logFormat == launch.LogJSON
	a.DisableSecurityContext = r.propagateDebug && r.disableSecurityContext
	if r.debug && r.propagateDebug {
		a.Debug, a.DebugLevel = true, r.debugLevel
	}
	return c, nil
}

func (r *raw) checkNamespace() error {
	if r.config.hub.SystemNamespace == "" {
		return errors.New("the hub's namespace is not set: pass --namespace or set the environment variable NAMESPACE")
	}
	if why := validation.ValidateNamespaceName(r.config.hub.SystemNamespace, false); len(why) > 0 {
		return fmt.Errorf("the hub's namespace %q is not a valid name of a namespace: %s", r.config.hub.SystemNamespace, why[0])
	}
	return nil
}

func (r *raw) checkReplicas() error {
	if r.config.hub.Agent.Replicas < 0 {
		return fmt.Errorf("FLEET_AGENT_REPLICA_COUNT is %d: it must not be negative", r.config.hub.Agent.Replicas)
	}
	return nil
}
