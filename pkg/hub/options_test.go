package hub

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/muster-fleet/muster/pkg/controllers/app"
	"github.com/muster-fleet/muster/pkg/leader"
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

func TestOptions_invalidNumbers(t *testing.T) {
	for want, o := range map[string]Options{
		"Options.Workers is -1: it must not be negative":              {Workers: -1},
		"Options.FarewellGrace is -1s: it must not be negative":       {FarewellGrace: -time.Second},
		"Options.Delays.Repair is -1s: it must not be negative":       {Delays: app.Delays{Repair: -time.Second}},
		"Options.ImportBackoff is from 0s to 1m0s: set both, or none": {ImportBackoff: app.Backoff{Max: time.Minute}},
		"Options.ImportBackoff is from 1m0s to 1s: set both, or none": {ImportBackoff: app.Backoff{Base: time.Minute, Max: time.Second}},
	} {
		o.RESTConfig = &rest.Config{}
		_, err := o.complete()
		assert.EqualError(t, err, want)
	}
}

// A program that embeds the hub uses the types of the fields.
func TestOptionsTypesArePromised(t *testing.T) {
	page, err := os.ReadFile("../../docs/releases.md")
	require.NoError(t, err)
	const module = "github.com/muster-fleet/muster/pkg/"
	seen := map[reflect.Type]bool{}
	var check func(reflect.Type)
	check = func(of reflect.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		inside, isOurs := strings.CutPrefix(of.PkgPath(), module)
		first, _, _ := strings.Cut(inside, "/")
		if of.Name() != "" && isOurs && !slices.Contains([]string{"hub", "config", "apis", "generated"}, first) {
			assert.Contains(t, string(page), "`"+of.String()+"`")
		}
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			check(of.Elem())
		case reflect.Struct:
			if of.Name() != "" && !isOurs {
				return // of a library
			}
			for field := range of.NumField() {
				check(of.Field(field).Type)
			}
		default: // it has no types of its own
		}
	}
	check(reflect.TypeFor[Options]())
	assert.Contains(t, seen, reflect.TypeFor[leader.Config]())
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
	o.OnReady, given.OnReady, o.OnStandby, o.OnElected, o.OnWatching = nil, nil, nil, nil, nil
	assert.Equal(t, given, o)
}
