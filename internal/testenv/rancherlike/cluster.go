package rancherlike

import (
	"maps"
	"testing"

	"github.com/rancher/wrangler/v3/pkg/randomtoken"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
)

// Managed is a cluster the server manages. It stands for the server's own objects about it, from which it makes the
// Cluster and the kubeconfig Secret.
type Managed struct {
	// Name is what people call it, ID what the server calls it.
	Name, ID string
	// Namespace is where the server's own objects about it are, which never changes.
	Namespace string
	// Workspace is where its Cluster is.
	Workspace string
	// Local says that it is the cluster the server runs in.
	Local bool

	owner *corev1.ConfigMap // stands for the provisioning Cluster
	token string
}

// NewManaged has the server manage a cluster. Nothing is made for the fleet yet.
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

// In is the same cluster, assigned to another workspace.
func (m *Managed) In(workspace string) *Managed {
	moved := *m
	moved.Workspace = workspace
	return &moved
}

// setID is the server's name of the set it applies.
const setID = "fleet-cluster"

// Pass is what the server does at every event of one of its own objects: it puts the address back into the kubeconfig
// Secret of its own cluster, and applies the Cluster as it wants it.
func (s *Server) Pass(t testing.TB, m *Managed) {
	t.Helper()
	if m.Local {
		s.addAddress(t, m)
	}
	require.NoError(t, s.sets.WithContext(t.Context()).WithSetID(setID).WithOwner(m.owner).ApplyObjects(m.Cluster()))
}

// Cluster is the Cluster as the server wants it: ten fields of the spec and no other.
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
		maps.Copy(labels, map[string]string{"name": "local"})
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

// Delete deletes the Cluster and waits until it is gone, as a move to another workspace does.
func (s *Server) Delete(t testing.TB, m *Managed, workspace string) {
	t.Helper()
	clusters := s.Hub.Fleet.Clusters(workspace)
	require.NoError(t, clusters.Delete(t.Context(), m.Name, metav1.DeleteOptions{}))
	testenv.Eventually(t, func() (bool, string) {
		_, err := clusters.Get(t.Context(), m.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), "Cluster " + workspace + "/" + m.Name + " is still there"
	})
}
