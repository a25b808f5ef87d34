package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/agenttest"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// address is a second address of the hub, with its own CA.
func (w *world) address() *front {
	w.Helper()
	certificate := agenttest.ServerCertificate(w.T)
	plane := w.hub.plane
	return newFront(w.T, &rest.Config{Host: plane.URL(), TLSClientConfig: rest.TLSClientConfig{CAData: plane.CA()}}, func(h http.Handler) *httptest.Server {
		server := httptest.NewUnstartedServer(h)
		server.EnableHTTP2 = true
		server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
		server.StartTLS()
		return server
	})
}

// tells writes ConfigMap fleet-agent-hub, as the agent's Bundle does.
func (w *world) tells(url, ca, mode string) {
	w.Helper()
	configMap := agenttest.HubConfigMap(url, ca, mode)
	configMap.Namespace = w.config.Namespace
	client := w.member.CoreV1().ConfigMaps(w.config.Namespace)
	_, err := client.Create(w.Context(), configMap, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.Update(w.Context(), configMap, metav1.UpdateOptions{})
	}
	require.NoError(w, err)
}

// reported is the Cluster's status.agent on the hub.
func (w *world) reported() fleet.AgentStatus {
	w.Helper()
	cluster, err := w.hub.fleet.FleetV1alpha1().Clusters(w.hub.workspace).Get(context.Background(), clusterName, metav1.GetOptions{})
	require.NoError(w, err)
	return cluster.Status.Agent
}

// reports waits until the hub knows which endpoint the agent uses.
func (w *world) reports(f *front) {
	w.Helper()
	w.eventually(func() bool {
		hub := w.reported().Hub
		return hub != nil && hub.APIServerURL == f.server.URL && hub.APIServerCAHash == registration.CAHash(bytes.TrimSpace([]byte(agenttest.PEM(f.server))))
	}, "the way "+f.server.URL)
}

func registered(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.config.Version, w.config.Generation = "v1.2.3", "uid/1"
	w.hub.grants()
	w.hasToken("token", registration.BootstrapRegistration, "uid/1")
	return w
}

func TestRunSwitchesEndpoint(t *testing.T) {
	for name, tell := range map[string]func(w *world, there *front){
		"by an import": func(w *world, there *front) {
			w.bootstraps("token", registration.BootstrapRegistration, "uid/1",
				registration.BootstrapAPIServerURL, there.server.URL, registration.BootstrapAPIServerCA, agenttest.PEM(there.server))
		},
		"by the agent's Bundle": func(w *world, there *front) { w.tells(there.server.URL, agenttest.PEM(there.server), "strict") },
	} {
		t.Run(name, func(t *testing.T) {
			w := registered(t)
			w.starts()
			before := w.settles()
			w.reports(w.hubFront)
			there := w.address()
			tell(w, there)
			w.reports(there)
			after := w.settles()
			assert.Equal(t, before.Token, after.Token)
			assert.Len(t, w.hub.requests(t.Context()), 1)
			w.hubFront.server.Close() // nothing needs it any more
			w.settles()
		})
	}
}

func TestRunReportsAnEndpointThatFails(t *testing.T) {
	w := registered(t)
	stop := w.starts()
	before := w.settles()
	there := w.address()
	there.set(answers(503, "<h1>503</h1>"), nil)
	w.tells(there.server.URL, agenttest.PEM(there.server), "strict")
	w.eventually(func() bool {
		hub := w.reported().Hub
		return hub != nil && strings.Contains(hub.Pending, there.server.URL)
	}, "pending")
	assert.Equal(t, w.hubFront.server.URL, w.reported().Hub.APIServerURL)
	assert.Equal(t, before, w.settles(), "the old way is kept")

	w.hubFront.set(answers(503, "<h1>503</h1>"), nil)
	stop()
	w.starts()
	w.says("Waiting for the hub, keeping the stored credential")
	there.set(nil, nil)
	w.reports(there)
	w.eventually(func() bool { return w.reported().Hub.Pending == "" }, "nothing pending")
	assert.Equal(t, before.Token, w.settles().Token)
	assert.Len(t, w.hub.requests(t.Context()), 1)
}

func TestRunReportsTheCluster(t *testing.T) {
	w := registered(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	node, err := w.member.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.member.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}) })
	w.starts()
	w.settles()
	w.eventually(func() bool {
		got := w.reported()
		// A member that is busy may have been asked in vain.
		return got.Nodes != nil && got.Nodes.Count >= 1 && got.KubernetesVersion != "" && got.APIServer != nil && got.APIServer.Ready
	}, "nodes, version and readiness")
	version, err := w.member.Discovery().ServerVersion()
	require.NoError(t, err)
	got := w.reported()
	assert.Equal(t, version.GitVersion, got.KubernetesVersion)
	assert.Equal(t, "v1.2.3", got.Version)
	assert.Equal(t, "uid/1", got.Generation)
	assert.Equal(t, 50*time.Millisecond, got.CheckinInterval.Duration)
	assert.Equal(t, &fleet.AgentAPIServer{Ready: true}, got.APIServer)
	assert.Nil(t, got.ClockSkew, "one machine has one clock")
}
