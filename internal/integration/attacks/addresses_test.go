package attacks

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// A user of a workspace writes kubeconfigs that lead to a service on the hub's own machine.
func TestKubeconfigsDoNotReachTheHubsMachine(t *testing.T) {
	sample.Long(t)
	s := testenv.EmptyStage(t)
	settings := s.Hub.Reachable()
	delete(settings, "members")
	s.Hub.Configure(t, settings)
	s.Running = s.Hub.Hub(t)

	var connections atomic.Int32
	inside := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("inside")) }))
	inside.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	inside.Start()
	t.Cleanup(inside.Close)
	_, port, err := net.SplitHostPort(inside.Listener.Addr().String())
	require.NoError(t, err)

	clusters := map[string]*clientcmdapi.Cluster{
		"address":    {Server: inside.URL},
		"name":       {Server: "http://localhost:" + port},
		"mapped":     {Server: "http://[::ffff:127.0.0.1]:" + port},
		"any":        {Server: "http://0.0.0.0:" + port},
		"proxy":      {Server: "http://member.example", ProxyURL: inside.URL},
		"via-socks5": {Server: "http://member.example", ProxyURL: strings.Replace(inside.URL, "http", "socks5", 1)},
		"metadata":   {Server: "http://169.254.169.254"},
	}
	for name, cluster := range clusters {
		kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
			Clusters: map[string]*clientcmdapi.Cluster{"c": cluster}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {Token: "t"}},
			Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
		})
		require.NoError(t, err)
		s.Hub.WriteSecret(t, s.Namespace, name, map[string][]byte{registration.KubeconfigValue: kubeconfig})
		s.CreateCluster(t, &fleet.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.ClusterSpec{KubeConfigSecret: name}})
	}
	for name := range clusters {
		t.Run(name, func(t *testing.T) {
			s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionImported, "False AddressNotAllowed")
		})
	}
	assert.Zero(t, connections.Load())
}
