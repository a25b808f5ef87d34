package proxies

import (
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/charts"
	"github.com/muster-fleet/muster/internal/helminstall"
	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

const system = registration.DefaultSystemNamespace

// Names in the certificates of the clusters that this machine cannot resolve: only the proxy connects to them. The chart's noProxy
// contains the last one.
const (
	hubName      = "kubernetes.default"
	memberName   = "kubernetes"
	noProxyName  = "kubernetes.default.svc"
	chartNoProxy = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,.svc,.cluster.local"
)

// scene is a hub that the chart installed and a member, each with its own proxy.
type scene struct {
	hub, member             *testenv.Cluster
	hubsProxy, agentsProxy  *proxy
	hubLogs, memberLogs, ns string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	for _, name := range []string{hubName, memberName, noProxyName} {
		_, err := net.DefaultResolver.LookupHost(t.Context(), name)
		require.Error(t, err, "the name can be resolved without the proxy")
	}
	s := &scene{hubsProxy: newProxy(t), agentsProxy: newProxy(t)}
	s.hub, s.member = testenv.BorrowedCluster(t, "member"), testenv.BorrowedCluster(t, "member")
	s.installHub(t)
	s.hubLogs, s.memberLogs = s.hub.Node(t, programs), s.member.Node(t, programs)
	s.ns = s.hub.Namespace(t)
	return s
}

func (s *scene) installHub(t *testing.T) {
	t.Helper()
	values := map[string]any{
		"apiServerURL": at(t, s.hub, hubName), "apiServerCA": string(s.hub.CA()), "agentTLSMode": "strict", "agentCheckinInterval": "1s",
		"bootstrap": map[string]any{"enabled": false}, "proxy": s.hubsProxy.url(), "noProxy": chartNoProxy, "debug": true,
		"members": testenv.MembersOnLoopback(),
	}
	s.hub.InstallKinds(t)
	require.NoError(t, helminstall.Install(t.Context(), s.hub.RESTConfig(), system, charts.Hub, values))
}

// at returns the URL of a cluster with one of the names in its certificate.
func at(t *testing.T, c *testenv.Cluster, name string) string {
	t.Helper()
	address, err := url.Parse(c.URL())
	require.NoError(t, err)
	return "https://" + net.JoinHostPort(name, address.Port())
}

// host returns the host and port of the URL that at returns.
func host(t *testing.T, c *testenv.Cluster, name string) string {
	t.Helper()
	return strings.TrimPrefix(at(t, c, name), "https://")
}

// imports creates a Cluster for the member under this name. Its agent uses the other proxy.
func (s *scene) imports(t *testing.T, cluster, name string) {
	t.Helper()
	kubeconfig := testenv.At(t, s.member.Kubeconfig(), at(t, s.member, name))
	s.hub.WriteSecret(t, s.ns, cluster+"-kubeconfig", map[string][]byte{registration.KubeconfigValue: kubeconfig})
	testenv.Create(t, s.hub.Fleet.Clusters(s.ns).Create, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: cluster},
		Spec: fleet.ClusterSpec{
			KubeConfigSecret: cluster + "-kubeconfig",
			AgentEnvVars: []corev1.EnvVar{
				{Name: "HTTPS_PROXY", Value: s.agentsProxy.url()}, {Name: "NO_PROXY", Value: chartNoProxy},
			},
		},
	})
}

// beats waits for a heartbeat after this time.
func (s *scene) beats(t *testing.T, cluster string, after time.Time) {
	t.Helper()
	s.hub.AwaitHeartbeat(t, s.ns, cluster, after)
}
