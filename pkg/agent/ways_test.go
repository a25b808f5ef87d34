package agent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	urlA = "https://a.example.com"
	urlB = "https://b.example.com"
)

func hubConfigMap(url, ca, mode string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: registration.AgentHubConfigMap},
		Data: map[string]string{
			registration.BootstrapAPIServerURL: url, registration.BootstrapAPIServerCA: ca, registration.AgentHubTLSMode: mode,
		},
	}
}

func TestWhereTheAgentShouldGo(t *testing.T) {
	at := func(url string, mode config.TLSMode, settled string) *stored {
		return &stored{access: hubAccess{server: url, ca: []byte("ca")}, mode: mode, settled: settled}
	}
	says := func(url, mode string) *hubLocation { return parseHubLocation(hubConfigMap(url, "ca", mode)) }
	aSystem := says(urlA, "system-store")
	imported := &bootstrap{apiServerURL: urlB, apiServerCA: []byte("ca")}
	const system, strict = config.TLSModeSystemStore, config.TLSModeStrict
	rows := map[string]struct {
		from    sources
		present *stored
		want    string // "server mode", or nothing
	}{
		"nothing says anything":                              {sources{}, at(urlA, system, ""), ""},
		"the bootstrap Secret says the same":                 {sources{bootstrap: imported}, at(urlB+"/", system, ""), ""},
		"the bootstrap Secret has another address":           {sources{bootstrap: imported}, at(urlA, system, ""), urlB + " "},
		"an import changes the mode":                         {sources{bootstrap: imported, mode: strict}, at(urlB, system, ""), urlB + " strict"},
		"an import wins over the ConfigMap":                  {sources{bootstrap: imported, location: aSystem}, at(urlA, system, ""), urlB + " "},
		"an import silences the ConfigMap":                   {sources{bootstrap: imported, location: aSystem}, at(urlB, system, ""), ""},
		"the ConfigMap has another address":                  {sources{location: aSystem}, at(urlB, system, ""), urlA + " system-store"},
		"the ConfigMap said so before the present way":       {sources{location: aSystem}, at(urlB, system, aSystem.digest), ""},
		"the ConfigMap has changed since":                    {sources{location: says(urlA, "strict")}, at(urlB, system, aSystem.digest), urlA + " strict"},
		"the ConfigMap says the same":                        {sources{location: aSystem}, at(urlA, system, ""), ""},
		"the ConfigMap says another mode":                    {sources{location: says(urlA, "strict")}, at(urlA, system, ""), urlA + " strict"},
		"a ConfigMap without mode leaves it to the other":    {sources{location: says(urlA, ""), mode: strict}, at(urlB, system, ""), urlA + " strict"},
		"the other's mode changes under one without mode":    {sources{location: says(urlA, ""), mode: strict}, at(urlA, system, says(urlA, "").digest), urlA + " strict"},
		"the other's mode means nothing beside one with":     {sources{location: aSystem, mode: strict}, at(urlA, system, aSystem.digest), ""},
		"the mode alone":                                     {sources{mode: strict}, at(urlA, system, ""), urlA + " strict"},
		"the mode back to its default":                       {sources{}, at(urlA, strict, ""), urlA + " "},
		"the ConfigMap is gone, and its address stays":       {sources{mode: strict}, at(urlA, strict, aSystem.digest), ""},
		"a mode nobody knows is a way as well, to be tried":  {sources{mode: "loose"}, at(urlA, system, ""), urlA + " loose"},
		"an unusable ConfigMap is a way that has its reason": {sources{location: says("garbage", "")}, at(urlA, system, ""), "garbage "},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			got := row.from.wanted(row.present)
			if row.want == "" {
				assert.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			assert.Equal(t, row.want, got.server+" "+string(got.mode))
		})
	}
}

// Whatever the sources say, an agent that can go everywhere comes to rest after one move.
func TestWaysThatContradictEachOtherDoNotMakeTheAgentGoRound(t *testing.T) {
	var locations []*hubLocation
	for _, url := range []string{urlA, urlB} {
		for _, mode := range []string{"", "strict", "system-store"} {
			locations = append(locations, parseHubLocation(hubConfigMap(url, "ca", mode)))
		}
	}
	imported := &bootstrap{apiServerURL: urlB, apiServerCA: []byte("ca")}
	for _, location := range append(locations, nil) {
		for _, mode := range []config.TLSMode{"", config.TLSModeStrict} {
			for _, b := range []*bootstrap{nil, imported} {
				from := sources{bootstrap: b, location: location, mode: mode}
				at := &stored{access: hubAccess{server: urlA, ca: []byte("ca")}, mode: config.TLSModeSystemStore}
				if w := from.wanted(at); w != nil {
					at = at.moved(*w, from.settled())
				}
				assert.Nil(t, from.wanted(at), "%+v", from)
				from.bootstrap = nil // used up
				assert.Nil(t, from.wanted(at), "after the import: %+v", from)
				if w := from.fallback(at); w != nil {
					at = at.moved(*w, from.settled())
				}
				assert.Nil(t, from.fallback(at), "%+v", from)
				assert.Nil(t, from.wanted(at), "%+v", from)
			}
		}
	}
}

func TestWhenNothingWorksTheConfigMapCountsAgain(t *testing.T) {
	location := parseHubLocation(hubConfigMap(urlB, "", "strict"))
	at := &stored{access: hubAccess{server: urlA}, mode: config.TLSModeSystemStore, settled: location.digest}
	assert.Nil(t, sources{location: location}.wanted(at))
	back := sources{location: location}.fallback(at)
	require.NotNil(t, back)
	assert.Equal(t, urlB, back.server)
	assert.Nil(t, sources{}.fallback(at))
	assert.Nil(t, sources{location: location, bootstrap: &bootstrap{}}.fallback(at), "an import says where to go")
}

func TestTheConfigMapOfTheHub(t *testing.T) {
	ca := testCA(t)
	assert.Nil(t, parseHubLocation(nil))
	good := parseHubLocation(hubConfigMap(urlA+"\n", ca+"\n", " strict "))
	require.NoError(t, good.err)
	assert.Equal(t, way{server: urlA, ca: []byte(strings.TrimSpace(ca)), mode: "strict", source: "ConfigMap fleet-agent-hub"}, good.way)
	assert.Equal(t, good.digest, parseHubLocation(hubConfigMap(urlA, ca, "strict")).digest)
	for name, other := range map[string]*corev1.ConfigMap{
		"address": hubConfigMap(urlB, ca, "strict"), "CA": hubConfigMap(urlA, "", "strict"), "mode": hubConfigMap(urlA, ca, ""),
	} {
		assert.NotEqual(t, good.digest, parseHubLocation(other).digest, name)
	}
	for want, bad := range map[string]*corev1.ConfigMap{
		"key apiServerURL": hubConfigMap("", ca, ""), "user name": hubConfigMap("https://u:p@hub", "", ""), "key apiServerCA": hubConfigMap(urlA, "x", ""),
	} {
		assert.ErrorContains(t, parseHubLocation(bad).err, want)
	}
}

func TestTheModeInWhichAStoredCredentialWorks(t *testing.T) {
	const system, strict = config.TLSModeSystemStore, config.TLSModeStrict
	rows := map[string]struct {
		proved, configured config.TLSMode
		ca                 string
		want               config.TLSMode
	}{
		"the proved one":                              {system, strict, "ca", system},
		"the proved one, whatever is configured":      {strict, "loose", "ca", strict},
		"the configured one for an earlier agent":     {"", strict, "ca", strict},
		"the default for an earlier agent":            {"", "", "ca", system},
		"strict without a CA never worked":            {"", strict, "", system},
		"a proved one that cannot be, edited by hand": {strict, "", "", system},
		"no mode, with a CA":                          {"", "loose", "ca", strict},
		"no mode, without a CA":                       {"", "loose", "", system},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			s := &stored{access: hubAccess{ca: []byte(row.ca)}, mode: row.proved}
			assert.Equal(t, row.want, provedMode(s, row.configured))
		})
	}
}

func TestAWayIsShownWithoutItsCA(t *testing.T) {
	ca := testCA(t)
	shown := way{server: urlA, ca: []byte(ca), mode: "strict", source: "Secret fleet-agent-bootstrap"}.String()
	assert.Equal(t, urlA+" (with CA "+registration.CAHash([]byte(ca))[:12]+", strict) of Secret fleet-agent-bootstrap", shown)
	assert.Equal(t, "no address (without a CA, system-store) of ConfigMap fleet-agent-hub", way{source: "ConfigMap fleet-agent-hub"}.String())
}
