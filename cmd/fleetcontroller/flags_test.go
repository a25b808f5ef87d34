package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://hub.example:6443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// parse runs the program with a run that only notes what it was given.
func parse(t *testing.T, environment map[string]string, args ...string) (config, error) {
	t.Helper()
	for _, name := range []string{"NAMESPACE", "POD_NAME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"} {
		t.Setenv(name, "")
		require.NoError(t, os.Unsetenv(name))
	}
	for name, value := range environment {
		t.Setenv(name, value)
	}
	var got config
	app := newApp(func(_ context.Context, c config) error { got = c; return nil })
	err := app.RunContext(t.Context(), append([]string{"fleetcontroller"}, args...))
	return got, err
}

func kubeconfigFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	return file
}

type env = map[string]string

func TestFlags(t *testing.T) {
	const host = "https://hub.example:6443"
	propagate := env{"FLEET_PROPAGATE_DEBUG_SETTINGS_TO_AGENTS": "true"}
	debug := []string{"--debug", "--debug-level", "4"}
	base := []string{"--kubeconfig", kubeconfigFile(t), "--namespace", "hub-system"}
	for name, test := range map[string]struct {
		environment map[string]string
		args        []string
		read        func(config) any
		want        any
	}{
		"--kubeconfig": {nil, nil, func(c config) any { return []string{c.hub.RESTConfig.Host, c.election.Client.Host} }, []string{host, host}},
		"--namespace": {
			nil, nil, func(c config) any { return []string{c.hub.SystemNamespace, c.election.Namespace} }, []string{"hub-system", "hub-system"},
		},
		"--config-version":           {nil, []string{"--config-version", "v1"}, func(c config) any { return c.hub.ConfigVersion }, "v1"},
		"FLEET_CONFIG_VERSION":       {env{"FLEET_CONFIG_VERSION": "v1"}, nil, func(c config) any { return c.hub.ConfigVersion }, "v1"},
		"--disable-bootstrap":        {nil, []string{"--disable-bootstrap"}, func(c config) any { return c.hub.DisableBootstrap }, true},
		"--clusternet":               {nil, []string{"--clusternet"}, func(c config) any { return c.hub.Clusternet }, true},
		"FLEET_CLUSTERNET":           {env{"FLEET_CLUSTERNET": "true"}, nil, func(c config) any { return c.hub.Clusternet }, true},
		"--disable-bundles":          {nil, []string{"--disable-bundles"}, func(c config) any { return c.hub.DisableBundles }, true},
		"FLEET_DISABLE_BUNDLES":      {env{"FLEET_DISABLE_BUNDLES": "true"}, nil, func(c config) any { return c.hub.DisableBundles }, true},
		"FLEET_METRICS":              {env{"FLEET_METRICS": "true"}, nil, func(c config) any { return c.hub.FleetMetrics }, true},
		"FLEET_AGENT_METRICS":        {env{"FLEET_AGENT_METRICS": "true"}, nil, func(c config) any { return c.hub.Agent.ServeMetrics }, true},
		"FLEET_LOG_FORMAT":           {env{"FLEET_LOG_FORMAT": "json"}, nil, func(c config) any { return c.hub.Agent.LogJSON }, true},
		"FLEET_DISABLE_AGENT_PROBES": {env{"FLEET_DISABLE_AGENT_PROBES": "true"}, nil, func(c config) any { return c.hub.Agent.DisableProbes }, true},
		"FLEET_AGENT_REPLICA_COUNT":  {env{"FLEET_AGENT_REPLICA_COUNT": "3"}, nil, func(c config) any { return c.hub.Agent.Replicas }, 3},
		"FLEET_HEALTH_BIND_ADDRESS":  {env{"FLEET_HEALTH_BIND_ADDRESS": ":8081"}, nil, func(c config) any { return c.healthAddress }, ":8081"},
		"--health-bind-address":      {nil, []string{"--health-bind-address", ":1"}, func(c config) any { return c.healthAddress }, ":1"},
		"POD_NAME":                   {env{"POD_NAME": "pod-1"}, nil, func(c config) any { return c.election.Identity }, "pod-1"},
		"--debug stays with the hub": {nil, debug, func(c config) any { return []any{c.hub.Agent.Debug, c.hub.Agent.DebugLevel} }, []any{false, 0}},
		"--debug is passed on":       {propagate, debug, func(c config) any { return []any{c.hub.Agent.Debug, c.hub.Agent.DebugLevel} }, []any{true, 4}},
		"times of leases by default": {
			nil, nil, func(c config) any { return []any{c.hub.Agent.LeaseDuration, c.election.LeaseDuration} },
			[]any{30 * time.Second, 30 * time.Second},
		},
		"FLEET_REGISTRATION_TOKEN_TTL_REQUIRED": {
			env{"FLEET_REGISTRATION_TOKEN_TTL_REQUIRED": "true"}, nil, func(c config) any { return c.hub.TokenTTLRequired }, true,
		},
		"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT": {
			env{"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT": "true", "FLEET_PROPAGATE_DEBUG_SETTINGS_TO_AGENTS": "true"},
			nil,
			func(c config) any { return c.hub.Agent.DisableSecurityContext }, true,
		},
		"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT needs --propagate-debug": {
			env{"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT": "true"}, nil, func(c config) any { return c.hub.Agent.DisableSecurityContext }, false,
		},
		"--profiling-bind-address": {
			env{"FLEET_PROFILING_BIND_ADDRESS": ":1"},
			[]string{"--profiling-bind-address", "localhost:6060"},
			func(c config) any { return c.profilesAddress }, "localhost:6060",
		},
		"off by default": {nil, nil, func(c config) any {
			return []any{c.healthAddress, c.profilesAddress, c.hub.Agent.DisableProbes, c.hub.Clusternet, c.hub.DisableBundles}
		}, []any{"", "", false, false, false}},
		"FLEET_AGENT_ELECTION": {
			env{"FLEET_AGENT_ELECTION_LEASE_DURATION": "60s", "FLEET_AGENT_ELECTION_RENEW_DEADLINE": "40s", "FLEET_AGENT_ELECTION_RETRY_PERIOD": "5s"},
			nil,
			func(c config) any {
				return []any{c.hub.Agent.LeaseDuration, c.hub.Agent.RenewDeadline, c.hub.Agent.RetryPeriod}
			},
			[]any{60 * time.Second, 40 * time.Second, 5 * time.Second},
		},
		"CATTLE_ELECTION": {
			env{"CATTLE_ELECTION_LEASE_DURATION": "61s", "CATTLE_ELECTION_RENEW_DEADLINE": "41s", "CATTLE_ELECTION_RETRY_PERIOD": "6s"},
			nil,
			func(c config) any {
				return []any{c.election.LeaseDuration, c.election.RenewDeadline, c.election.RetryPeriod}
			},
			[]any{61 * time.Second, 41 * time.Second, 6 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(t, test.environment, append(base, test.args...)...)
			require.NoError(t, err)
			assert.Equal(t, test.want, test.read(got))
		})
	}
}

func TestNamespaceFromTheEnvironment(t *testing.T) {
	got, err := parse(t, env{"NAMESPACE": "cattle-fleet-system", "KUBECONFIG": kubeconfigFile(t)})
	require.NoError(t, err)
	assert.Equal(t, "cattle-fleet-system", got.hub.SystemNamespace)
	assert.Equal(t, "fleet-agentmanagement-lock", got.election.Name)
}

func TestSubCommandsOfFleetCharts(t *testing.T) {
	environment := env{"NAMESPACE": "cattle-fleet-system", "KUBECONFIG": kubeconfigFile(t)}
	got, err := parse(t, environment, "agentmanagement", "--disable-bootstrap", "--debug", "--debug-level", "2")
	require.NoError(t, err)
	assert.True(t, got.hub.DisableBootstrap)
	assert.Equal(t, "cattle-fleet-system", got.hub.SystemNamespace)
}

func TestFlagsBeforeTheSubCommand(t *testing.T) {
	environment := env{"NAMESPACE": "cattle-fleet-system", "KUBECONFIG": kubeconfigFile(t)}
	for _, flags := range [][]string{{"--debug"}, {"--disable-bootstrap"}, {"--namespace", "elsewhere"}, {"--debug-level=2"}} {
		got, err := parse(t, environment, append(flags, "agentmanagement", "--debug")...)
		require.ErrorContains(t, err, "there are flags before agentmanagement, which do not reach it: put them behind it")
		assert.Zero(t, got)
	}
}

func TestFlagErrors(t *testing.T) {
	file := kubeconfigFile(t)
	for name, test := range map[string]struct {
		environment map[string]string
		args        []string
		want        string
	}{
		"no namespace":       {nil, []string{"--kubeconfig", file}, "pass --namespace or set the environment variable NAMESPACE"},
		"impossible name":    {nil, []string{"--kubeconfig", file, "--namespace", "Hub_System"}, `"Hub_System" is not a valid name of a namespace`},
		"no cluster":         {nil, []string{"--namespace", "n"}, "pass --kubeconfig, set KUBECONFIG or run in a pod"},
		"missing kubeconfig": {nil, []string{"--namespace", "n", "--kubeconfig", "/nowhere"}, "/nowhere"},
		"negative replicas":  {env{"FLEET_AGENT_REPLICA_COUNT": "-1"}, []string{"--namespace", "n", "--kubeconfig", file}, "FLEET_AGENT_REPLICA_COUNT is -1"},
		"no duration":        {env{"CATTLE_ELECTION_LEASE_DURATION": "1d"}, []string{"--namespace", "n", "--kubeconfig", file}, `CATTLE_ELECTION_LEASE_DURATION is "1d"`},
		"times that contradict": {
			env{"FLEET_AGENT_ELECTION_LEASE_DURATION": "5s"},
			[]string{"--namespace", "n", "--kubeconfig", file},
			"the lease duration (5s) must be longer than the renew deadline (25s)",
		},
		"unknown flag": {nil, []string{"--no-such-flag"}, "no-such-flag; see --help"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, test.environment, test.args...)
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestFlagUsageHasOneDefault(t *testing.T) {
	for _, f := range newApp(nil).Flags {
		assert.LessOrEqual(t, strings.Count(f.String(), "default: "), 1, f)
	}
}
