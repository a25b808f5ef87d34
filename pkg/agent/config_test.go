package agent

import (
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/pkg/agent/timing"
	"github.com/muster-fleet/muster/pkg/leader"
)

func TestConfigDefaults(t *testing.T) {
	c, err := Config{Member: &rest.Config{}, Namespace: "ns", LeaderElection: &LeaderElection{Identity: "me"}}.withDefaults()
	require.NoError(t, err)
	assert.Zero(t, c.CheckinInterval, "the default depends on where the heartbeats are sent")
	assert.Equal(t, "dev", c.Version)
	assert.Equal(t, logrus.StandardLogger(), c.Log)
	assert.NotNil(t, c.Clock)
	assert.Equal(t, timing.Default(), *c.Timing)
	assert.Equal(t, LeaderElection{Identity: "me", Times: leader.Times{LeaseDuration: 30 * time.Second, RenewDeadline: 25 * time.Second, RetryPeriod: 10 * time.Second}}, *c.LeaderElection)
}

func TestConfigValidate(t *testing.T) {
	good := func() Config {
		return Config{Member: &rest.Config{}, Namespace: "ns", LeaderElection: &LeaderElection{Identity: "me"}}
	}
	for want, spoil := range map[string]func(*Config){
		"Config.Member is nil":                           func(c *Config) { c.Member = nil },
		"Config.Namespace is empty":                      func(c *Config) { c.Namespace = "" },
		`"Not A Namespace" is not a name of a namespace`: func(c *Config) { c.Namespace = "Not A Namespace" },
		"the check-in interval is -1s":                   func(c *Config) { c.CheckinInterval = -time.Second },
		"leader election needs an identity":              func(c *Config) { c.LeaderElection.Identity = "" },
		"retry period is -1s":                            func(c *Config) { c.LeaderElection.RetryPeriod = -time.Second },
		"must be longer than 1.2 times the retry":        func(c *Config) { c.LeaderElection.RenewDeadline = 11 * time.Second },
		"lease duration (5s) must be longer than the":    func(c *Config) { c.LeaderElection.LeaseDuration = 5 * time.Second },
	} {
		c := good()
		spoil(&c)
		require.ErrorContains(t, c.Validate(), want)
		require.ErrorContains(t, Run(t.Context(), c), want)
	}
	require.NoError(t, good().Validate())
}
