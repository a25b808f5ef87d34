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

func TestFlags(t *testing.T) {
	file := kubeconfigFile(t)
	base := []string{"--kubeconfig", file, "--namespace", "hub-system"}
	for name, test := range map[string]struct {
		environment map[string]string
		args        []string
		check       func(*testing.T, config)
	}{
		"--kubeconfig": {nil, nil, func(t *testing.T, c config) {
			assert.Equal(t, "https://hub.example:6443", c.hub.RESTConfig.Host)
			assert.Equal(t, "https://hub.example:6443", c.election.Client.Host)
		}},
		"--namespace": {nil, nil, func(t *testing.T, c config) {
			assert.Equal(t, "hub-system", c.hub.SystemNamespace)
			assert.Equal(t, "hub-system", c.election.Namespace)
		}},
		"--disable-bootstrap": {nil, []string{"--disable-bootstrap"}, func(t *testing.T, c config) { assert.True(t, c.hub.DisableBootstrap) }},
		"--debug alone stays with the hub": {nil, []string{"--debug", "--debug-level", "4"}, func(t *testing.T, c config) {
			assert.False(t, c.hub.Agent.Debug)
			assert.Zero(t, c.hub.Agent.DebugLevel)
		}},
		"--debug is passed on when asked": {
			map[string]string{"FLEET_PROPAGATE_DEBUG_SETTINGS_TO_AGENTS": "true"},
			[]string{"--debug", "--debug-level", "4"},
			func(t *testing.T, c config) {
				assert.True(t, c.hub.Agent.Debug)
				assert.Equal(t, 4, c.hub.Agent.DebugLevel)
			},
		},
		"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT needs the gate": {
			map[string]string{"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT": "true"},
			nil,
			func(t *testing.T, c config) { assert.False(t, c.hub.Agent.DisableSecurityContext) },
		},
		"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT": {
			map[string]string{"FLEET_DEBUG_DISABLE_SECURITY_CONTEXT": "true", "FLEET_PROPAGATE_DEBUG_SETTINGS_TO_AGENTS": "true"},
			nil,
			func(t *testing.T, c config) { assert.True(t, c.hub.Agent.DisableSecurityContext) },
		},
		"FLEET_REGISTRATION_TOKEN_TTL_REQUIRED": {
			map[string]string{"FLEET_REGISTRATION_TOKEN_TTL_REQUIRED": "true"},
			nil,
			func(t *testing.T, c config) { assert.True(t, c.hub.TokenTTLRequired) },
		},
		"--clusternet": {nil, []string{"--clusternet"}, func(t *testing.T, c config) { assert.True(t, c.hub.Clusternet) }},
		"Clusternet is off unless the hub is told otherwise": {nil, nil, func(t *testing.T, c config) { assert.False(t, c.hub.Clusternet) }},
		"FLEET_CLUSTERNET": {
			map[string]string{"FLEET_CLUSTERNET": "true"},
			nil,
			func(t *testing.T, c config) { assert.True(t, c.hub.Clusternet) },
		},
		"--disable-bundles": {nil, []string{"--disable-bundles"}, func(t *testing.T, c config) { assert.True(t, c.hub.DisableBundles) }},
		"FLEET_DISABLE_BUNDLES": {
			map[string]string{"FLEET_DISABLE_BUNDLES": "true"},
			nil,
			func(t *testing.T, c config) { assert.True(t, c.hub.DisableBundles) },
		},
		"FLEET_HEALTH_BIND_ADDRESS": {
			map[string]string{"FLEET_HEALTH_BIND_ADDRESS": ":8081"},
			nil,
			func(t *testing.T, c config) { assert.Equal(t, ":8081", c.healthAddress) },
		},
		"--health-bind-address": {nil, []string{"--health-bind-address", ":1"}, func(t *testing.T, c config) { assert.Equal(t, ":1", c.healthAddress) }},
		"--profiling-bind-address": {
			map[string]string{"FLEET_PROFILING_BIND_ADDRESS": ":1"},
			[]string{"--profiling-bind-address", "localhost:6060"},
			func(t *testing.T, c config) { assert.Equal(t, "localhost:6060", c.profilesAddress) },
		},
		"nobody is answered unless asked for": {nil, nil, func(t *testing.T, c config) {
			assert.Empty(t, c.healthAddress)
			assert.Empty(t, c.profilesAddress)
			assert.False(t, c.hub.Agent.DisableProbes)
		}},
		"FLEET_METRICS": {
			map[string]string{"FLEET_METRICS": "true"},
			nil,
			func(t *testing.T, c config) { assert.True(t, c.hub.FleetMetrics) },
		},
		"FLEET_AGENT_METRICS": {
			map[string]string{"FLEET_AGENT_METRICS": "true"},
			nil,
			func(t *testing.T, c config) { assert.True(t, c.hub.Agent.ServeMetrics) },
		},
		"FLEET_LOG_FORMAT": {
			map[string]string{"FLEET_LOG_FORMAT": "json"},
			nil,
			func(t *testing.T, c config) { assert.True(t, c.hub.Agent.LogJSON) },
		},
		"FLEET_DISABLE_AGENT_PROBES": {
			map[string]string{"FLEET_DISABLE_AGENT_PROBES": "true"},
			nil,
			func(t *testing.T, c config) { assert.True(t, c.hub.Agent.DisableProbes) },
		},
		"Bundles are the hub's unless it is told otherwise": {nil, nil, func(t *testing.T, c config) { assert.False(t, c.hub.DisableBundles) }},
		"FLEET_AGENT_REPLICA_COUNT": {
			map[string]string{"FLEET_AGENT_REPLICA_COUNT": "3"},
			nil,
			func(t *testing.T, c config) { assert.Equal(t, 3, c.hub.Agent.Replicas) },
		},
		"FLEET_AGENT_ELECTION": {
			map[string]string{
				"FLEET_AGENT_ELECTION_LEASE_DURATION": "60s", "FLEET_AGENT_ELECTION_RENEW_DEADLINE": "40s", "FLEET_AGENT_ELECTION_RETRY_PERIOD": "5s",
			},
			nil,
			func(t *testing.T, c config) {
				assert.Equal(t, 60*time.Second, c.hub.Agent.LeaseDuration)
				assert.Equal(t, 40*time.Second, c.hub.Agent.RenewDeadline)
				assert.Equal(t, 5*time.Second, c.hub.Agent.RetryPeriod)
			},
		},
		"an unset lease time has its default": {nil, nil, func(t *testing.T, c config) {
			assert.Equal(t, 30*time.Second, c.hub.Agent.LeaseDuration)
			assert.Equal(t, 30*time.Second, c.election.LeaseDuration)
		}},
		"CATTLE_ELECTION": {
			map[string]string{
				"CATTLE_ELECTION_LEASE_DURATION": "61s", "CATTLE_ELECTION_RENEW_DEADLINE": "41s", "CATTLE_ELECTION_RETRY_PERIOD": "6s",
			},
			nil,
			func(t *testing.T, c config) {
				assert.Equal(t, 61*time.Second, c.election.LeaseDuration)
				assert.Equal(t, 41*time.Second, c.election.RenewDeadline)
				assert.Equal(t, 6*time.Second, c.election.RetryPeriod)
			},
		},
		"POD_NAME": {map[string]string{"POD_NAME": "pod-1"}, nil, func(t *testing.T, c config) { assert.Equal(t, "pod-1", c.election.Identity) }},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(t, test.environment, append(base, test.args...)...)
			require.NoError(t, err)
			test.check(t, got)
		})
	}
}

func TestNamespaceFromTheEnvironment(t *testing.T) {
	got, err := parse(t, map[string]string{"NAMESPACE": "cattle-fleet-system", "KUBECONFIG": kubeconfigFile(t)})
	require.NoError(t, err)
	assert.Equal(t, "cattle-fleet-system", got.hub.SystemNamespace)
	assert.Equal(t, "fleet-agentmanagement-lock", got.election.Name)
}

func TestSubCommandsOfFleetCharts(t *testing.T) {
	environment := map[string]string{"NAMESPACE": "cattle-fleet-system", "KUBECONFIG": kubeconfigFile(t)}
	got, err := parse(t, environment, "agentmanagement", "--disable-bootstrap", "--debug", "--debug-level", "2")
	require.NoError(t, err)
	assert.True(t, got.hub.DisableBootstrap)
	assert.Equal(t, "cattle-fleet-system", got.hub.SystemNamespace)
}

func TestFlagsBeforeTheSubCommand(t *testing.T) {
	environment := map[string]string{"NAMESPACE": "cattle-fleet-system", "KUBECONFIG": kubeconfigFile(t)}
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
		"negative replicas":  {map[string]string{"FLEET_AGENT_REPLICA_COUNT": "-1"}, []string{"--namespace", "n", "--kubeconfig", file}, "FLEET_AGENT_REPLICA_COUNT is -1"},
		"no duration":        {map[string]string{"CATTLE_ELECTION_LEASE_DURATION": "1d"}, []string{"--namespace", "n", "--kubeconfig", file}, `CATTLE_ELECTION_LEASE_DURATION is "1d"`},
		"times that contradict": {
			map[string]string{"FLEET_AGENT_ELECTION_LEASE_DURATION": "5s"},
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
