package clusternet

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

func report() v1beta1.ManagedClusterStatus {
	seconds := int64(180)
	return v1beta1.ManagedClusterStatus{
		KubernetesVersion: "v1.31.4", AgentVersion: "v0.18.0", Healthz: true, Livez: true, Readyz: true,
		NodeStatistics:            v1beta1.NodeStatistics{ReadyNodes: 2, NotReadyNodes: 1},
		Capacity:                  corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("12"), "example.com/other": resource.MustParse("1")},
		HeartbeatFrequencySeconds: &seconds,
	}
}

// An agent registers, reports, is restarted and registers again with its own credential, and its Cluster is deleted.
func testLife(t *testing.T, s *stage) {
	boot := s.as(t, s.Token(t, "tok").Token)
	id := newID()

	// Register.
	boot.request(t, id, map[string]string{"env": "edge", "clusternet.io/created-by": "me", "fleet.cattle.io/x": "y"})
	answer := boot.approved(t, id).Status
	name := registration.ClusterName(id)
	namespace := registration.ClusterNamespace(s.Namespace, name)
	assert.Equal(t, namespace, answer.DedicatedNamespace)
	assert.Equal(t, s.Hub.CA(), answer.CACertificate)
	assert.Equal(t, v1beta1.RequestPrefix+id, answer.ManagedClusterName)
	assert.Empty(t, answer.ErrorMessage)
	cluster := s.Cluster(t, name)
	assert.Equal(t, map[string]string{"env": "edge", fleet.ClusterLabel: name, fleet.NonManagedAgentLabel: "true"}, cluster.Labels)

	// Report. With the first heartbeat, the hub deletes the answer and the right to read it.
	agent := s.as(t, string(answer.DedicatedToken))
	agent.approved(t, id) // like an agent that is restarted before its first heartbeat
	agent.beat(t, namespace, id, report())
	cluster = s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionConnected, "True")
	reported := cluster.Status.Agent
	assert.Equal(t, "v1.31.4", reported.KubernetesVersion)
	assert.Equal(t, "v0.18.0", reported.Version)
	assert.Equal(t, fleet.AgentNodes{Count: 3, Ready: 2}, *reported.Nodes)
	assert.Equal(t, "3m0s", reported.CheckinInterval.Duration.String())
	assert.True(t, reported.APIServer.Ready)
	assert.Equal(t, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("12")}, reported.Capacity)
	s.Hub.ClusterCondition(t, s.Namespace, name, fleet.ConditionRegistered, "True")
	testenv.RequireGone(t, s.admin.ClusterRegistrationRequests().Get, "ClusterRegistrationRequest", v1beta1.RequestPrefix+id)
	testenv.RequireGone(t, s.Hub.Kubernetes.RbacV1().ClusterRoleBindings().Get, "ClusterRoleBinding", registration.ClusternetReaderName(v1beta1.RequestPrefix+id))

	// Only labels can be patched. The Secret is stored without its credential.
	members := agent.ManagedClusters(namespace)
	testenv.Merge(t, members.Patch, answer.ManagedClusterName, `{"metadata":{"labels":{"node.clusternet.io/zone":"a"}}}`)
	_, err := members.Patch(t.Context(), answer.ManagedClusterName, types.MergePatchType, []byte(`{"metadata":{"annotations":{"fleet.cattle.io/cluster":"other"}}}`), metav1.PatchOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	_, err = members.Patch(t.Context(), answer.ManagedClusterName, types.MergePatchType, []byte(`{"spec":{"syncMode":"Push"}}`), metav1.PatchOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	secrets := agent.kubernetes.CoreV1().Secrets(namespace)
	deployer := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: v1beta1.AgentSecret, Finalizers: []string{"apps.clusternet.io/finalizer"}, Annotations: map[string]string{"clusternet.io/autoupdate": "true"}},
		Data:       map[string][]byte{"token": []byte("of the member")},
	}
	created := testenv.Create(t, secrets.Create, deployer)
	assert.Empty(t, created.Data)
	assert.Empty(t, created.Finalizers)
	deployer.ResourceVersion = created.ResourceVersion
	created = testenv.Update(t, secrets.Update, deployer)
	assert.Empty(t, created.Data)
	assert.Empty(t, created.Finalizers)
	for what, change := range map[string]func(*corev1.Secret){
		"the label by which the hub caches it": func(s *corev1.Secret) { s.Labels = map[string]string{fleet.ManagedLabel: fleet.ManagedValue} },
		"large annotations":                    func(s *corev1.Secret) { s.Annotations = map[string]string{"a": strings.Repeat("x", 5000)} },
		"many labels": func(s *corev1.Secret) {
			s.Labels = map[string]string{}
			for n := range 17 {
				s.Labels[fmt.Sprint("label-", n)] = ""
			}
		},
	} {
		large := deployer.DeepCopy()
		large.ResourceVersion = created.ResourceVersion
		change(large)
		_, err = secrets.Update(t.Context(), large, metav1.UpdateOptions{})
		assert.True(t, apierrors.IsForbidden(err), "%s: %v", what, err)
	}
	theft := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: v1beta1.AgentSecret + "-2", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	_, err = secrets.Create(t.Context(), theft, metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)

	// Restart: with its own credential, the agent can create only its own request.
	_, err = agent.ClusterRegistrationRequests().Create(t.Context(), &v1beta1.ClusterRegistrationRequest{
		ObjectMeta: metav1.ObjectMeta{Name: v1beta1.RequestPrefix + newID()}, Spec: v1beta1.ClusterRegistrationRequestSpec{ClusterID: newID()},
	}, metav1.CreateOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	require.NoError(t, s.Hub.Fleet.ClusterRegistrationTokens(s.Namespace).Delete(t.Context(), "tok", metav1.DeleteOptions{}))
	agent.request(t, id, nil)
	again := agent.approved(t, id).Status
	assert.Equal(t, namespace, again.DedicatedNamespace)
	restarted := s.as(t, string(again.DedicatedToken))
	restarted.beat(t, namespace, id, report())
	requests := testenv.List(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).List, metav1.ListOptions{})
	assert.Len(t, requests.Items, 1, "a restart is not another registration")

	// The hub creates a deleted ManagedCluster again with the same name.
	require.NoError(t, s.admin.ManagedClusters(namespace).Delete(t.Context(), answer.ManagedClusterName, metav1.DeleteOptions{}))
	restarted.beat(t, namespace, id, report())

	// Delete the Cluster: all objects are deleted, including the request whose answer the agent has just read.
	s.DeleteCluster(t, name)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", name)
	testenv.RequireGone(t, s.Hub.Kubernetes.CoreV1().Namespaces().Get, "Namespace", namespace)
	testenv.RequireGone(t, s.admin.ClusterRegistrationRequests().Get, "ClusterRegistrationRequest", v1beta1.RequestPrefix+id)
	testenv.RequireUnauthorized(t, s.Hub, string(again.DedicatedToken))
	bindings := s.Hub.Kubernetes.RbacV1().ClusterRoleBindings()
	testenv.Eventually(t, func() (bool, string) {
		list := testenv.List(t, bindings.List, metav1.ListOptions{LabelSelector: fleet.ManagedLabel})
		for _, binding := range list.Items {
			of := binding.Subjects[0].Namespace == s.Namespace || binding.Subjects[0].Namespace == namespace
			if binding.RoleRef.Name == registration.ClusterRoleClusternet && of || contains(binding.Name, id) {
				return false, "ClusterRoleBinding " + binding.Name + " is left"
			}
		}
		return true, ""
	})
}

// A client with a bootstrap token does not get the identity of a registered agent without approval, even if it is that agent.
func testHeldIdentity(t *testing.T, s *stage) {
	boot := s.as(t, s.Token(t, "tok").Token)
	id := newID()
	boot.request(t, id, nil)
	answer := boot.approved(t, id).Status
	agent := s.as(t, string(answer.DedicatedToken))
	agent.beat(t, answer.DedicatedNamespace, id, report())
	testenv.RequireGone(t, s.admin.ClusterRegistrationRequests().Get, "ClusterRegistrationRequest", v1beta1.RequestPrefix+id)

	created := boot.request(t, id, nil)
	s.says(t, id, v1beta1.ResultDenied, fleet.ReasonClientIDInUse)
	_, err := boot.ClusterRegistrationRequests().Get(t.Context(), created.Name, metav1.GetOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	s.decide(t, registration.ClusternetRequestName(string(created.UID)), "Approved")
	again := boot.approved(t, id).Status
	assert.Equal(t, answer.DedicatedNamespace, again.DedicatedNamespace, "the same Cluster")
	testenv.RequireUnauthorized(t, s.Hub, string(answer.DedicatedToken))
	s.as(t, string(again.DedicatedToken)).beat(t, again.DedicatedNamespace, id, report())
}

// Neither a user nor an agent can choose the recorded creator of a request.
func testCreatorIsRecorded(t *testing.T, s *stage) {
	id := newID()
	token := s.tokenUser(t)
	created := testenv.Create(t, s.admin.ClusterRegistrationRequests().Create, &v1beta1.ClusterRegistrationRequest{
		ObjectMeta: metav1.ObjectMeta{Name: v1beta1.RequestPrefix + id, Annotations: map[string]string{fleet.CreatorAnnotation: token}},
		Spec:       v1beta1.ClusterRegistrationRequestSpec{ClusterID: id},
	})
	assert.NotEqual(t, token, created.Annotations[fleet.CreatorAnnotation])
	s.says(t, id, v1beta1.ResultDenied, fleet.ReasonTokenNotFound)
}

// A quarantine ends the rights of the agent, and its release restores them.
func testQuarantine(t *testing.T, s *stage) {
	boot := s.as(t, s.Token(t, "tok").Token)
	id := newID()
	boot.request(t, id, nil)
	answer := boot.approved(t, id).Status
	agent := s.as(t, string(answer.DedicatedToken))
	agent.beat(t, answer.DedicatedNamespace, id, report())
	s.PatchSpec(t, registration.ClusterName(id), `{"quarantined":true}`)
	testenv.Eventually(t, func() (bool, string) {
		_, err := agent.ManagedClusters(answer.DedicatedNamespace).List(t.Context(), metav1.ListOptions{})
		return apierrors.IsForbidden(err), "the agent may still list ManagedClusters"
	})
	s.PatchSpec(t, registration.ClusterName(id), `{"quarantined":false}`)
	agent.beat(t, answer.DedicatedNamespace, id, report())
}

// By default, a hub does not serve Clusternet agents.
func TestClosed(t *testing.T) {
	recorder := &testenv.Recorder{}
	s := testenv.NewStage(t, recorder.Wrap)
	s.Token(t, "tok")
	assert.NotEmpty(t, recorder.Requests("clusterregistrationtokens"))
	assert.Empty(t, recorder.Requests("clusternet"), "the hub asks for nothing, so it has no cache of these kinds")
	var stacks bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&stacks, 2))
	assert.Contains(t, stacks.String(), "muster/pkg/hub", "the hub runs in this process")
	for _, code := range []string{"muster/pkg/controllers/clusternet", "muster/pkg/generated/controllers/clusters.clusternet.io"} {
		assert.NotContains(t, stacks.String(), code, "a goroutine of the hub")
	}
	groups, err := s.Hub.Kubernetes.Discovery().ServerGroups()
	require.NoError(t, err)
	for _, group := range groups.Groups {
		assert.NotContains(t, group.Name, "clusternet")
	}
	roles := testenv.List(t, s.Hub.Kubernetes.RbacV1().ClusterRoles().List, metav1.ListOptions{})
	for _, role := range roles.Items {
		assert.NotContains(t, role.Name, "clusternet")
	}
	bindings := testenv.List(t, s.Hub.Kubernetes.RbacV1().ClusterRoleBindings().List, metav1.ListOptions{})
	for _, binding := range bindings.Items {
		assert.NotContains(t, binding.Name, "clusternet")
	}
	policies := testenv.List(t, s.Hub.Kubernetes.AdmissionregistrationV1().ValidatingAdmissionPolicies().List, metav1.ListOptions{})
	require.NotEmpty(t, policies.Items)
	for _, policy := range policies.Items {
		assert.NotContains(t, policy.Name, "clusternet")
	}
}

// If the API server does not record the creator of a request, the hub registers no agent, and the request has the reason.
func TestCreatorNotRecorded(t *testing.T) {
	sample.Long(t)
	s := &stage{Stage: testenv.EmptyStage(t)}
	s.startHub(t, s.Hub.WithoutMutatingPolicies(t))
	id := newID()
	s.as(t, s.Token(t, "tok").Token).request(t, id, nil)
	s.says(t, id, "", "serves no MutatingAdmissionPolicies")
	registrations := testenv.List(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).List, metav1.ListOptions{})
	assert.Empty(t, registrations.Items)
}

// The holder of a token could create any number of requests. No limit of registrations applies to those for which the hub creates none.
func TestVeryManyRequests(t *testing.T) {
	sample.Long(t)
	for _, row := range sample.Some(t, 1, []struct {
		name       string
		registered bool
	}{{"refused by their token", true}, {"without a registration", false}}) {
		t.Run(row.name, func(t *testing.T) {
			s := &stage{Stage: testenv.EmptyStage(t)}
			if row.registered {
				s.Hub.NeedsMutatingPolicies(t)
				s.start(t)
			} else {
				s.startHub(t, s.Hub.WithoutMutatingPolicies(t))
			}
			thief := s.as(t, s.Hub.Token(t, s.Namespace, "limited", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"another"}}).Token)
			for range registration.MostRefused + 20 {
				thief.request(t, newID(), nil)
			}
			testenv.Eventually(t, func() (bool, string) {
				left, err := s.admin.ClusterRegistrationRequests().List(t.Context(), metav1.ListOptions{})
				return err == nil && len(left.Items) <= registration.MostRefused, fmt.Sprint(len(left.Items), " requests, ", err)
			})
		})
	}
}
