package agent

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/registration"
)

const hubURL = "https://hub.example.com"

func TestABootstrapSecretIsReadFromSixKeysOrOneDocument(t *testing.T) {
	ca := testCA(t)
	document := "apiServerURL: " + hubURL + "\napiServerCA: |\n  " + strings.ReplaceAll(ca, "\n", "\n  ") +
		"\nclusterNamespace: fleet-default\ntoken: " + testToken + "\ntokenName: import-token-one\n" +
		"systemRegistrationNamespace: cattle-fleet-clusters-system\nlabels: {env: prod}\nregistration: uid/1\n"
	want := &bootstrap{
		apiServerURL: hubURL, apiServerCA: []byte(strings.TrimSpace(ca)), clusterNamespace: "fleet-default", token: testToken,
		tokenName: "import-token-one", systemRegistrationNamespace: "cattle-fleet-clusters-system", registration: "uid/1",
	}
	values := secretOf(registration.BootstrapSecret, map[string]string{registration.BootstrapValues: document})
	both := secretOf(registration.BootstrapSecret, map[string]string{
		registration.BootstrapValues: strings.ReplaceAll(document, hubURL, "https://other.example.com"), registration.BootstrapAPIServerURL: hubURL + "\n",
	})
	for name, secret := range map[string]*corev1.Secret{
		"keys": bootstrapSecret(hubURL, ca, "registration", "uid/1"), "a document": values, "a key wins over the document": both,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseBootstrap(secret)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
}

func TestABadBootstrapSecretIsNamedWithoutItsToken(t *testing.T) {
	rows := map[string]struct {
		secret *corev1.Secret
		want   string
	}{
		"nothing in it":         {secretOf(registration.BootstrapSecret, nil), "key apiServerURL of Secret cattle-fleet-system/fleet-agent-bootstrap is unusable: it is empty"},
		"no token":              {bootstrapSecret(hubURL, "", "token", " \n"), "key token"},
		"no namespace":          {bootstrapSecret(hubURL, "", "clusterNamespace", ""), "key clusterNamespace"},
		"no secrets' namespace": {bootstrapSecret(hubURL, "", "systemRegistrationNamespace", ""), "key systemRegistrationNamespace"},
		"a URL without scheme":  {bootstrapSecret("hub.example.com", ""), "it is not a URL like"},
		"a URL for files":       {bootstrapSecret("file:///etc/passwd", ""), "it is not a URL like"},
		"a URL with a password": {bootstrapSecret("https://user:"+testToken+"@hub", ""), "user name"},
		"a URL of garbage":      {bootstrapSecret("https://%zz"+testToken, ""), "it is not a URL like"},
		"a CA of garbage":       {bootstrapSecret(hubURL, "-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----"), "key apiServerCA"},
		"a document of garbage": {secretOf(registration.BootstrapSecret, map[string]string{"values": "token: {" + testToken}), "key values"},
		"a document of a list":  {secretOf(registration.BootstrapSecret, map[string]string{"values": "- " + testToken}), "key values"},
		"a document of numbers": {secretOf(registration.BootstrapSecret, map[string]string{"values": "token: 42"}), "key token"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			_, err := parseBootstrap(row.secret)
			require.ErrorContains(t, err, row.want)
			assert.NotContains(t, err.Error(), testToken)
		})
	}
}

func TestTheFingerprintChangesWithEverythingARequestDependsOn(t *testing.T) {
	original, err := parseBootstrap(bootstrapSecret(hubURL, ""))
	require.NoError(t, err)
	seen := map[string]string{original.fingerprint("client"): "the original", original.fingerprint("other client"): "another clientID"}
	for _, key := range []string{"apiServerURL", "clusterNamespace", "token", "tokenName", "systemRegistrationNamespace", "registration"} {
		changed, err := parseBootstrap(bootstrapSecret(hubURL, "", key, hubURL+"/x"))
		require.NoError(t, err)
		fingerprint := changed.fingerprint("client")
		assert.NotContains(t, seen, fingerprint, key)
		seen[fingerprint] = key
	}
	again, err := parseBootstrap(bootstrapSecret(hubURL, testCA(t)))
	require.NoError(t, err)
	assert.Equal(t, original.fingerprint("client"), again.fingerprint("client"), "a new CA does not make the request another one")
	assert.NotContains(t, original.fingerprint("client"), testToken)
}

func TestTheStoredCredentialIsWhatPeersExpect(t *testing.T) {
	ca := testCA(t)
	b, err := parseBootstrap(bootstrapSecret(hubURL, ca, "registration", "uid/3"))
	require.NoError(t, err)
	credential := granted{token: newToken, deploymentNamespace: "cluster-ns", clusterNamespace: "fleet-default", clusterName: "one"}.stored(b, "request-1", sources{mode: config.TLSModeStrict, location: &hubLocation{digest: "seen"}})
	secret, err := credential.secret(agentNamespace, nil)
	require.NoError(t, err)

	assert.Equal(t, "fleet-agent", secret.Name)
	assert.Equal(t, agentNamespace, secret.Namespace)
	assert.Len(t, secret.Data, 8)
	assert.Equal(t, "request-1", string(secret.Data["request"]))
	assert.Equal(t, "cluster-ns", string(secret.Data["deploymentNamespace"]))
	assert.Equal(t, "fleet-default", string(secret.Data["clusterNamespace"]))
	assert.Equal(t, "one", string(secret.Data["clusterName"]))
	assert.Equal(t, "uid/3", string(secret.Data["registration"]))
	assert.Equal(t, "strict", string(secret.Data["agentTLSMode"]))
	assert.Equal(t, "seen", string(secret.Data["agentHubSettled"]))

	kubeconfig, err := clientcmd.Load(secret.Data["kubeconfig"])
	require.NoError(t, err)
	assert.Equal(t, "default", kubeconfig.CurrentContext)
	assert.Equal(t, "cluster-ns", kubeconfig.Contexts["default"].Namespace)
	assert.Equal(t, "cluster", kubeconfig.Contexts["default"].Cluster)
	assert.Equal(t, "user", kubeconfig.Contexts["default"].AuthInfo)
	assert.Equal(t, newToken, kubeconfig.AuthInfos["user"].Token)
	assert.Equal(t, hubURL, kubeconfig.Clusters["cluster"].Server)
	assert.Equal(t, strings.TrimSpace(ca), string(kubeconfig.Clusters["cluster"].CertificateAuthorityData))

	read, err := parseStored(secret)
	require.NoError(t, err)
	assert.True(t, read.access.same(credential.access))
	assert.Equal(t, "uid/3", read.registration)
}

func TestAnOlderCredentialSecretKeepsItsMetadataOnly(t *testing.T) {
	older := storedSecret(t, hubURL, "", oldToken, "leftover", "x", "registration", "uid/1")
	older.Labels = map[string]string{"team": "a"}
	credential, err := parseStored(storedSecret(t, hubURL, "", newToken))
	require.NoError(t, err)
	secret, err := credential.secret(agentNamespace, older)
	require.NoError(t, err)
	assert.Equal(t, older.ResourceVersion, secret.ResourceVersion)
	assert.Equal(t, older.Labels, secret.Labels)
	assert.NotContains(t, secret.Data, "leftover")
	assert.NotContains(t, secret.Data, "registration", "of the registration before")
	assert.Contains(t, string(older.Data["kubeconfig"]), oldToken, "the object read was changed")
}

func TestACredentialOfAnotherAgentIsUnderstood(t *testing.T) {
	kubeconfig := `{"apiVersion":"v1","kind":"Config","current-context":"x","clusters":[{"name":"c","cluster":{"server":"` + hubURL + `"}}],
"users":[{"name":"u","user":{"token":"` + oldToken + `"}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u","namespace":"ctx-ns"}}]}`
	read, err := parseStored(storedSecret(t, hubURL, "", oldToken, "kubeconfig", kubeconfig, "deploymentNamespace", ""))
	require.NoError(t, err)
	assert.Equal(t, "ctx-ns", read.access.namespace, "without the key, the context says it")
	assert.Empty(t, read.registration)
}

func TestABadStoredCredentialIsNamedWithoutItsToken(t *testing.T) {
	config := func(cluster, user, context string) string {
		return `{"apiVersion":"v1","kind":"Config","current-context":"x","clusters":[{"name":"c","cluster":{` + cluster +
			`}}],"users":[{"name":"u","user":{` + user + `}}],"contexts":[` + context + `]}`
	}
	const good = `{"name":"x","context":{"cluster":"c","user":"u"}}`
	server, token := `"server":"`+hubURL+`"`, `"token":"`+oldToken+`"`
	rows := map[string]struct{ key, value, want string }{
		"no kubeconfig":        {"kubeconfig", "", "it is no kubeconfig"},
		"garbage":              {"kubeconfig", "{" + oldToken, "it is no kubeconfig"},
		"no context":           {"kubeconfig", config(server, token, ""), "current context does not exist"},
		"a context to nowhere": {"kubeconfig", config(server, token, `{"name":"x","context":{"cluster":"d","user":"u"}}`), "does not exist"},
		"no server":            {"kubeconfig", config("", token, good), "server is unusable"},
		"no token":             {"kubeconfig", config(server, "", good), "no bearer token"},
		"a program to run":     {"kubeconfig", config(server, `"exec":{"command":"/bin/evil","apiVersion":"client.authentication.k8s.io/v1"}`, good), "no bearer token"},
		"a CA of garbage":      {"kubeconfig", config(server+`,"certificate-authority-data":"eHg="`, token, good), "not a PEM certificate"},
		"no cluster name":      {"clusterName", "", "key clusterName of Secret cattle-fleet-system/fleet-agent is unusable"},
		"no cluster namespace": {"clusterNamespace", "", "key clusterNamespace"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			_, err := parseStored(storedSecret(t, hubURL, "", oldToken, row.key, row.value))
			require.ErrorContains(t, err, row.want)
			assert.NotContains(t, err.Error(), oldToken)
		})
	}
}

func TestAnAnswerOfTheHubCountsWhenAllOfItIsThere(t *testing.T) {
	full := map[string]string{"token": newToken, "deploymentNamespace": "d", "clusterNamespace": "n", "clusterName": "c", "systemNamespace": "s"}
	got, complete := parseGranted(secretOf("c-1", full))
	assert.True(t, complete)
	assert.Equal(t, granted{newToken, "d", "n", "c"}, got)
	for _, key := range []string{"token", "deploymentNamespace", "clusterNamespace", "clusterName"} {
		data := map[string]string{}
		for k, v := range full {
			if k != key {
				data[k] = v
			}
		}
		_, complete := parseGranted(secretOf("c-1", data))
		assert.False(t, complete, "without %s", key)
	}
}

// Three servers, by a private CA that is given, by one of the operating system, and by a stranger's.
func TestTheTLSModeSaysWhichCertificatesAreAccepted(t *testing.T) {
	given := httptest.NewTLSServer(http.NotFoundHandler())
	defer given.Close()
	certificate := given.Certificate()
	private := pemOf(given)
	emptySystem := func() (*x509.CertPool, error) { return x509.NewCertPool(), nil }
	systemKnows := func() (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		pool.AddCert(certificate)
		return pool, nil
	}
	rows := map[string]struct {
		mode    config.TLSMode
		ca      string
		system  func() (*x509.CertPool, error)
		trusted bool
		want    string // of the error
	}{
		"strict with the CA":                        {config.TLSModeStrict, private, emptySystem, true, ""},
		"strict does not ask the system":            {config.TLSModeStrict, testCA(t), systemKnows, false, ""},
		"strict without a CA":                       {config.TLSModeStrict, "", systemKnows, false, "there is no CA to trust; set key apiServerCA of Secret fleet-agent-bootstrap"},
		"system-store with a CA the system lacks":   {config.TLSModeSystemStore, private, emptySystem, true, ""},
		"system-store without a CA":                 {config.TLSModeSystemStore, "", systemKnows, true, ""},
		"system-store with a CA that is not needed": {config.TLSModeSystemStore, testCA(t), systemKnows, true, ""},
		"system-store and a stranger":               {config.TLSModeSystemStore, "", emptySystem, false, ""},
		"no mode is system-store":                   {"", "", systemKnows, true, ""},
		"a mode nobody knows":                       {"loose", private, systemKnows, false, `agentTLSMode "loose"`},
		"a CA of garbage":                           {config.TLSModeSystemStore, "xx", systemKnows, false, "not a PEM certificate"},
		"a system whose CAs cannot be read":         {config.TLSModeSystemStore, private, func() (*x509.CertPool, error) { return nil, assert.AnError }, false, assert.AnError.Error()},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			access := hubAccess{server: given.URL, ca: []byte(row.ca), caSource: "key apiServerCA of Secret fleet-agent-bootstrap"}
			roots, err := trustedRoots(row.mode, access, row.system)
			if row.want != "" {
				require.ErrorContains(t, err, row.want)
				return
			}
			require.NoError(t, err)
			_, err = certificate.Verify(x509.VerifyOptions{Roots: roots})
			assert.Equal(t, row.trusted, err == nil, "%v", err)
		})
	}
}

func TestAccessThatChangedIsSeen(t *testing.T) {
	a := hubAccess{server: hubURL, ca: []byte("x"), token: "t", namespace: "n"}
	slash := a
	slash.server += "/"
	assert.True(t, a.same(slash))
	for name, change := range map[string]func(*hubAccess){
		"server": func(b *hubAccess) { b.server = "https://b" }, "CA": func(b *hubAccess) { b.ca = nil },
		"token": func(b *hubAccess) { b.token = "u" }, "namespace": func(b *hubAccess) { b.namespace = "m" },
	} {
		b := a
		change(&b)
		assert.False(t, a.same(b), name)
	}
}
