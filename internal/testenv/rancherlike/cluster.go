package rancherlike

import (
	"testing"

	"github.com/rancher/wrangler/v3/pkg/randomtoken"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Managed is a cluster that the server manages. It replaces the server's own objects, from which the server creates the Cluster and the
// kubeconfig Secret.
type Managed struct {
	// Name is the name that people use, and ID the name that the server uses.
	Name, ID string
	// Namespace is the namespace of the server's own objects, which never changes.
	Namespace string
	// Workspace is the namespace of its Cluster.
	Workspace string
	// Local is true for the cluster in which the server runs.
	Local bool

	owner *corev1.ConfigMap // in place of the provisioning Cluster
	token string
}

// NewManaged adds a cluster to the server. It creates no objects of the fleet.
func (s *Server) NewManaged(t testing.TB, m Managed, member *testenv.Cluster) *Managed {
	t.Helper()
	random, err := randomtoken.Generate()
	require.NoError(t, err)
	m.token = "u-abcdefghij:" + random
	s.Proxy.serve(t, m.ID, m.token, member)
	m.owner, err = s.Hub.Kubernetes.CoreV1().ConfigMaps(m.Namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	m.owner.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	return &m
}

// In returns the same cluster in another workspace.
func (m *Managed) In(workspace string) *Managed {
	moved := *m
	moved.Workspace = workspace
	return &moved
}

// setID identifies the set that the server applies.
const setID = "fleet-cluster"

// Pass acts like the server after an event of its own objects: it writes the address into the kubeconfig Secret of its own
// cluster, and applies the Cluster.
func (s *Server) Pass(t testing.TB, m *Managed) {
	t.Helper()
	if m.Local {
		s.addAddress(t, m)
	}
	require.NoError(t, s.sets.WithContext(t.Context()).WithSetID(setID).WithOwner(m.owner).ApplyObjects(m.Cluster()))
}

// Cluster is the Cluster that the server applies, with ten fields of the spec.
func (m *Managed) Cluster() *fleet.Cluster {
	return &fleet.Cluster{
		TypeMeta: metav1.TypeMeta{APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   m.Workspace,
			Name:        m.Name,
			Labels:      m.labels(),
			Annotations: map[string]string{"example.com/note": "of the server's own cluster object"},
		},
		Spec: m.spec(),
	}
}

func (m *Managed) labels() map[string]string {
	labels := map[string]string{
		"env":                               "production",
		"management.cattle.io/cluster-name": m.ID,
		"management.cattle.io/cluster-display-name": m.Name,
	}
	if m.Local {
		labels["name"] = "local"
	}
	return labels
}

func (m *Managed) spec() fleet.ClusterSpec {
	spec := fleet.ClusterSpec{
		KubeConfigSecret:          m.secretName(),
		KubeConfigSecretNamespace: m.Namespace,
		AgentEnvVars:              []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy.example:3128"}},
		PrivateRepoURL:            "registry.example",
		AgentTolerations:          []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}},
		AgentAffinity:             preferAgentNodes(),
		AgentResources: &corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		},
		AgentSchedulingCustomization: &fleet.AgentSchedulingCustomization{
			PriorityClass:       &fleet.PriorityClassSpec{Value: 1000, PreemptionPolicy: ptr.To(corev1.PreemptNever)},
			PodDisruptionBudget: &fleet.PodDisruptionBudgetSpec{MinAvailable: "1"},
		},
		AgentPullSecrets: &[]corev1.LocalObjectReference{},
	}
	if m.Local {
		spec.AgentNamespace = LocalAgentNamespace
	}
	return spec
}

func preferAgentNodes() *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
			Weight: 1,
			Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
				Key: "fleet.cattle.io/agent", Operator: corev1.NodeSelectorOpIn, Values: []string{"true"},
			}}},
		}},
	}}
}

// Delete deletes the Cluster and waits, as a move to another workspace does.
func (s *Server) Delete(t testing.TB, m *Managed, workspace string) {
	t.Helper()
	clusters := s.Hub.Fleet.Clusters(workspace)
	require.NoError(t, clusters.Delete(t.Context(), m.Name, metav1.DeleteOptions{}))
	testenv.RequireGone(t, clusters.Get, "Cluster "+workspace, m.Name)
}
