package identities

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

// scene is a cluster with a real agent that has registered.
type scene struct {
	*testenv.Stage
	cluster, agentNamespace string
}

func registeredAgent(t *testing.T) *scene {
	t.Helper()
	s := &scene{Stage: testenv.NewStage(t)}
	s.agentNamespace = s.Member.Namespace(t)
	s.cluster, _ = s.RegisteredAgent(t, s.Token(t, "tok"), s.agentNamespace, "edge")
	return s
}

// asAgent is a client with the credential that the agent has stored.
func (s *scene) asAgent(t *testing.T) *testenv.Cluster {
	t.Helper()
	stored := testenv.RequireThere(t, s.Member.Kubernetes.CoreV1().Secrets(s.agentNamespace).Get, registration.CredentialSecret)
	config, err := clientcmd.RESTConfigFromKubeConfig(stored.Data[registration.CredentialKubeconfig])
	require.NoError(t, err)
	return s.Hub.ClientFor(t, config.BearerToken)
}

// lists sends one of the requests that agents send.
func (s *scene) lists(t *testing.T, agent *testenv.Cluster) error {
	t.Helper()
	_, err := agent.Fleet.BundleDeployments(registration.ClusterNamespace(s.Namespace, s.cluster)).List(t.Context(), metav1.ListOptions{})
	return err
}

func (s *scene) awaitAnswer(t *testing.T, agent *testenv.Cluster, is func(error) bool) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		err := s.lists(t, agent)
		return is(err), fmt.Sprintf("the agent gets %v", err)
	})
}

func isFine(err error) bool { return err == nil }

func (s *scene) requests(t *testing.T) []fleet.ClusterRegistration {
	t.Helper()
	list := testenv.List(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).List, metav1.ListOptions{})
	return list.Items
}

func (s *scene) awaitHeartbeat(t *testing.T, after time.Time) {
	t.Helper()
	s.Hub.AwaitHeartbeat(t, s.Namespace, s.cluster, after)
}

func TestQuarantine(t *testing.T) {
	s := registeredAgent(t)
	agent := s.asAgent(t)
	require.NoError(t, s.lists(t, agent))
	before := s.requests(t)

	for range 3 {
		s.PatchSpec(t, s.cluster, `{"quarantined":true}`)
		s.awaitAnswer(t, agent, apierrors.IsForbidden)
		s.Hub.ClusterCondition(t, s.Namespace, s.cluster, fleet.ConditionRegistered, "False Quarantined: the agent is quarantined")
		s.PatchSpec(t, s.cluster, `{"quarantined":null}`)
		s.awaitAnswer(t, agent, isFine)
		s.Hub.ClusterCondition(t, s.Namespace, s.cluster, fleet.ConditionRegistered, "True Registered")
	}
	s.awaitHeartbeat(t, time.Now())
	after := s.requests(t)
	require.Len(t, after, len(before), "it continues with its credential")
	assert.Equal(t, before[0].UID, after[0].UID)
	testenv.Eventually(t, func() (bool, string) {
		events := s.Hub.EventCount(t, s.Namespace, s.cluster, fleet.ReasonQuarantined)
		return events == 3, fmt.Sprintf("%d events about 3 quarantines", events)
	})
}

func TestQuarantineStopsDeployments(t *testing.T) {
	sample.Long(t)
	s := registeredAgent(t)
	agent := s.asAgent(t)
	s.Hub.AwaitOwnBundle(t, s.Namespace, s.cluster)
	deployments := s.Hub.Fleet.BundleDeployments(registration.ClusterNamespace(s.Namespace, s.cluster))
	own := testenv.RequireThere(t, deployments.Get, registration.AgentBundleName(s.cluster))
	s.PatchSpec(t, s.cluster, `{"quarantined":true}`)
	s.awaitAnswer(t, agent, apierrors.IsForbidden)

	testenv.Create(t, s.Hub.Fleet.Bundles(s.Namespace).Create, &fleet.Bundle{
		ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec: fleet.BundleSpec{
			Resources:               []fleet.BundleResource{{Name: "cm.yaml", Content: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late}\n"}},
			Targets:                 []fleet.BundleTarget{{ClusterName: s.cluster}},
			BundleDeploymentOptions: fleet.BundleDeploymentOptions{DefaultNamespace: s.agentNamespace},
		},
	})
	s.PatchSpec(t, s.cluster, `{"redeployAgentGeneration":7}`)
	intruder := s.Hub.Request(t, s.Token(t, "other"), fleet.ClusterRegistrationSpec{ClientID: "edge", ClientRandom: "intruder" + s.Namespace})
	s.Hub.WaitCondition(t, testenv.KindRequest, s.Namespace, intruder.Name, fleet.ConditionGranted, "False")
	s.AwaitWork(t, "marker")
	_, err := deployments.Get(t.Context(), "late", metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	assert.Equal(t, own.Spec, testenv.RequireThere(t, deployments.Get, own.Name).Spec, "the agent's Bundle is not updated")

	s.PatchSpec(t, s.cluster, `{"quarantined":false}`)
	testenv.EventuallyThere(t, s.Member.Kubernetes.CoreV1().ConfigMaps(s.agentNamespace).Get, "late")
	testenv.Eventually(t, func() (bool, string) {
		latest := testenv.RequireThere(t, deployments.Get, own.Name)
		return latest.Spec.DeploymentID != own.Spec.DeploymentID, "the agent's Bundle is not updated after the release"
	})
}

func TestDeleteQuarantinedCluster(t *testing.T) {
	sample.Long(t)
	s := testenv.ParallelStage(t)
	agentNamespace := s.Member.Namespace(t)
	s.ImportInto(t, "m", agentNamespace)
	testenv.RequireThere(t, s.Member.Kubernetes.AppsV1().Deployments(agentNamespace).Get, registration.AgentName)
	s.PatchSpec(t, "m", `{"quarantined":true}`)
	s.Hub.ClusterCondition(t, s.Namespace, "m", fleet.ConditionRegistered, "False Quarantined")
	s.DeleteCluster(t, "m")
	testenv.RequireGone(t, s.Member.Kubernetes.AppsV1().Deployments(agentNamespace).Get, "Deployment", registration.AgentName)
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", "m")
}
