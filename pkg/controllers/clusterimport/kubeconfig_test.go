package clusterimport

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/pkg/config"
)

// confidential is part of every kubeconfig in these tests and must not appear in any message.
const confidential = "confidential"

// kubeconfig returns a valid kubeconfig after change.
func kubeconfig(t *testing.T, change func(*clientcmdapi.Config)) []byte {
	t.Helper()
	c := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"cluster": {Server: "https://member:6443"}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"user": {Token: confidential}},
		Contexts:       map[string]*clientcmdapi.Context{"default": {Cluster: "cluster", AuthInfo: "user"}},
		CurrentContext: "default",
	}
	if change != nil {
		change(&c)
	}
	data, err := clientcmd.Write(c)
	require.NoError(t, err)
	return data
}

func kubeconfigSecret(data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "kbcfg", UID: "u", ResourceVersion: "1"}, Data: data}
}

func TestParseKubeconfig_accepted(t *testing.T) {
	for name, change := range map[string]func(*clientcmdapi.Config){
		"a token": nil,
		"a password": func(c *clientcmdapi.Config) {
			c.AuthInfos["user"] = &clientcmdapi.AuthInfo{Username: "u", Password: confidential}
		},
		"an embedded CA":    func(c *clientcmdapi.Config) { c.Clusters["cluster"].CertificateAuthorityData = somePEM(t) },
		"no credential":     func(c *clientcmdapi.Config) { c.AuthInfos["user"] = &clientcmdapi.AuthInfo{} },
		"a proxy":           func(c *clientcmdapi.Config) { c.Clusters["cluster"].ProxyURL = "http://proxy:3128" },
		"an unused context": func(c *clientcmdapi.Config) { c.Contexts["other"] = &clientcmdapi.Context{Cluster: "gone"} },
		"an unused program": func(c *clientcmdapi.Config) {
			c.AuthInfos["other"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{}}
		},
		"a server without port": func(c *clientcmdapi.Config) { c.Clusters["cluster"].Server = "https://member" },
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := parseKubeconfig(kubeconfigSecret(map[string][]byte{"value": kubeconfig(t, change)}))
			require.NoError(t, err)
			m, err := newMemberClient(parsed, config.TLSModeStrict, config.Members{}, semaphore.NewWeighted(largeResponses))
			require.NoError(t, err)
			assert.True(t, strings.HasPrefix(m.server, "https://member"), m.server)
		})
	}
}

func TestParseKubeconfig_rejected(t *testing.T) {
	for _, row := range []struct {
		name string
		data map[string][]byte
		says string
	}{
		{"no data", nil, `Secret ns/kbcfg has no key "value" with a kubeconfig; its keys: none; store`},
		{"an empty value", map[string][]byte{"value": {}}, `has no key "value" with a kubeconfig; its keys: value; store`},
		{"another key", map[string][]byte{"kubeconfig": kubeconfig(t, nil), "b": nil}, `its keys: b, kubeconfig; store`},
		{"many keys", map[string][]byte{"a": nil, "b": nil, "c": nil, "d": nil, "e": nil, "f": nil, "g": nil}, `its keys: a, b, c, d, e, and 2 others; store`},
		{
			"a server that fills the condition",
			with(t, func(c *clientcmdapi.Config) {
				c.Clusters["cluster"].Server = "https://member/" + strings.Repeat("x", 1<<20)
			}),
			"names a server of more than 1024 characters",
		},
		{"garbage", map[string][]byte{"value": []byte(confidential + ": [")}, `key "value" of Secret ns/kbcfg is not a kubeconfig`},
		{
			"aliases that take gigabytes",
			map[string][]byte{"value": []byte("a: &a " + strings.Repeat("x", 200_000) + "\nb: [" + strings.Repeat("*a,", 9000) + "]\n")},
			`key "value" of Secret ns/kbcfg: line 2 has a YAML alias`,
		},
		{"bytes", map[string][]byte{"value": []byte("\x00\x01" + confidential)}, "is not a kubeconfig"},
		{"a text", map[string][]byte{"value": []byte(confidential)}, "is not a kubeconfig"},
		{"another object", map[string][]byte{"value": []byte("kind: Secret\napiVersion: v1\ndata: {x: " + confidential + "}")}, "is not a kubeconfig"},
		{"encoded twice", map[string][]byte{"value": []byte(base64.StdEncoding.EncodeToString(kubeconfig(t, nil)))}, "is not a kubeconfig"},
		{"an empty document", map[string][]byte{"value": []byte("{}")}, "has no current context"},
		{"no current context", with(t, func(c *clientcmdapi.Config) { c.CurrentContext = "" }), "has no current context"},
		{"a context that is not there", with(t, func(c *clientcmdapi.Config) { c.CurrentContext = "gone" }), "has no current context"},
		{"a cluster that is not there", with(t, func(c *clientcmdapi.Config) { delete(c.Clusters, "cluster") }), "names no server"},
		{"no server", with(t, func(c *clientcmdapi.Config) { c.Clusters["cluster"].Server = "" }), "names no server"},
		{"a user that is not there", with(t, func(c *clientcmdapi.Config) { delete(c.AuthInfos, "user") }), "names no user"},
		{
			"a server that is not a URL",
			with(t, func(c *clientcmdapi.Config) {
				c.Clusters["cluster"].Server = "https://user:" + confidential + "@me mber"
			}), "names a server that is not a URL",
		},
		{
			"a port that is not a number",
			with(t, func(c *clientcmdapi.Config) {
				c.Clusters["cluster"].Server = "https://user:" + confidential + "@member:x"
			}), "names a server that is not a URL",
		},
		{
			"a password in the address",
			with(t, func(c *clientcmdapi.Config) {
				c.Clusters["cluster"].Server = "https://user:" + confidential + "@member"
			}),
			"has a user name in the URL of its server",
		},
		{"a path only", with(t, func(c *clientcmdapi.Config) { c.Clusters["cluster"].Server = "/" + confidential }), "names a server that is not a URL"},
		{
			"a proxy of another kind",
			with(t, func(c *clientcmdapi.Config) { c.Clusters["cluster"].ProxyURL = "ftp://user:" + confidential + "@x" }), "names a proxy that is not an http",
		},
		{
			"a proxy that is not a URL",
			with(t, func(c *clientcmdapi.Config) { c.Clusters["cluster"].ProxyURL = "http://user:" + confidential + "@x:y" }), "names a proxy that is not an http",
		},
		{"a program", with(t, func(c *clientcmdapi.Config) {
			c.AuthInfos["user"].Exec = &clientcmdapi.ExecConfig{
				Command: confidential, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
			}
		}), "runs a program"},
		{"a plugin", with(t, func(c *clientcmdapi.Config) {
			c.AuthInfos["user"].AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "oidc", Config: map[string]string{"s": confidential}}
		}), "runs a program"},
		{"a token file", with(t, func(c *clientcmdapi.Config) { c.AuthInfos["user"].TokenFile = "/" + confidential }), "refers to files"},
		{"a CA file", with(t, func(c *clientcmdapi.Config) { c.Clusters["cluster"].CertificateAuthority = "/" + confidential }), "refers to files"},
		{"a certificate file", with(t, func(c *clientcmdapi.Config) { c.AuthInfos["user"].ClientCertificate = "/" + confidential }), "refers to files"},
		{"a key file", with(t, func(c *clientcmdapi.Config) { c.AuthInfos["user"].ClientKey = "/" + confidential }), "refers to files"},
	} {
		t.Run(row.name, func(t *testing.T) {
			parsed, err := parseKubeconfig(kubeconfigSecret(row.data))
			require.ErrorContains(t, err, row.says)
			assert.Nil(t, parsed)
			assert.NotContains(t, err.Error(), confidential)
			assert.Less(t, len(err.Error()), 300)
		})
	}
}

func with(t *testing.T, change func(*clientcmdapi.Config)) map[string][]byte {
	return map[string][]byte{"value": kubeconfig(t, change)}
}

func TestClientFor_rejected(t *testing.T) {
	for name, change := range map[string]func(*clientcmdapi.Config){
		"a CA that is not valid":      func(c *clientcmdapi.Config) { c.Clusters["cluster"].CertificateAuthorityData = []byte(confidential) },
		"a certificate without a key": func(c *clientcmdapi.Config) { c.AuthInfos["user"].ClientCertificateData = []byte(confidential) },
		"a certificate that is not valid": func(c *clientcmdapi.Config) {
			c.AuthInfos["user"].ClientCertificateData, c.AuthInfos["user"].ClientKeyData = []byte(confidential), []byte(confidential)
		},
		"a token and a password": func(c *clientcmdapi.Config) { c.AuthInfos["user"].Username = confidential },
	} {
		t.Run(name, func(t *testing.T) {
			m, problem := newHarness(t).clientFor(hubConfig, fresh(), kubeconfigSecret(with(t, change)), config.TLSModeStrict)
			require.NotNil(t, problem)
			assert.Nil(t, m)
			assert.Equal(t, "KubeconfigInvalid", problem.reason)
			assert.Contains(t, problem.message, "Secret ns/kbcfg")
			assert.NotContains(t, problem.message, confidential)
		})
	}
}

func TestClientFor_insecure(t *testing.T) {
	h := newHarness(t)
	secret := kubeconfigSecret(with(t, func(c *clientcmdapi.Config) { c.Clusters["cluster"].InsecureSkipTLSVerify = true }))
	m, problem := h.clientFor(hubConfig, fresh(), secret, config.TLSModeSystemStore)
	require.Nil(t, problem)
	m.close()
	_, problem = h.clientFor(hubConfig, fresh(), secret, config.TLSModeStrict)
	require.NotNil(t, problem)
	assert.Equal(t, "KubeconfigInvalid", problem.reason)
	assert.Contains(t, problem.message, "sets insecure-skip-tls-verify, and agentTLSMode is strict")
}

func TestClientFor_addresses(t *testing.T) {
	server := func(address string) func(*clientcmdapi.Config) {
		return func(c *clientcmdapi.Config) { c.Clusters["cluster"].Server = address }
	}
	proxy := func(c *clientcmdapi.Config) { c.Clusters["cluster"].ProxyURL = "http://10.0.0.1:3128" }
	for _, row := range []struct {
		name    string
		limits  config.Members
		change  func(*clientcmdapi.Config)
		allowed bool
	}{
		{"a private address", config.Members{}, server("https://10.0.0.1:6443"), true},
		{"a proxy", config.Members{}, proxy, false},
		{"a proxy that the configuration allows", config.Members{AllowProxyURL: true}, proxy, true},
		{"a metadata service behind an allowed proxy", config.Members{AllowProxyURL: true}, func(c *clientcmdapi.Config) {
			proxy(c)
			server("http://169.254.169.254")(c)
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			hub := hubConfig
			hub.Members = row.limits
			m, problem := newHarness(t).clientFor(hub, fresh(), kubeconfigSecret(with(t, row.change)), config.TLSModeStrict)
			if row.allowed {
				require.Nil(t, problem)
				m.close()
				return
			}
			require.NotNil(t, problem)
			assert.Equal(t, "AddressNotAllowed", problem.reason)
		})
	}
	t.Run("the denied addresses are not known: no connection", func(t *testing.T) {
		hub := hubConfig
		hub.Members = config.Members{Unknown: true}
		_, problem := newHarness(t).clientFor(hub, fresh(), kubeconfigSecret(with(t, nil)), config.TLSModeStrict)
		require.NotNil(t, problem)
		assert.Equal(t, "ConfigInvalid", problem.reason)
	})
	t.Run("another configuration: another fingerprint", func(t *testing.T) {
		h, secret, hub := newHarness(t), kubeconfigSecret(with(t, nil)), hubConfig
		first, problem := h.clientFor(hub, fresh(), secret, config.TLSModeStrict)
		require.Nil(t, problem)
		again, _ := h.clientFor(hub, fresh(), secret, config.TLSModeStrict)
		assert.Equal(t, first.fingerprint, again.fingerprint)
		hub.Members = config.Members{DeniedCIDRs: config.CIDRs{netip.MustParsePrefix("10.0.0.0/8")}}
		other, _ := h.clientFor(hub, fresh(), secret, config.TLSModeStrict)
		assert.NotEqual(t, first.fingerprint, other.fingerprint, "the call is tried at once")
	})
}

func TestWithoutCredentials(t *testing.T) {
	for server, want := range map[string]string{
		"https://user:" + confidential + "@member:6443/k8s/clusters/c-1?token=" + confidential: "https://member:6443/k8s/clusters/c-1",
		"https://member":                       "https://member",
		"https://user:" + confidential + "@:x": "the server of the kubeconfig",
	} {
		assert.Equal(t, want, withoutCredentials(server))
	}
}

func TestNewMemberClient_fingerprint(t *testing.T) {
	fingerprint := func(mode config.TLSMode, change func(*clientcmdapi.Config)) string {
		parsed, err := parseKubeconfig(kubeconfigSecret(with(t, change)))
		require.NoError(t, err)
		m, err := newMemberClient(parsed, mode, config.Members{}, semaphore.NewWeighted(largeResponses))
		require.NoError(t, err)
		return m.fingerprint
	}
	one := fingerprint(config.TLSModeStrict, nil)
	assert.Equal(t, one, fingerprint(config.TLSModeStrict, nil))
	assert.NotEqual(t, one, fingerprint(config.TLSModeSystemStore, nil))
	assert.NotEqual(t, one, fingerprint(config.TLSModeStrict, func(c *clientcmdapi.Config) { c.AuthInfos["user"].Token = "another" }))
	assert.NotContains(t, one, confidential)
}

func TestKubeconfigs(t *testing.T) {
	var k kubeconfigs
	kubeconfig := func(size int) *corev1.Secret {
		return kubeconfigSecret(map[string][]byte{"value": make([]byte, size)})
	}
	name := func(workspace string, n int) types.NamespacedName {
		return types.NamespacedName{Namespace: workspace, Name: fmt.Sprint(n)}
	}
	for n := range 1000 {
		k.keep(name("hostile", n), kubeconfig(maxKubeconfig))
	}
	assert.LessOrEqual(t, k.sizes["hostile"], keptPerWorkspace)
	assert.Less(t, len(k.byCluster), 100)

	large := kubeconfig(1) // of other keys only their names are kept
	for n := range 4000 {
		large.Data[fmt.Sprintf("%0253d", n)] = nil
	}
	for n := range 1000 {
		k.keep(name("names", n), large)
	}
	assert.Less(t, len(k.byCluster), 100)

	for n := range 1000 {
		k.keep(name("ws", n), kubeconfig(6000))
	}
	for n := range 1000 {
		require.NotNil(t, k.get(name("ws", n), "u/1"), "a thousand imports read their Secret once")
	}

	for _, workspace := range []string{"a", "b", "c", "d"} {
		for n := range 1000 {
			k.keep(name(workspace, n), kubeconfig(maxKubeconfig))
		}
	}
	assert.LessOrEqual(t, k.total, keptInTotal)
	for key := range maps.Clone(k.byCluster) {
		k.drop(key)
	}
	k.drop(name("ws", 1))
	assert.Zero(t, k.total)
	assert.Empty(t, k.sizes)
}
