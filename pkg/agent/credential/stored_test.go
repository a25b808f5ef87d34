package credential

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/agenttest"
	"github.com/muster-fleet/muster/pkg/agent/hubclient"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

// Releases belong to one Cluster of one hub.
func TestStored_HubID(t *testing.T) {
	stored := func(change func(*Stored)) string {
		s := &Stored{Workspace: "ws", ClusterName: "c"}
		s.Server, s.CA = "https://hub", []byte("ca")
		change(s)
		return s.HubID()
	}
	same := stored(func(*Stored) {})
	for name, change := range map[string]func(*Stored){
		"address": func(s *Stored) { s.Server = "https://other" }, "CA": func(s *Stored) { s.CA = []byte("other") },
		"workspace": func(s *Stored) { s.Workspace = "other" }, "Cluster": func(s *Stored) { s.ClusterName = "other" },
	} {
		assert.NotEqual(t, same, stored(change), name)
	}
	for name, change := range map[string]func(*Stored){
		"slash": func(s *Stored) { s.Server += "/" }, "token": func(s *Stored) { s.Token = "another" }, "mode": func(s *Stored) { s.Mode = "strict" },
	} {
		assert.Equal(t, same, stored(change), name)
	}
}

func TestStoredSecretIsWhatPeersExpect(t *testing.T) {
	ca := strings.TrimSpace(agenttest.CA(t))
	stored := &Stored{
		Access: hubclient.Access{
			Endpoint: hubclient.Endpoint{Server: agenttest.HubURL, CA: []byte(ca), Mode: config.TLSModeStrict},
			Token:    agenttest.NewToken, Namespace: "cluster-ns",
		},
		Workspace: "fleet-default", ClusterName: "one", RegistrationKey: "uid/3", Request: "request-1", HubConfigDigest: "seen",
		RegisteredWith: hubclient.Protection{Mode: config.TLSModeSystemStore, Server: "https://earlier"},
	}
	secret, err := stored.secret(agenttest.Namespace, nil)
	require.NoError(t, err)

	assert.Equal(t, "fleet-agent", secret.Name)
	assert.Equal(t, agenttest.Namespace, secret.Namespace)
	values := map[string]string{}
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	delete(values, "kubeconfig")
	assert.Equal(t, map[string]string{
		"deploymentNamespace": "cluster-ns", "clusterNamespace": "fleet-default", "clusterName": "one", "registration": "uid/3",
		"request": "request-1", "agentTLSMode": "strict", "agentHubSettled": "seen",
		"registeredTLSMode": "system-store", "registeredServer": "https://earlier",
	}, values)

	kubeconfig, err := clientcmd.Load(secret.Data["kubeconfig"])
	require.NoError(t, err)
	assert.Equal(t, "default", kubeconfig.CurrentContext)
	assert.Equal(t, "cluster-ns", kubeconfig.Contexts["default"].Namespace)
	assert.Equal(t, "cluster", kubeconfig.Contexts["default"].Cluster)
	assert.Equal(t, "user", kubeconfig.Contexts["default"].AuthInfo)
	assert.Equal(t, agenttest.NewToken, kubeconfig.AuthInfos["user"].Token)
	assert.Equal(t, agenttest.HubURL, kubeconfig.Clusters["cluster"].Server)
	assert.Equal(t, ca, string(kubeconfig.Clusters["cluster"].CertificateAuthorityData))

	read, err := Parse(secret)
	require.NoError(t, err)
	assert.True(t, read.Same(stored.Access))
	read.Access = stored.Access
	assert.Equal(t, stored, read)
}

func TestStoredSecretKeepsTheMetadataOfTheOlderOne(t *testing.T) {
	older := agenttest.StoredSecret(t, agenttest.HubURL, "", agenttest.OldToken, "leftover", "x", "registration", "uid/1")
	older.Labels = map[string]string{"team": "a"}
	stored, err := Parse(agenttest.StoredSecret(t, agenttest.HubURL, "", agenttest.NewToken))
	require.NoError(t, err)
	secret, err := stored.secret(agenttest.Namespace, older)
	require.NoError(t, err)
	assert.Equal(t, older.ResourceVersion, secret.ResourceVersion)
	assert.Equal(t, older.Labels, secret.Labels)
	assert.NotContains(t, secret.Data, "leftover")
	assert.NotContains(t, secret.Data, "registration", "of the earlier registration")
	assert.Contains(t, string(older.Data["kubeconfig"]), agenttest.OldToken, "the object that was read does not change")
}

func TestParse(t *testing.T) {
	config := func(cluster, user, context string) string {
		return `{"apiVersion":"v1","kind":"Config","current-context":"x","clusters":[{"name":"c","cluster":{` + cluster +
			`}}],"users":[{"name":"u","user":{` + user + `}}],"contexts":[` + context + `]}`
	}
	const good = `{"name":"x","context":{"cluster":"c","user":"u","namespace":"ctx-ns"}}`
	server, token := `"server":"`+agenttest.HubURL+`"`, `"token":"`+agenttest.OldToken+`"`
	t.Run("a credential of another agent", func(t *testing.T) {
		read, err := Parse(agenttest.StoredSecret(t, agenttest.HubURL, "", agenttest.OldToken, "kubeconfig", config(server, token, good), "deploymentNamespace", ""))
		require.NoError(t, err)
		assert.Equal(t, "ctx-ns", read.Namespace, "of the context, because the key is missing")
		assert.Empty(t, read.RegistrationKey)
	})
	for name, row := range map[string]struct{ key, value, want string }{
		"no kubeconfig":        {"kubeconfig", "", "it is not a kubeconfig"},
		"garbage":              {"kubeconfig", "{" + agenttest.OldToken, "it is not a kubeconfig"},
		"no context":           {"kubeconfig", config(server, token, ""), "current context does not exist"},
		"a dangling context":   {"kubeconfig", config(server, token, `{"name":"x","context":{"cluster":"d","user":"u"}}`), "does not exist"},
		"no server":            {"kubeconfig", config("", token, good), "server is unusable"},
		"no token":             {"kubeconfig", config(server, "", good), "no bearer token"},
		"a program to run":     {"kubeconfig", config(server, `"exec":{"command":"/bin/evil","apiVersion":"client.authentication.k8s.io/v1"}`, good), "no bearer token"},
		"a CA of garbage":      {"kubeconfig", config(server+`,"certificate-authority-data":"eHg="`, token, good), "not a PEM certificate"},
		"no cluster name":      {"clusterName", "", "key clusterName of Secret cattle-fleet-system/fleet-agent is unusable"},
		"no cluster namespace": {"clusterNamespace", "", "key clusterNamespace"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(agenttest.StoredSecret(t, agenttest.HubURL, "", agenttest.OldToken, row.key, row.value))
			require.ErrorContains(t, err, row.want)
			assert.NotContains(t, err.Error(), agenttest.OldToken)
		})
	}
}

// marker is what no error may quote.
const marker = "MARKER-5d1c"

func FuzzParse(f *testing.F) {
	kubeconfig, err := hubclient.Access{Endpoint: hubclient.Endpoint{Server: "https://hub"}, Token: marker, Namespace: "ns"}.Kubeconfig()
	require.NoError(f, err)
	good := string(kubeconfig)
	for _, kubeconfig := range []string{
		good, "", "a", "{}", "apiVersion: v1\nkind: Config\ncurrent-context: x", strings.Replace(good, "https", "ftp", 1),
		strings.Replace(good, "user: user", "user: none", 1), good + "\n---\n" + good, "\x00", strings.ToUpper(good),
		strings.Replace(good, "token:", "tokenFile:", 1),
	} {
		f.Add([]byte(kubeconfig), "ns", "cluster-ns", "cluster", "strict")
		f.Add([]byte(kubeconfig), "", "", "", "")
	}
	f.Fuzz(func(t *testing.T, kubeconfig []byte, deployment, namespace, name, mode string) {
		stored, err := Parse(agenttest.Secret("name", map[string]string{
			registration.CredentialKubeconfig: string(kubeconfig), registration.CredentialDeploymentNamespace: deployment,
			registration.CredentialWorkspace: namespace, registration.CredentialClusterName: name, keyTLSMode: mode,
		}))
		if err != nil {
			assert.NotContains(t, err.Error(), marker)
			return
		}
		assert.NotEmpty(t, stored.Token)
		assert.NotEmpty(t, stored.Namespace)
		working := stored.WorkingMode(config.TLSMode(mode))
		assert.True(t, working == config.TLSModeSystemStore || working == config.TLSModeStrict && len(stored.CA) > 0)
	})
}
