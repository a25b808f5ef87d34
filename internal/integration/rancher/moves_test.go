package rancher

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/rancherlike"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// moves creates the new Cluster after the old one is gone. The hub does not wait that long for a new Cluster, so it uninstalls the agent
// with the old one, and installs another agent for the new one.
func (s *serverStory) moves(t *testing.T) {
	s.server.Workspace(t, otherWorkspace)
	// The agent has time to react to each write of the hub on the member.
	const slow = 100 * time.Millisecond
	s.server.Proxy.Tunnel.Slow(slow)
	defer s.server.Proxy.Tunnel.Slow(0)
	old := s.cluster(t, s.edge)
	moved := s.moveTo(otherWorkspace)
	s.server.Delete(t, moved, old.Namespace)
	s.requireNoAgent(t)
	s.edgeAgent.Stop(t)
	s.server.Pass(t, moved)
	s.edgeAgent = s.member.Agent(s.t, agentNamespace, quick)
	s.requireMoved(t, old, moved)
}

func (s *serverStory) requireNoAgent(t *testing.T) {
	t.Helper()
	_, err := s.member.Kubernetes.AppsV1().Deployments(agentNamespace).Get(t.Context(), registration.AgentName, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the Deployment of the agent is still there: %v", err)
	_, err = s.member.Kubernetes.CoreV1().Secrets(agentNamespace).Get(t.Context(), registration.CredentialSecret, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the credential of the agent is still there: %v", err)
}

// movesBack creates the new Cluster before it deletes the old one. The agent keeps running.
func (s *serverStory) movesBack(t *testing.T) {
	old := s.cluster(t, s.edge)
	moved := s.moveTo(rancherlike.DefaultWorkspace)
	s.server.Pass(t, moved)
	s.server.Delete(t, moved, old.Namespace)
	s.requireMoved(t, old, moved)
}

func (s *serverStory) moveTo(workspace string) *rancherlike.Managed {
	s.edge = s.edge.In(workspace)
	s.seen.Expect(s.edge)
	return s.edge
}

// requireMoved waits until the agent is registered for the new Cluster, and nothing is left of the old one.
func (s *serverStory) requireMoved(t *testing.T, old *fleet.Cluster, moved *rancherlike.Managed) {
	t.Helper()
	cluster := s.condition(t, moved, fleet.ConditionRegistered, "True")
	require.NotEqual(t, old.Spec.ClientID, cluster.Spec.ClientID)
	testenv.RequireCredential(t, s.member, agentNamespace, moved.Name)
	require.Equal(t, moved.Workspace, string(s.credential(t, s.member, agentNamespace).Data[registration.CredentialWorkspace]))
	s.awaitBeat(t, moved)
	testenv.Eventually(t, func() (bool, string) {
		left := s.leftOf(t, old)
		return len(left) == 0, fmt.Sprintf("left of %s/%s: %v", old.Namespace, old.Name, left)
	})
	clusters := testenv.List(t, s.hub.Fleet.Clusters(moved.Workspace).List, metav1.ListOptions{})
	for _, other := range clusters.Items {
		require.NotEqual(t, old.Spec.ClientID, other.Spec.ClientID, "the agent registered with its old identity as %s", other.Name)
	}
}

// leftOf lists the objects that are left of a deleted Cluster.
func (s *serverStory) leftOf(t *testing.T, old *fleet.Cluster) []string {
	t.Helper()
	left := s.requestsOf(t, old)
	namespace := registration.ClusterNamespace(old.Namespace, old.Name)
	if _, err := s.hub.Kubernetes.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		left = append(left, "Namespace "+namespace)
	}
	for _, secret := range s.credentialsOnHub(t) {
		if string(secret.Data[registration.CredentialDeploymentNamespace]) == namespace {
			left = append(left, "Secret "+secret.Name)
		}
	}
	tokens := testenv.List(t, s.hub.Fleet.ClusterRegistrationTokens(old.Namespace).List, metav1.ListOptions{})
	for _, token := range tokens.Items {
		if token.Name == registration.ImportTokenName(old.Name) {
			left = append(left, "ClusterRegistrationToken "+token.Name)
		}
	}
	return append(left, s.rightsOf(t, old, namespace)...)
}

// rightsOf lists the bindings that give rights to the agent of a Cluster, or to its import token.
func (s *serverStory) rightsOf(t *testing.T, old *fleet.Cluster, namespace string) (left []string) {
	t.Helper()
	rights := s.hub.Kubernetes.RbacV1()
	bindings := testenv.List(t, rights.RoleBindings("").List, metav1.ListOptions{})
	for _, b := range bindings.Items {
		ofToken := b.Namespace == old.Namespace && strings.HasPrefix(b.Name, registration.ImportTokenName(old.Name))
		if ofToken || isOf(b.Subjects, namespace) {
			left = append(left, "RoleBinding "+b.Namespace+"/"+b.Name)
		}
	}
	clusterBindings := testenv.List(t, rights.ClusterRoleBindings().List, metav1.ListOptions{})
	for _, b := range clusterBindings.Items {
		if isOf(b.Subjects, namespace) {
			left = append(left, "ClusterRoleBinding "+b.Name)
		}
	}
	return left
}

func isOf(subjects []rbacv1.Subject, namespace string) bool {
	return slices.ContainsFunc(subjects, func(subject rbacv1.Subject) bool { return subject.Namespace == namespace })
}
