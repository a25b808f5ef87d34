package charts_test

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/muster-fleet/muster/charts"
)

const (
	certificate = "-----BEGIN CERTIFICATE-----\ndGhpcyBpcyBhIHRlc3Q=\n-----END CERTIFICATE-----\n"
	privateKey  = "-----BEGIN PRIVATE KEY-----\ndGhpcyBpcyBhIHRlc3Q=\n-----END PRIVATE KEY-----\n"
)

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// agentValues are enough to install an agent, changed by what a test gives as YAML.
func agentValues(t *testing.T, changes string) map[string]any {
	t.Helper()
	values := parseValues(t, "{apiServerURL: 'https://hub.example.com', tokenName: my-token, token: bearer-value, clusterNamespace: clusters}")
	maps.Copy(values, parseValues(t, changes))
	return values
}

func TestAgentChartRefusesValues(t *testing.T) {
	const namespace, name = "cattle-fleet-system", "fleet-agent"
	tests := map[string]struct {
		release charts.Release
		changes string
		says    []string
	}{
		"no API server URL":        {changes: "apiServerURL: ''", says: []string{"apiServerURL is missing", "--set apiServerURL="}},
		"URL without scheme":       {changes: "apiServerURL: 'hub.example.com:6443'", says: []string{"must be https://HOST, or http://HOST", "hub.example.com:6443"}},
		"URL without host":         {changes: "apiServerURL: 'https://'", says: []string{"must be https://HOST, or http://HOST", `"https://" is neither`}},
		"no token name":            {changes: "tokenName: ''", says: []string{"tokenName is missing", "--set tokenName="}},
		"another release name":     {release: charts.Release{Name: "mine", Namespace: namespace}, says: []string{`must be named "fleet-agent", not "mine"`}},
		"another namespace":        {release: charts.Release{Name: name, Namespace: "default"}, says: []string{`"cattle-fleet-system", not "default"`, "--namespace cattle-fleet-system"}},
		"namespace of another hub": {changes: "internal: {systemNamespace: elsewhere}", says: []string{`"elsewhere", not "cattle-fleet-system"`}},
		"unknown TLS mode":         {changes: "agentTLSMode: insecure", says: []string{"agentTLSMode", "strict", "system-store"}},
		"empty TLS mode":           {changes: "agentTLSMode: ''", says: []string{"agentTLSMode", "strict"}},
		"CA is neither form":       {changes: "apiServerCA: nonsense", says: []string{"apiServerCA holds no certificate", "--set-file apiServerCA=ca.pem"}},
		"CA is base64 of nonsense": {changes: "apiServerCA: " + encoded("nonsense"), says: []string{"apiServerCA holds no certificate"}},
		"CA is a private key":      {changes: "apiServerCA: " + encoded(privateKey), says: []string{"apiServerCA holds no certificate"}},
		"CA and its private key":   {changes: "apiServerCA: " + encoded(certificate+privateKey), says: []string{"contains a private key"}},
		"strict without TLS":       {changes: "{apiServerURL: 'http://hub.example.com', agentTLSMode: strict}", says: []string{"must begin with https:// in agentTLSMode strict", "http://hub.example.com"}},
		"budget of one replica":    {changes: "agent: {replicas: 2, podDisruptionBudget: {minAvailable: 1}}", says: []string{"podDisruptionBudget.minAvailable", "podDisruptionBudget.maxUnavailable"}},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			if tt.release == (charts.Release{}) {
				tt.release = release(charts.Agent)
			}
			_, err := charts.Render(charts.Agent, tt.release, agentValues(t, tt.changes))
			require.Error(t, err)
			for _, text := range tt.says {
				assert.ErrorContains(t, err, text)
			}
			assert.NotContains(t, err.Error(), "bearer-value", "the token must not get into an error")
		})
	}
}

func TestAgentChartWritesTheCAAsPEM(t *testing.T) {
	tests := map[string]struct{ given, want string }{
		"none":                     {"", ""},
		"PEM":                      {certificate, certificate},
		"PEM without final line":   {certificate[:len(certificate)-1], certificate[:len(certificate)-1]},
		"two certificates":         {certificate + certificate, certificate + certificate},
		"PEM after a comment":      {"# my CA\n" + certificate, "# my CA\n" + certificate},
		"base64":                   {encoded(certificate), certificate},
		"base64 in lines":          {encoded(certificate)[:20] + "\n" + encoded(certificate)[20:] + "\n", certificate},
		"base64 of PEM with CRLF":  {encoded("-----BEGIN CERTIFICATE-----\r\nAA==\r\n"), "-----BEGIN CERTIFICATE-----\r\nAA==\r\n"},
		"white space from a shell": {"\n", ""},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			values := agentValues(t, "{}")
			values["apiServerCA"] = tt.given
			assert.Equal(t, tt.want, string(bootstrapSecret(t, values).Data["apiServerCA"]))
		})
	}
}

func TestAgentChartWritesTheBootstrapSecret(t *testing.T) {
	secret := bootstrapSecret(t, agentValues(t, "token: '{{ not a template }}'"))
	data := map[string]string{}
	for key, value := range secret.Data {
		data[key] = string(value)
	}
	assert.Equal(t, "fleet-agent-bootstrap", secret.Name)
	assert.Equal(t, "cattle-fleet-system", secret.Namespace)
	assert.Equal(t, map[string]string{
		"apiServerURL":                "https://hub.example.com",
		"apiServerCA":                 "",
		"clusterNamespace":            "clusters",
		"systemRegistrationNamespace": "cattle-fleet-clusters-system",
		"token":                       "{{ not a template }}",
		"tokenName":                   "my-token",
	}, data)
}

func bootstrapSecret(t *testing.T, values map[string]any) corev1.Secret {
	t.Helper()
	rendered, err := charts.Render(charts.Agent, release(charts.Agent), values)
	require.NoError(t, err)
	var secret corev1.Secret
	require.NoError(t, yaml.Unmarshal([]byte(rendered["fleet-agent/templates/secret.yaml"]), &secret))
	return secret
}

func TestAgentConfigHasLabelsAsText(t *testing.T) {
	config := agentConfig(t, "{labels: {number: 1000000, fraction: 1.5, flag: true, none: null, text: 'a \"b\"', 'example.com/key': x}, clientID: me}")
	assert.Equal(t, map[string]any{
		"agentTLSMode":              "system-store",
		"clientID":                  "me",
		"garbageCollectionInterval": "15m",
		"labels": map[string]any{
			"number": "1000000", "fraction": "1.5", "flag": "true", "none": "", "text": `a "b"`, "example.com/key": "x",
		},
	}, config)
}

func TestAgentConfigWithEmptyValues(t *testing.T) {
	assert.Equal(t, map[string]any{"agentTLSMode": "strict"},
		agentConfig(t, "{labels: {}, clientID: '', garbageCollectionInterval: '', agentTLSMode: strict}"))
}

func agentConfig(t *testing.T, changes string) map[string]any {
	t.Helper()
	rendered, err := charts.Render(charts.Agent, release(charts.Agent), agentValues(t, changes))
	require.NoError(t, err)
	return configOf(t, rendered["fleet-agent/templates/configmap.yaml"])
}

func configOf(t *testing.T, manifest string) map[string]any {
	t.Helper()
	var configMap corev1.ConfigMap
	require.NoError(t, yaml.UnmarshalStrict([]byte(manifest), &configMap))
	config := map[string]any{}
	require.NoError(t, json.Unmarshal([]byte(configMap.Data["config"]), &config))
	return config
}

func TestAgentChartInTheSystemNamespaceOfTheHub(t *testing.T) {
	elsewhere := charts.Release{Name: "fleet-agent", Namespace: "elsewhere"}
	_, err := charts.Render(charts.Agent, elsewhere, agentValues(t, "internal: {systemNamespace: elsewhere}"))
	assert.NoError(t, err)
}

func TestAgentNotes(t *testing.T) {
	tests := map[string]struct {
		changes     string
		says, hides []string
	}{
		"complete":     {changes: "{}", says: []string{"https://hub.example.com in namespace clusters", "logs -l app=fleet-agent"}, hides: []string{"WARNING", "No token"}},
		"no token":     {changes: "token: ''", says: []string{"No token was given", "--reset-then-reuse-values --set token=TOKEN", "create secret generic fleet-agent-bootstrap"}, hides: []string{"WARNING"}},
		"no namespace": {changes: "clusterNamespace: ''", says: []string{"WARNING: clusterNamespace is empty", "--reset-then-reuse-values --set clusterNamespace=NAMESPACE"}},
	}
	for title, tt := range tests {
		t.Run(title, func(t *testing.T) {
			notes, err := charts.Notes(charts.Agent, release(charts.Agent), agentValues(t, tt.changes))
			require.NoError(t, err)
			for _, text := range tt.says {
				assert.Contains(t, notes, text)
			}
			for _, text := range append(tt.hides, "--from-literal=token=") {
				assert.NotContains(t, notes, text)
			}
		})
	}
}
