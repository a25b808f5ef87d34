package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/api/validation"

	"github.com/muster-fleet/muster/internal/launch"
	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/leader"
)

// leaseName is the Lease of Fleet's own registration component, which the hub replaces.
const leaseName = "fleet-agentmanagement-lock"

// raw holds the flags and environment variables before they are checked.
type raw struct {
	kubeconfig, namespace                            string
	metricsAddress, healthAddress, profilesAddress   string
	disableBootstrap, disableBundles, debug          bool
	leaveAdmission, clusternet                       bool
	disableAgentProbes, serveAgentMetrics            bool
	fleetMetrics                                     bool
	debugLevel                                       int
	logFormat                                        string
	propagateDebug, disableSecurityContext, ttlNeeds bool
	agentReplicas                                    int
	election, agentElection                          launch.Election
}

// newApp reads the flags and passes one validated configuration to run. The charts of Fleet call the sub-command agentmanagement, which
// does the same.
func newApp(run func(context.Context, config) error) *cli.App {
	r := &raw{}
	action := func(c *cli.Context) error {
		cfg, err := r.config()
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
		&cli.StringFlag{Name: "namespace", Destination: &r.namespace, EnvVars: []string{"NAMESPACE"}, Usage: "`NAMESPACE` the hub runs in and is configured in (required)"},
		&cli.BoolFlag{Name: "disable-bootstrap", Destination: &r.disableBootstrap, Usage: "do not register the hub's own cluster"},
		launch.MetricsFlag(&r.metricsAddress),
		launch.HealthFlag(&r.healthAddress),
		launch.ProfilesFlag(&r.profilesAddress),
		launch.LogFormatFlag(&r.logFormat),
		&cli.BoolFlag{Name: "debug", Destination: &r.debug, Usage: "log more"},
		&cli.IntFlag{Name: "debug-level", Destination: &r.debugLevel, Usage: "`LEVEL` of the Kubernetes client's log, with --debug"},
	}
}

// environment returns the settings that charts pass in environment variables. Each has a flag too, which --help explains.
func (r *raw) environment() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "token-ttl-required", Destination: &r.ttlNeeds, EnvVars: []string{"FLEET_REGISTRATION_TOKEN_TTL_REQUIRED"}, Usage: "refuse ClusterRegistrationTokens that never expire"},
		&cli.BoolFlag{Name: "disable-bundles", Destination: &r.disableBundles, EnvVars: []string{"FLEET_DISABLE_BUNDLES"}, Usage: "leave Bundles, BundleDeployments and Contents to Fleet's own controllers, beside this hub"},
		&cli.BoolFlag{Name: "clusternet", Destination: &r.clusternet, EnvVars: []string{"FLEET_CLUSTERNET"}, Usage: "let unchanged agents of Clusternet register with this hub"},
		&cli.BoolFlag{Name: "leave-admission-policies", Destination: &r.leaveAdmission, EnvVars: []string{"FLEET_LEAVE_ADMISSION_POLICIES"}, Usage: "leave the hub's admission policies to others, such as the chart, and only watch them"},
		&cli.IntFlag{Name: "agent-replicas", Destination: &r.agentReplicas, EnvVars: []string{"FLEET_AGENT_REPLICA_COUNT"}, Usage: "`NUMBER` of replicas of the agents the hub installs", DefaultText: "1"},
		&cli.BoolFlag{Name: "disable-agent-probes", Destination: &r.disableAgentProbes, EnvVars: []string{"FLEET_DISABLE_AGENT_PROBES"}, Usage: "install agents without probes, for an agent image that does not serve /healthz and /readyz"},
		&cli.BoolFlag{Name: "agent-metrics", Destination: &r.serveAgentMetrics, EnvVars: []string{"FLEET_AGENT_METRICS"}, Usage: "install agents that serve Prometheus metrics at port 8080"},
		&cli.BoolFlag{Name: "fleet-metrics", Destination: &r.fleetMetrics, EnvVars: []string{"FLEET_METRICS"}, Usage: "serve the metrics of Clusters, ClusterGroups, Bundles and BundleDeployments under the names of Fleet's own controllers too, with series for each object"},
		&cli.BoolFlag{Name: "propagate-debug", Destination: &r.propagateDebug, EnvVars: []string{"FLEET_PROPAGATE_DEBUG_SETTINGS_TO_AGENTS"}, Usage: "with --debug: make the agents the hub installs log more too"},
		&cli.BoolFlag{Name: "disable-agent-security-context", Destination: &r.disableSecurityContext, EnvVars: []string{"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT"}, Usage: "with --propagate-debug: install agents without security contexts, for debuggers"},
	}
}

// config validates the flags and returns the configuration, or all errors at once.
func (r *raw) config() (config, error) {
	client, errClient := launch.RESTConfig(r.kubeconfig)
	identity, errIdentity := r.election.Identity()
	times, errTimes := r.election.Times("CATTLE")
	agents, errAgents := r.agentElection.Times("FLEET_AGENT")
	err := errors.Join(r.checkNamespace(), errClient, errIdentity, errTimes, errAgents, r.checkReplicas())
	if err != nil {
		return config{}, err
	}
	return config{
		metricsAddress:  r.metricsAddress,
		healthAddress:   r.healthAddress,
		profilesAddress: r.profilesAddress,
		election:        leader.Config{Client: client, Namespace: r.namespace, Name: leaseName, Identity: identity, Times: times},
		hub: hub.Options{
			RESTConfig:       client,
			SystemNamespace:  r.namespace,
			DisableBootstrap: r.disableBootstrap,
			DisableBundles:   r.disableBundles,
			Clusternet:       r.clusternet,
			LeaveAdmission:   r.leaveAdmission,
			TokenTTLRequired: r.ttlNeeds,
			FleetMetrics:     r.fleetMetrics,
			Agent:            r.agents(agents),
		},
	}, nil
}

func (r *raw) agents(times leader.Times) app.AgentSettings {
	debug := r.debug && r.propagateDebug
	settings := app.AgentSettings{
		Replicas:               r.agentReplicas,
		LeaseDuration:          times.LeaseDuration,
		RenewDeadline:          times.RenewDeadline,
		RetryPeriod:            times.RetryPeriod,
		DisableProbes:          r.disableAgentProbes,
		ServeMetrics:           r.serveAgentMetrics,
		Debug:                  debug,
		LogJSON:                r.logFormat == launch.LogJSON,
		DisableSecurityContext: r.propagateDebug && r.disableSecurityContext,
	}
	if debug {
		settings.DebugLevel = r.debugLevel
	}
	return settings
}

func (r *raw) checkNamespace() error {
	if r.namespace == "" {
		return errors.New("the hub's namespace is not set: pass --namespace or set the environment variable NAMESPACE")
	}
	if why := validation.ValidateNamespaceName(r.namespace, false); len(why) > 0 {
		return fmt.Errorf("the hub's namespace %q is not a valid name of a namespace: %s", r.namespace, why[0])
	}
	return nil
}

func (r *raw) checkReplicas() error {
	if r.agentReplicas < 0 {
		return fmt.Errorf("FLEET_AGENT_REPLICA_COUNT is %d: it must not be negative", r.agentReplicas)
	}
	return nil
}
