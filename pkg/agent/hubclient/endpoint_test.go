package hubclient

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

const (
	urlA = "https://a.example.com"
	urlB = "https://b.example.com"
)

// current is a stored endpoint, and the digest of the ConfigMap that was seen with it.
type current struct {
	endpoint Endpoint
	seen     string
}

func TestPreferred(t *testing.T) {
	at := func(url string, mode config.TLSMode, seen string) current {
		return current{Endpoint{Server: url, CA: []byte("ca"), Mode: mode}, seen}
	}
	says := func(url, mode string) *ConfigMapEndpoint {
		return ParseConfigMap(agenttest.AgentHubConfigMap(url, "ca", mode))
	}
	aSystem := says(urlA, "system-store")
	imported := func(mode config.TLSMode) *Endpoint { return &Endpoint{Server: urlB, CA: []byte("ca"), Mode: mode} }
	const system, strict = config.TLSModeSystemStore, config.TLSModeStrict
	rows := map[string]struct {
		from    Candidates
		current current
		want    string // "server mode"; empty to stay
	}{
		"no candidates":                                    {Candidates{}, at(urlA, system, ""), ""},
		"bootstrap Secret, same endpoint":                  {Candidates{Bootstrap: imported("")}, at(urlB+"/", system, ""), ""},
		"bootstrap Secret, other address":                  {Candidates{Bootstrap: imported("")}, at(urlA, system, ""), urlB + " "},
		"bootstrap Secret, other mode":                     {Candidates{Bootstrap: imported(strict)}, at(urlB, system, ""), urlB + " strict"},
		"bootstrap Secret wins over the ConfigMap":         {Candidates{Bootstrap: imported(""), ConfigMap: aSystem}, at(urlA, system, ""), urlB + " "},
		"bootstrap Secret at the endpoint, ConfigMap not":  {Candidates{Bootstrap: imported(""), ConfigMap: aSystem}, at(urlB, system, ""), ""},
		"ConfigMap, other address":                         {Candidates{ConfigMap: aSystem}, at(urlB, system, ""), urlA + " system-store"},
		"ConfigMap, already seen":                          {Candidates{ConfigMap: aSystem}, at(urlB, system, aSystem.Digest), ""},
		"ConfigMap, changed since it was seen":             {Candidates{ConfigMap: says(urlA, "strict")}, at(urlB, system, aSystem.Digest), urlA + " strict"},
		"ConfigMap, same endpoint":                         {Candidates{ConfigMap: aSystem}, at(urlA, system, ""), ""},
		"ConfigMap, other mode":                            {Candidates{ConfigMap: says(urlA, "strict")}, at(urlA, system, ""), urlA + " strict"},
		"ConfigMap without a mode uses the configured one": {Candidates{ConfigMap: says(urlA, ""), Mode: strict}, at(urlB, system, ""), urlA + " strict"},
		"configured mode changes, ConfigMap has none":      {Candidates{ConfigMap: says(urlA, ""), Mode: strict}, at(urlA, system, says(urlA, "").Digest), urlA + " strict"},
		"configured mode changes, ConfigMap has one":       {Candidates{ConfigMap: aSystem, Mode: strict}, at(urlA, system, aSystem.Digest), ""},
		"configured mode changes, no ConfigMap":            {Candidates{Mode: strict}, at(urlA, system, ""), urlA + " strict"},
		"configured mode returns to the default":           {Candidates{}, at(urlA, strict, ""), urlA + " "},
		"ConfigMap deleted, the address stays":             {Candidates{Mode: strict}, at(urlA, strict, aSystem.Digest), ""},
		"unknown mode is tried":                            {Candidates{Mode: "loose"}, at(urlA, system, ""), urlA + " loose"},
		"unusable ConfigMap is an endpoint with an error":  {Candidates{ConfigMap: says("garbage", "")}, at(urlA, system, ""), "garbage "},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			got := row.from.Preferred(row.current.endpoint, row.current.seen)
			if row.want == "" {
				assert.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			assert.Equal(t, row.want, got.Server+" "+string(got.Mode))
		})
	}
}

// Whatever the candidates are, an agent that reaches all of them stays after one switch.
func TestPreferredDoesNotAlternate(t *testing.T) {
	var configMaps []*ConfigMapEndpoint
	for _, url := range []string{urlA, urlB} {
		for _, mode := range []string{"", "strict", "system-store"} {
			configMaps = append(configMaps, ParseConfigMap(agenttest.AgentHubConfigMap(url, "ca", mode)))
		}
	}
	for _, configMap := range append(configMaps, nil) {
		for _, mode := range []config.TLSMode{"", config.TLSModeStrict} {
			for _, imported := range []*Endpoint{nil, {Server: urlB, CA: []byte("ca"), Mode: mode}} {
				from := Candidates{Bootstrap: imported, ConfigMap: configMap, Mode: mode}
				at := current{endpoint: Endpoint{Server: urlA, CA: []byte("ca"), Mode: config.TLSModeSystemStore}}
				preferred := func() *Endpoint { return from.Preferred(at.endpoint, at.seen) }
				if e := preferred(); e != nil {
					at = current{*e, from.Digest()}
				}
				assert.Nil(t, preferred(), "%+v", from)
				from.Bootstrap = nil // used up
				assert.Nil(t, preferred(), "after the import: %+v", from)
				if e := from.Fallback(at.endpoint); e != nil {
					at = current{*e, from.Digest()}
				}
				assert.Nil(t, from.Fallback(at.endpoint), "%+v", from)
				assert.Nil(t, preferred(), "%+v", from)
			}
		}
	}
}

func TestFallback(t *testing.T) {
	configMap := ParseConfigMap(agenttest.AgentHubConfigMap(urlB, "", "strict"))
	at := Endpoint{Server: urlA, Mode: config.TLSModeSystemStore}
	assert.Nil(t, Candidates{ConfigMap: configMap}.Preferred(at, configMap.Digest))
	back := Candidates{ConfigMap: configMap}.Fallback(at)
	require.NotNil(t, back)
	assert.Equal(t, urlB, back.Server)
	assert.Nil(t, Candidates{}.Fallback(at))
	assert.Nil(t, Candidates{ConfigMap: configMap, Bootstrap: &Endpoint{}}.Fallback(at), "the bootstrap Secret wins")
}

// What a ConfigMap says may protect the credential better than the registration did, and not less.
func TestCandidates_registered(t *testing.T) {
	const plain = "http://hub"
	says := func(url, mode string) *ConfigMapEndpoint {
		return ParseConfigMap(agenttest.AgentHubConfigMap(url, "", mode))
	}
	strict, system := Protection{config.TLSModeStrict, urlA}, Protection{config.TLSModeSystemStore, urlA}
	for name, row := range map[string]struct {
		from    Candidates
		current config.TLSMode
		refused string
	}{
		"strict, ConfigMap lowers it":                        {Candidates{RegisteredWith: strict, ConfigMap: says(urlB, "system-store")}, config.TLSModeStrict, "in mode strict"},
		"strict, ConfigMap leaves it out":                    {Candidates{RegisteredWith: strict, ConfigMap: says(urlB, "")}, config.TLSModeStrict, "in mode strict"},
		"strict, ConfigMap fleet-agent lowers it":            {Candidates{RegisteredWith: strict}, config.TLSModeStrict, "in mode strict"},
		"strict, ConfigMap moves it":                         {Candidates{RegisteredWith: strict, ConfigMap: says(urlB, "strict")}, config.TLSModeStrict, ""},
		"strict, an import lowers it":                        {Candidates{RegisteredWith: strict, Bootstrap: &Endpoint{Server: urlB}}, config.TLSModeStrict, ""},
		"system store, raised by a ConfigMap, lowered again": {Candidates{RegisteredWith: system}, config.TLSModeStrict, ""},
		"https, ConfigMap says http":                         {Candidates{RegisteredWith: system, ConfigMap: says(plain, "")}, config.TLSModeSystemStore, "unencrypted"},
		"http, ConfigMap says the same":                      {Candidates{RegisteredWith: Protection{config.TLSModeSystemStore, plain + "/"}, ConfigMap: says(plain, "")}, config.TLSModeSystemStore, ""},
		"http, ConfigMap says another":                       {Candidates{RegisteredWith: Protection{config.TLSModeSystemStore, "http://other"}, ConfigMap: says(plain, "")}, config.TLSModeSystemStore, "unencrypted"},
	} {
		t.Run(name, func(t *testing.T) {
			current := Endpoint{Server: urlA, Mode: row.current}
			endpoints := []*Endpoint{row.from.Preferred(current, "")}
			require.NotNil(t, endpoints[0])
			if row.from.ConfigMap != nil {
				endpoints = append(endpoints, row.from.Fallback(current))
			}
			for _, e := range endpoints {
				if row.refused == "" {
					require.NoError(t, e.Err)
					continue
				}
				require.ErrorContains(t, e.Err, row.refused)
			}
		})
	}
}

func TestParseConfigMap(t *testing.T) {
	ca := agenttest.CA(t)
	assert.Nil(t, ParseConfigMap(nil))
	good := ParseConfigMap(agenttest.AgentHubConfigMap(urlA+"\n", ca+"\n", " strict "))
	require.NoError(t, good.Err)
	assert.Equal(t, Endpoint{
		Server: urlA, CA: []byte(strings.TrimSpace(ca)), Mode: "strict",
		Source: "ConfigMap fleet-agent-hub", CASource: "key apiServerCA of ConfigMap fleet-agent-hub",
	}, good.Endpoint)
	assert.Equal(t, good.Digest, ParseConfigMap(agenttest.AgentHubConfigMap(urlA, ca, "strict")).Digest)
	for name, other := range map[string]*corev1.ConfigMap{
		"address": agenttest.AgentHubConfigMap(urlB, ca, "strict"), "CA": agenttest.AgentHubConfigMap(urlA, "", "strict"), "mode": agenttest.AgentHubConfigMap(urlA, ca, ""),
	} {
		assert.NotEqual(t, good.Digest, ParseConfigMap(other).Digest, name)
	}
	for want, bad := range map[string]*corev1.ConfigMap{
		"key apiServerURL": agenttest.AgentHubConfigMap("", ca, ""), "user name": agenttest.AgentHubConfigMap("https://u:p@hub", "", ""), "key apiServerCA": agenttest.AgentHubConfigMap(urlA, "x", ""),
	} {
		assert.ErrorContains(t, ParseConfigMap(bad).Err, want)
	}
}

func TestWorkingMode(t *testing.T) {
	const system, strict = config.TLSModeSystemStore, config.TLSModeStrict
	rows := map[string]struct {
		recorded, configured config.TLSMode
		ca                   string
		want                 config.TLSMode
	}{
		"recorded":                            {system, strict, "ca", system},
		"recorded, unknown mode configured":   {strict, "loose", "ca", strict},
		"not recorded, configured":            {"", strict, "ca", strict},
		"not recorded, default":               {"", "", "ca", system},
		"strict is impossible without a CA":   {"", strict, "", system},
		"recorded by hand, impossible":        {strict, "", "", system},
		"unknown mode configured, with CA":    {"", "loose", "ca", strict},
		"unknown mode configured, without CA": {"", "loose", "", system},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, row.want, Endpoint{CA: []byte(row.ca), Mode: row.recorded}.WorkingMode(row.configured))
		})
	}
}

func TestEndpointString(t *testing.T) {
	ca := agenttest.CA(t)
	shown := Endpoint{Server: urlA, CA: []byte(ca), Mode: "strict", Source: "Secret fleet-agent-bootstrap"}.String()
	assert.Equal(t, urlA+" (with CA "+registration.CAHash([]byte(ca))[:12]+", strict) of Secret fleet-agent-bootstrap", shown)
	assert.Equal(t, "no address (without a CA, system-store) of ConfigMap fleet-agent-hub", Endpoint{Source: "ConfigMap fleet-agent-hub"}.String())
}

func TestAccessSame(t *testing.T) {
	a := Access{Endpoint: Endpoint{Server: agenttest.HubURL, CA: []byte("x")}, Token: "t", Namespace: "n"}
	slash := a
	slash.Server += "/"
	assert.True(t, a.Same(slash))
	for name, change := range map[string]func(*Access){
		"server": func(b *Access) { b.Server = "https://b" }, "CA": func(b *Access) { b.CA = nil }, "mode": func(b *Access) { b.Mode = "strict" },
		"token": func(b *Access) { b.Token = "u" }, "namespace": func(b *Access) { b.Namespace = "m" },
	} {
		b := a
		change(&b)
		assert.False(t, a.Same(b), name)
	}
}

func FuzzParseConfigMap(f *testing.F) {
	f.Add("https://hub", "", "strict", "https://other")
	f.Add(" https://hub\n", agenttest.CA(f), "", "https://hub/")
	f.Add("https://u:p@hub", "x", "loose", "")
	f.Fuzz(func(t *testing.T, url, ca, mode, at string) {
		e := ParseConfigMap(agenttest.AgentHubConfigMap(url, ca, mode))
		assert.Equal(t, e.Digest, ParseConfigMap(agenttest.AgentHubConfigMap(url+" ", "\n"+ca, mode+"\n")).Digest, "white space around the values means nothing")
		if e.Err == nil {
			assert.NoError(t, Access{Endpoint: e.Endpoint, Token: "t"}.validate())
		}
		from := Candidates{ConfigMap: e}
		if preferred := from.Preferred(Endpoint{Server: at}, ""); preferred != nil {
			assert.Nil(t, from.Preferred(*preferred, from.Digest()), "the agent would switch for ever")
		}
	})
}

// isText: JSON and YAML replace bytes that are not UTF-8.
func isText(text string) bool {
	return strings.ToValidUTF8(text, "") == text
}

func FuzzKubeconfig(f *testing.F) {
	f.Add("https://hub.example.com", "", "eyJ.a.b", "cluster-ns")
	f.Add("http://127.0.0.1:6443/k8s/clusters/c-1", agenttest.CA(f), "x", "")
	f.Add("https://[::1]:1", "\n", "a: b\n#", "\x00")
	f.Fuzz(func(t *testing.T, server, ca, token, namespace string) {
		access := Access{Endpoint: Endpoint{Server: server, CA: bytes.TrimSpace([]byte(ca))}, Token: token, Namespace: namespace}
		if access.validate() != nil || !isText(server+token+namespace) {
			return
		}
		written, err := access.Kubeconfig()
		require.NoError(t, err)
		back, err := ParseKubeconfig(written)
		if err != nil && strings.ContainsFunc(server+token+namespace, func(r rune) bool { return r < ' ' || r > '~' }) {
			return // YAML cannot express some of these characters, which neither tokens nor names have
		}
		require.NoError(t, err)
		assert.True(t, access.Same(back), "%+v %+v", access, back)
	})
}
