// Package clusternet tests the registration of unchanged Clusternet agents.
package clusternet

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/pkg/apis/clusters.clusternet.io/v1beta1"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/config"
	"github.com/muster-fleet/muster/pkg/generated/clientset/versioned"
	clusternetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/clusters.clusternet.io/v1beta1"
	muster "github.com/muster-fleet/muster/pkg/hub"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// stage is a hub that serves Clusternet agents, with a workspace.
type stage struct {
	*testenv.Stage
	admin clusternetclient.ClustersV1beta1Interface
}

// TestRegistration runs the tests that share a hub, each in a workspace of its own. The hub has the rights that the chart gives it.
func TestRegistration(t *testing.T) {
	sample.Long(t)
	s := &stage{Stage: testenv.EmptyStage(t)}
	s.Hub.NeedsMutatingPolicies(t)
	s.start(t, s.Hub.InstallChart(t, map[string]any{"clusternet": map[string]any{"enabled": true}, "bootstrap": map[string]any{"enabled": false}}))
	workspaces := map[string]string{}
	for _, name := range []string{"a bootstrap token of Kubernetes", "an agent that returns where it may"} {
		workspaces[name] = s.Hub.Namespace(t)
	}
	settings := s.Hub.Reachable()
	settings["clusternet"] = config.ClusternetAgents{
		BootstrapTokens:   []config.BootstrapTokenUse{{ID: mappedID, Namespace: workspaces["a bootstrap token of Kubernetes"], Token: "edge"}},
		ReentryNamespaces: []string{workspaces["an agent that returns where it may"]},
	}
	s.Hub.Configure(t, settings)
	for name, test := range map[string]func(*testing.T, *stage){
		"the life of an agent":                  testLife,
		"a held identity":                       testHeldIdentity,
		"the creator":                           testCreatorIsRecorded,
		"a quarantine":                          testQuarantine,
		"a printed Secret":                      testPrintedSecret,
		"a bootstrap token of Kubernetes":       testBootstrapToken,
		"agents of mode Dual, with node labels": testDualAgentsWithNodeLabels,
		"an agent that waits for a person":      testWaitsForAPerson,
		"restarts of an agent":                  testRestarts,
		"an agent that returns":                 testReturnAfterAnOutage,
		"an agent that returns where it may":    testReentry,
		"a deleted ManagedCluster":              testManagedClusterMadeAgain,
		"a silent agent":                        testSilentAgent,
		"a deleted Cluster":                     testDeletedCluster,
		"a move to Muster":                      testMoveToMuster,
		"two leaders":                           testTwoLeaders,
		"the defects of the original":           testDefectsOfClusternetsHub,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := *s.Stage
			if own.Namespace = workspaces[name]; own.Namespace == "" {
				own.Namespace = s.Hub.Namespace(t)
			}
			test(t, &stage{Stage: &own, admin: s.admin})
		})
	}
}

func withClusternet(o *muster.Options) { o.Clusternet = true }

// start starts the hub, and waits until the API server applies its policies.
func (s *stage) start(t *testing.T, change ...func(*muster.Options)) {
	t.Helper()
	s.startHub(t, change...)
	s.Hub.AwaitClusternetAdmission(t)
}

func (s *stage) startHub(t *testing.T, change ...func(*muster.Options)) {
	t.Helper()
	s.Running = s.Hub.Hub(t, append(change, withClusternet)...)
	clients, err := versioned.NewForConfig(s.Hub.RESTConfig())
	require.NoError(t, err)
	s.admin = clients.ClustersV1beta1()
}

// user is a client with a bearer token.
type user struct {
	clusternetclient.ClustersV1beta1Interface
	kubernetes kubernetes.Interface
}

func (s *stage) as(t *testing.T, token string) user {
	t.Helper()
	config := rest.AnonymousClientConfig(s.Hub.RESTConfig())
	config.BearerToken, config.QPS = token, -1
	clients, err := versioned.NewForConfig(config)
	require.NoError(t, err)
	core, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return user{ClustersV1beta1Interface: clients.ClustersV1beta1(), kubernetes: core}
}

// request creates the request of an agent as soon as the token has the right, and waits until the API server serves a new kind.
func (u user) request(t *testing.T, id string, labels map[string]string) *v1beta1.ClusterRegistrationRequest {
	t.Helper()
	var created *v1beta1.ClusterRegistrationRequest
	testenv.Eventually(t, func() (bool, string) {
		var err error
		created, err = u.ClusterRegistrationRequests().Create(t.Context(), &v1beta1.ClusterRegistrationRequest{
			ObjectMeta: metav1.ObjectMeta{Name: v1beta1.RequestPrefix + id},
			Spec:       v1beta1.ClusterRegistrationRequestSpec{ClusterID: id, ClusterName: "edge", ClusterLabels: labels},
		}, metav1.CreateOptions{})
		return err == nil, "creating the request: " + errorText(err)
	})
	return created
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// approved waits until the agent can read that its request is approved.
func (u user) approved(t *testing.T, id string) *v1beta1.ClusterRegistrationRequest {
	t.Helper()
	var got *v1beta1.ClusterRegistrationRequest
	testenv.Eventually(t, func() (bool, string) {
		var err error
		got, err = u.ClusterRegistrationRequests().Get(t.Context(), v1beta1.RequestPrefix+id, metav1.GetOptions{})
		return err == nil && got.Status.Result == v1beta1.ResultApproved, errorText(err)
	})
	return got
}

// says waits until the request has this result and a message that contains the text.
func (s *stage) says(t *testing.T, id, result, text string) {
	t.Helper()
	testenv.EventuallyIs(t, s.admin.ClusterRegistrationRequests().Get, v1beta1.RequestPrefix+id, func(r *v1beta1.ClusterRegistrationRequest) (bool, string) {
		require.Empty(t, r.Status.DedicatedToken)
		return r.Status.Result == result && len(r.Status.ErrorMessage) > 0 && contains(r.Status.ErrorMessage, text), r.Status.Result + " " + r.Status.ErrorMessage
	})
}

// beat sends a heartbeat as an agent does: it lists its ManagedCluster and puts the whole object.
func (u user) beat(t *testing.T, namespace, id string, status v1beta1.ManagedClusterStatus) {
	t.Helper()
	testenv.Eventually(t, func() (bool, string) {
		list, err := u.ManagedClusters(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: v1beta1.ClusterIDLabel + "=" + id})
		if err != nil || len(list.Items) != 1 {
			return false, "listing ManagedClusters: " + errorText(err)
		}
		member := list.Items[0]
		member.Status = status
		member.Status.LastObservedTime = metav1.Now()
		member.Status.Conditions = []metav1.Condition{{
			Type: v1beta1.ConditionReady, Status: metav1.ConditionTrue, Reason: "ManagedClusterReady", Message: "managed cluster is ready.",
			LastTransitionTime: metav1.Now(),
		}}
		_, err = u.ManagedClusters(namespace).UpdateStatus(t.Context(), &member, metav1.UpdateOptions{})
		return err == nil, "putting the status: " + errorText(err)
	})
}

func newID() string { return string(uuid.NewUUID()) }

// decide approves or denies a request in place of a user.
func (s *stage) decide(t *testing.T, request, decision string) {
	t.Helper()
	testenv.Merge(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Patch, request, `{"status":{"approval":{"decision":"`+decision+`"}}}`, "status")
}

func manual() fleet.ClusterRegistrationTokenSpec {
	return fleet.ClusterRegistrationTokenSpec{Approval: fleet.ApprovalManual}
}

// tokenUser creates a ClusterRegistrationToken and returns the user name of its ServiceAccount.
func (s *stage) tokenUser(t *testing.T) string {
	t.Helper()
	s.Token(t, "tok")
	token := s.ReadyToken(t, "tok")
	return registration.AccountUser(s.Namespace, registration.TokenServiceAccount(token.Name, string(token.UID)))
}
