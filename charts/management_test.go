package charts_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/cli/values"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/charts"
)

// A management server installs the kinds and then the hub, sets values of its own beside those of a person, and does so
// again at every change of its settings.
func TestAManagementServerInstallsAndUpgradesTheHub(t *testing.T) {
	s := newScene(t)
	before := inventory(t, s.config)
	s.serverUpgrade(t, charts.CRD, nil)
	wanted := readValues(t, "testdata/fleet/rancher.values.yaml")
	s.serverUpgrade(t, charts.Hub, wanted)
	cluster := s.register("behind-a-server")

	// A person changes the release by hand, which the server must not undo.
	byHand := merged(t, wanted, parseValues(t, "{controller: {replicas: 2}, agentCheckinInterval: 1m}"))
	s.upgrade(t, charts.Hub, byHand)
	wanted["apiServerURL"] = "https://moved.example.com"
	wanted["apiServerCA"] = ""
	wanted["proxy"] = nil // it is not set any more, which a merge patch says by a null
	s.serverUpgrade(t, charts.Hub, wanted)

	assert.Contains(t, s.hubConfig(), "https://moved.example.com")
	assert.Contains(t, s.hubConfig(), `"apiServerCA": ""`)
	assert.Contains(t, s.hubConfig(), `"agentCheckinInterval": "1m"`)
	deployment, err := s.core.AppsV1().Deployments(systemNamespace).Get(t.Context(), "fleet-controller", metav1.GetOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, *deployment.Spec.Replicas)
	assert.Empty(t, variable(deployment.Spec.Template.Spec.Containers[0], "HTTPS_PROXY"))
	assert.Equal(t, "rancher-critical", deployment.Spec.Template.Spec.PriorityClassName)
	assert.NotContains(t, strings.Join(difference(inventory(t, s.config), before), "\n"), "fleet-controller-bootstrap")

	s.uninstall(t, charts.Hub)
	s.uninstall(t, charts.CRD)
	s.requireStillThere(cluster)
	s.requireOnlyKindsSince(before)
}

func TestTheDocumentedCommandsInstallAHubAndAnAgent(t *testing.T) {
	s := newScene(t)
	before := inventory(t, s.config)
	ca := file(t, "ca.pem", certificate)
	s.install(t, charts.CRD, nil)
	s.install(t, charts.Hub, commandLine(t, values.Options{
		Values: []string{"apiServerURL=https://hub.example.com:6443"}, FileValues: []string{"apiServerCA=" + ca},
	}))
	assert.Contains(t, s.hubConfig(), base64.StdEncoding.EncodeToString([]byte(certificate)))
	s.uninstall(t, charts.Hub)

	handedOut := file(t, "values.yaml", text(t, readValues(t, "testdata/fleet-agent/minimal.values.yaml")))
	for title, options := range map[string]values.Options{
		"agent-initiated": {
			ValueFiles: []string{handedOut}, StringValues: []string{"labels.example=true", "labels.env=dev"},
			Values: []string{"apiServerCA=" + encoded(certificate), "apiServerURL=https://hub.example.com:6443"},
		},
		"a cluster that is defined on the hub": {ValueFiles: []string{handedOut}, Values: []string{"clientID=really-random", "apiServerCA=" + encoded(certificate)}},
		"a token on the command line": {
			Values: []string{"token=abc.def-ghi", "tokenName=t", "clusterNamespace=clusters", "apiServerURL=https://hub.example.com"}, FileValues: []string{"apiServerCA=" + ca},
		},
	} {
		s.install(t, charts.Agent, commandLine(t, options))
		secret, err := s.bootstrapSecret()
		require.NoError(t, err, title)
		assert.Equal(t, certificate, string(secret.Data["apiServerCA"]), title)
		assert.Equal(t, "clusters", string(secret.Data["clusterNamespace"]), title)
		s.uninstall(t, charts.Agent)
	}
	s.uninstall(t, charts.CRD)
	s.requireOnlyKindsSince(before)
}
