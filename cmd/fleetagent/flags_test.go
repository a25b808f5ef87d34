package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/muster-fleet/muster/internal/check"
	"github.com/muster-fleet/muster/pkg/agent"
)

func kubeconfigFile(t *testing.T, host string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"x",
"clusters":[{"name":"x","cluster":{"server":"https://%s"}}],"users":[{"name":"x","user":{"token":"t"}}],
"contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}]}`, host), 0o600))
	return file
}

// clean unsets the environment variables of the agent.
func clean(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"NAMESPACE", "AGENT_SCOPE", "CHECKIN_INTERVAL", "HEARTBEAT_LEASE", "CATTLE_ELECTION_LEASE_DURATION", "CATTLE_ELECTION_RENEW_DEADLINE",
		"CATTLE_ELECTION_RETRY_PERIOD", "POD_NAME", "BUNDLEDEPLOYMENT_RECONCILER_WORKERS", "DRIFT_RECONCILER_WORKERS", "HOSTNAME", "GENERATION", "KUBECONFIG", "KUBERNETES_SERVICE_HOST",
	} {
		t.Setenv(name, "") // restores it after the test
		require.NoError(t, os.Unsetenv(name))
	}
}

// parsed returns the agent's configuration from the arguments.
func parsed(t *testing.T, args ...string) (agent.Config, error) {
	t.Helper()
	var got agent.Config
	app := newApp(func(_ context.Context, c agent.Config) error { got = c; return nil })
	err := app.RunContext(t.Context(), append([]string{"fleetagent"}, args...))
	return got, err
}

func TestFlagsChangeTheConfiguration(t *testing.T) {
	other := kubeconfigFile(t, "other")
	rows := map[string]struct {
		args []string
		env  map[string]string
		read func(agent.Config) any
		want any
	}{
		"--kubeconfig":       {args: []string{"--kubeconfig", other}, read: host, want: "https://other"},
		"KUBECONFIG":         {env: map[string]string{"KUBECONFIG": other}, read: host, want: "https://other"},
		"--namespace":        {args: []string{"--namespace", "mine"}, read: func(c agent.Config) any { return c.Namespace }, want: "mine"},
		"NAMESPACE":          {env: map[string]string{"NAMESPACE": "theirs"}, read: func(c agent.Config) any { return c.Namespace }, want: "theirs"},
		"--agent-scope":      {args: []string{"--agent-scope", "s"}, read: func(c agent.Config) any { return c.Scope }, want: "s"},
		"AGENT_SCOPE":        {env: map[string]string{"AGENT_SCOPE": "s"}, read: func(c agent.Config) any { return c.Scope }, want: "s"},
		"--checkin-interval": {args: []string{"--checkin-interval", "90s"}, read: checkin, want: 90 * time.Second},
		"--credential-lifetime": {
			args: []string{"--credential-lifetime", "48h"}, read: func(c agent.Config) any { return c.CredentialLifetime }, want: 48 * time.Hour,
		},
		"CREDENTIAL_LIFETIME": {
			env: map[string]string{"CREDENTIAL_LIFETIME": "48h"}, read: func(c agent.Config) any { return c.CredentialLifetime }, want: 48 * time.Hour,
		},
		"--heartbeat-lease": {args: []string{"--heartbeat-lease=false"}, read: lease, want: false},
		"HEARTBEAT_LEASE":   {env: map[string]string{"HEARTBEAT_LEASE": "false"}, read: lease, want: false},
		"CHECKIN_INTERVAL":  {env: map[string]string{"CHECKIN_INTERVAL": "2m"}, read: checkin, want: 2 * time.Minute},
		"--leader-elect":    {args: []string{"--leader-elect=false"}, read: func(c agent.Config) any { return c.LeaderElection == nil }, want: true},
		"CATTLE_ELECTION_LEASE_DURATION": {
			env:  map[string]string{"CATTLE_ELECTION_LEASE_DURATION": "60s"},
			read: func(c agent.Config) any { return c.LeaderElection.LeaseDuration }, want: time.Minute,
		},
		"CATTLE_ELECTION_RENEW_DEADLINE": {
			env:  map[string]string{"CATTLE_ELECTION_RENEW_DEADLINE": "20s"},
			read: func(c agent.Config) any { return c.LeaderElection.RenewDeadline }, want: 20 * time.Second,
		},
		"CATTLE_ELECTION_RETRY_PERIOD": {
			env:  map[string]string{"CATTLE_ELECTION_RETRY_PERIOD": "3s"},
			read: func(c agent.Config) any { return c.LeaderElection.RetryPeriod }, want: 3 * time.Second,
		},
		"POD_NAME": {env: map[string]string{"POD_NAME": "pod-1"}, read: func(c agent.Config) any { return c.LeaderElection.Identity }, want: "pod-1"},
		"POD_NAME with hostNetwork, which makes HOSTNAME the node's": {
			env: map[string]string{"POD_NAME": "pod-1", "HOSTNAME": "node-1"}, read: func(c agent.Config) any { return c.Pod }, want: "pod-1",
		},
		"HOSTNAME":     {env: map[string]string{"HOSTNAME": "pod-2"}, read: func(c agent.Config) any { return c.Pod }, want: "pod-2"},
		"--generation": {args: []string{"--generation", "managed/1"}, read: func(c agent.Config) any { return c.Generation }, want: "managed/1"},
		"GENERATION":   {env: map[string]string{"GENERATION": "uid/2"}, read: func(c agent.Config) any { return c.Generation }, want: "uid/2"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			clean(t)
			t.Setenv("NAMESPACE", "cattle-fleet-system")
			t.Setenv("KUBECONFIG", kubeconfigFile(t, "default"))
			without, err := parsed(t)
			require.NoError(t, err)
			for key, value := range row.env {
				t.Setenv(key, value)
			}
			with, err := parsed(t, row.args...)
			require.NoError(t, err)
			assert.Equal(t, row.want, row.read(with))
			assert.NotEqual(t, row.read(without), row.read(with), "the default differs")
		})
	}
}

func host(c agent.Config) any    { return c.Member.Host }
func checkin(c agent.Config) any { return c.CheckinInterval }
func lease(c agent.Config) any   { return c.HeartbeatLease }

func TestFlagsHaveDefaults(t *testing.T) {
	clean(t)
	hostname, err := os.Hostname()
	require.NoError(t, err)
	for _, interval := range []string{"", "0", "0s"} {
		t.Setenv("CHECKIN_INTERVAL", interval)
		c, err := parsed(t, "--namespace", "ns", "--kubeconfig", kubeconfigFile(t, "hub"))
		require.NoError(t, err)
		assert.Zero(t, c.CheckinInterval, "the default of the agent: 15 minutes")
		assert.Equal(t, fmt.Sprintf("%s_%d", hostname, os.Getpid()), c.LeaderElection.Identity)
		assert.Equal(t, "dev", c.Version)
	}
}

func TestCheckinIntervalThatIsTooShort(t *testing.T) {
	clean(t)
	for interval, want := range map[string]time.Duration{"15ms": 0, "999ms": 0, "1s": time.Second} {
		t.Setenv("CHECKIN_INTERVAL", interval)
		c, err := parsed(t, "--namespace", "ns", "--kubeconfig", kubeconfigFile(t, "hub"))
		require.NoError(t, err)
		assert.Equal(t, want, c.CheckinInterval, interval)
	}
}

func TestFlagErrors(t *testing.T) {
	file := kubeconfigFile(t, "hub")
	rows := map[string]struct {
		args []string
		want string
	}{
		"no namespace":          {[]string{"--kubeconfig", file}, "pass --namespace or set the environment variable NAMESPACE"},
		"no cluster":            {[]string{"--namespace", "ns"}, "pass --kubeconfig, set KUBECONFIG or run in a pod"},
		"no such file":          {[]string{"--namespace", "ns", "--kubeconfig", "/does/not/exist"}, "/does/not/exist"},
		"an interval of words":  {[]string{"--namespace", "ns", "--kubeconfig", file, "--checkin-interval", "often"}, `--checkin-interval is "often": it must be a duration like 15m`},
		"a negative interval":   {[]string{"--namespace", "ns", "--kubeconfig", file, "--checkin-interval", "-5m"}, `--checkin-interval is "-5m"`},
		"a bad lease":           {[]string{"--namespace", "ns", "--kubeconfig", file, "--lease-duration", "x"}, "CATTLE_ELECTION_LEASE_DURATION"},
		"a lease that is short": {[]string{"--namespace", "ns", "--kubeconfig", file, "--lease-duration", "1s"}, "must be longer than the renew deadline"},
		"workers of words":      {[]string{"--namespace", "ns", "--kubeconfig", file, "--workers", "many"}, `--workers is "many": it must be a positive number`},
		"no drift workers":      {[]string{"--namespace", "ns", "--kubeconfig", file, "--drift-workers", "0"}, `--drift-workers is "0"`},
		"an unknown flag":       {[]string{"--nonsense"}, "nonsense"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			clean(t)
			_, err := parsed(t, row.args...)
			require.ErrorContains(t, err, row.want)
		})
	}
}

func TestAppReturnsTheErrorOfTheAgent(t *testing.T) {
	clean(t)
	app := newApp(func(_ context.Context, c agent.Config) error {
		assert.Nil(t, c.Metrics, "no metrics without an address")
		return assert.AnError
	})
	err := app.RunContext(t.Context(), []string{"fleetagent", "--namespace", "ns", "--kubeconfig", kubeconfigFile(t, "hub")})
	require.ErrorIs(t, err, assert.AnError)
}

func TestDebugFlags(t *testing.T) {
	clean(t)
	before := logrus.GetLevel()
	defer logrus.SetLevel(before)
	_, err := parsed(t, "--namespace", "ns", "--kubeconfig", kubeconfigFile(t, "hub"), "--debug", "--debug-level", "2")
	require.NoError(t, err)
	assert.Equal(t, logrus.DebugLevel, logrus.GetLevel())
}

func TestUnknownCommand(t *testing.T) {
	clean(t)
	_, err := parsed(t, "--namespace", "ns", "--kubeconfig", kubeconfigFile(t, "hub"), "chekc")
	require.EqualError(t, err, `there is no command "chekc"; see --help`)
}

func TestCheckUsage(t *testing.T) {
	file := kubeconfigFile(t, "hub")
	rows := map[string]struct {
		args []string
		want string
	}{
		"no namespace":    {[]string{"--kubeconfig", file, "check"}, "pass --namespace"},
		"no cluster":      {[]string{"--namespace", "ns", "check"}, "pass --kubeconfig, set KUBECONFIG or run in a pod"},
		"another format":  {[]string{"--namespace", "ns", "--kubeconfig", file, "check", "-o", "xml"}, `--output is "xml": it must be wide or json`},
		"an argument":     {[]string{"--namespace", "ns", "--kubeconfig", file, "check", "west"}, `check takes no argument "west"`},
		"an unknown flag": {[]string{"--namespace", "ns", "--kubeconfig", file, "check", "--nonsense"}, "nonsense"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			clean(t)
			_, err := parsed(t, row.args...)
			require.ErrorContains(t, err, row.want)
			var exit cli.ExitCoder
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, check.ExitUsage, exit.ExitCode())
		})
	}
}

// The check fails, with its own exit code, if the API server of the member does not answer.
func TestCheckOfAMemberThatDoesNotAnswer(t *testing.T) {
	clean(t)
	app := newApp(func(context.Context, agent.Config) error { return nil })
	var out bytes.Buffer
	app.Writer = &out
	err := app.RunContext(t.Context(), []string{"fleetagent", "--namespace", "ns", "--kubeconfig", kubeconfigFile(t, "127.0.0.1:9"), "check"})
	var exit cli.ExitCoder
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, check.ExitFailed, exit.ExitCode())
	assert.Empty(t, err.Error())
	assert.Contains(t, out.String(), "Failed: Agent on the member (member-api): the member's API server: ")
}
