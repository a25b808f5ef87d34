package rancherlike

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/apply"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/testenv"
)

// Names that the server uses.
const (
	// LocalWorkspace and DefaultWorkspace are the namespaces of Clusters that always exist.
	LocalWorkspace   = "fleet-local"
	DefaultWorkspace = "fleet-default"
	// LocalAgentNamespace is the namespace of the agent of the server's own cluster.
	LocalAgentNamespace = "cattle-fleet-local-system"

	userAgent = "rancher"
)

// Server is the management server.
type Server struct {
	// Hub is the cluster in which it runs.
	Hub *testenv.Cluster
	// Proxy is its address.
	Proxy *Proxy
	// Settings are the settings that are part of the hub's configuration.
	Settings RancherSettings

	config *rest.Config
	sets   apply.Apply
}

// New starts a server in the cluster, which creates definitions and workspaces. It does not install the charts.
func New(t testing.TB, hub *testenv.Cluster) *Server {
	t.Helper()
	s := &Server{Hub: hub, Proxy: NewProxy(t, hub), config: hub.RESTConfig()}
	s.config.UserAgent = userAgent
	s.Settings = RancherSettings{ServerURL: s.Proxy.URL(), CACerts: s.Proxy.CA(), AgentTLSMode: "strict"}
	s.preCreateCRDs(t)
	s.Workspace(t, LocalWorkspace)
	s.Workspace(t, DefaultWorkspace)
	sets, err := apply.NewForConfig(s.config)
	require.NoError(t, err)
	const enough = 100 // a second; wrangler's own limit of 1 makes a pass wait
	s.sets = sets.WithDynamicLookup().WithRateLimiting(enough)
	return s
}

// Workspace creates a namespace for Clusters.
func (s *Server) Workspace(t testing.TB, name string) {
	t.Helper()
	_, err := s.Hub.Kubernetes.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}
