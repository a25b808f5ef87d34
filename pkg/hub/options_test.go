package hub

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/controllers/app"
)

func TestOptionsDefaults(t *testing.T) {
	_, err := Options{}.complete()
	require.ErrorContains(t, err, "Options.RESTConfig is missing")
	require.ErrorContains(t, Run(t.Context(), Options{}), "Options.RESTConfig is missing")

	o, err := Options{RESTConfig: &rest.Config{}}.complete()
	require.NoError(t, err)
	assert.Equal(t, "cattle-fleet-system", o.SystemNamespace)
	assert.Equal(t, 50, o.Workers)
	assert.Equal(t, clock.RealClock{}, o.Clock)
	assert.Equal(t, app.Backoff{Base: 2 * time.Second, Max: 5 * time.Minute}, o.ImportBackoff)
	assert.Regexp(t, `^muster-fleet/fleet-agent:.+`, o.Agent.Image)
	require.NotNil(t, o.OnReady)
	o.OnReady()
}

func TestOptionsAreKept(t *testing.T) {
	ready := false
	fake := clocktesting.NewFakeClock(time.Unix(0, 0))
	given := Options{
		RESTConfig: &rest.Config{Host: "x"}, SystemNamespace: "ns", Workers: 3, Clock: fake,
		ImportBackoff: app.Backoff{Base: 1, Max: 2}, FarewellGrace: 3, Agent: app.AgentSettings{Image: "image", Replicas: 2},
		DisableBootstrap: true, TokenTTLRequired: true, OnReady: func() { ready = true },
	}
	o, err := given.complete()
	require.NoError(t, err)
	o.OnReady()
	assert.True(t, ready)
	o.OnReady, given.OnReady, o.OnStandby, o.OnElected = nil, nil, nil, nil
	assert.Equal(t, given, o)
}
