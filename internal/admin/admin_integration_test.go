package admin

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/muster-fleet/muster/internal/controlplane"
	"github.com/muster-fleet/muster/internal/testenv/sample"
	"github.com/muster-fleet/muster/internal/testenv/withkinds"
	"github.com/muster-fleet/muster/internal/view"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	fleetclient "github.com/muster-fleet/muster/pkg/generated/clientset/versioned/typed/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

func TestMain(m *testing.M) { os.Exit(controlplane.RunTests(m)) }

// quietHub has the kinds of a hub and no controllers. Each test has a namespace of its own and writes what a hub would write.
func quietHub(t *testing.T) (*Hub, string) {
	t.Helper()
	hub, err := Connect(withkinds.Shared(t).RESTConfig())
	require.NoError(t, err)
	created, err := hub.Kubernetes.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ws-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	return hub, created.Name
}

// ask creates a request with the status that a hub would write.
func (h *Hub) ask(t *testing.T, namespace, name, clientID string, status corev1.ConditionStatus, reason string) *fleet.ClusterRegistration {
	t.Helper()
	requests := h.Fleet.ClusterRegistrations(namespace)
	created, err := requests.Create(t.Context(), &fleet.ClusterRegistration{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: "r"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	created.Status.Conditions = conditions(fleet.ConditionGranted, status, reason)
	created, err = requests.UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
	require.NoError(t, err)
	return created
}

func TestFindRequest(t *testing.T) {
	sample.Long(t)
	hub, namespace := quietHub(t)
	const no, unknown = corev1.ConditionFalse, corev1.ConditionUnknown
	hub.ask(t, namespace, "waiting", "a", unknown, fleet.ReasonWaitingForApproval)
	hub.ask(t, namespace, "expired", "a", no, fleet.ReasonTokenNotFound)
	hub.ask(t, namespace, "busy", "a", unknown, fleet.ReasonWaitingForCluster)
	hub.ask(t, namespace, "done", "a", corev1.ConditionTrue, fleet.ReasonGranted)
	hub.ask(t, namespace, "taken", "b", no, fleet.ReasonClientIDInUse)
	hub.ask(t, namespace, "denied", "b", no, fleet.ReasonDenied)
	_, err := hub.Fleet.Clusters(namespace).Create(t.Context(), &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "prepared"}, Spec: fleet.ClusterSpec{ClientID: "b"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	// Intruders choose the names of their requests.
	for _, cluster := range []string{"west", "north", "south"} {
		_, err := hub.Fleet.Clusters(namespace).Create(t.Context(), &fleet.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: cluster}, Spec: fleet.ClusterSpec{ClientID: "id-of-" + cluster},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	hub.ask(t, namespace, "reinstalled", "id-of-west", no, fleet.ReasonClientIDInUse)
	hub.ask(t, namespace, "west", "of-an-intruder", unknown, fleet.ReasonWaitingForApproval)
	hub.ask(t, namespace, "north", "of-an-intruder", unknown, fleet.ReasonWaitingForApproval)
	hub.ask(t, namespace, "south", "id-of-south", unknown, fleet.ReasonWaitingForApproval)
	for name, test := range map[string]struct{ want, says string }{
		"prepared": {"", "2 requests have the name of Cluster " + namespace + "/prepared or are about it: look at them with `muster -n " + namespace +
			" requests -o wide` and name one: denied, taken"},
		"west":                        {"", "name one: reinstalled, request/west"},
		"reinstalled":                 {"reinstalled", ""},
		"request/west":                {"west", ""},
		"request/absent":              {"", "ClusterRegistration " + namespace + "/absent: "},
		"north":                       {"", "A request about another Cluster has its name"},
		"south":                       {"south", ""},
		"waiting":                     {"waiting", ""},
		"expired":                     {"expired", ""},
		registration.ClusterName("a"): {"waiting", ""},
		registration.ClusterName("b"): {"", "2 requests have the name of Cluster"},
		registration.ClusterName("c"): {"", "there is no ClusterRegistration"},
		"nobody":                      {"", "`muster requests -A` lists all requests"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := hub.FindRequest(t.Context(), namespace, name)
			if test.want == "" {
				require.ErrorContains(t, err, test.says)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, found.Name)
		})
	}

	t.Run("without the right to read Clusters", func(t *testing.T) {
		approver := &Hub{Kubernetes: hub.Kubernetes, Fleet: clustersForbidden{hub.Fleet}}
		for name, want := range map[string]string{registration.ClusterName("a"): "waiting", "request/north": "north"} {
			found, err := approver.FindRequest(t.Context(), namespace, name)
			require.NoError(t, err, name)
			require.Equal(t, want, found.Name)
		}
		_, err := approver.FindRequest(t.Context(), namespace, "north")
		require.ErrorContains(t, err, "you have no right to read a Cluster "+namespace+"/north")
		require.ErrorContains(t, err, "to decide about it, name it request/north")
	})
}

// clustersForbidden refuses to read Clusters.
type clustersForbidden struct {
	fleetclient.FleetV1alpha1Interface
}

func (c clustersForbidden) Clusters(namespace string) fleetclient.ClusterInterface {
	return forbiddenGet{c.FleetV1alpha1Interface.Clusters(namespace)}
}

type forbiddenGet struct {
	fleetclient.ClusterInterface
}

func (forbiddenGet) Get(_ context.Context, name string, _ metav1.GetOptions) (*fleet.Cluster, error) {
	return nil, apierrors.NewForbidden(fleet.SchemeGroupVersion.WithResource("clusters").GroupResource(), name, errors.New("no right"))
}

func TestDecide(t *testing.T) {
	hub, namespace := quietHub(t)
	seen := hub.ask(t, namespace, "seen", "a", corev1.ConditionUnknown, fleet.ReasonWaitingForApproval)
	requests := hub.Fleet.ClusterRegistrations(namespace)
	require.NoError(t, requests.Delete(t.Context(), "seen", metav1.DeleteOptions{}))
	approve := fleet.RegistrationApproval{Decision: fleet.DecisionApproved}
	require.ErrorContains(t, hub.Decide(t.Context(), seen, approve), "was deleted, or replaced by another with the same name")

	another := hub.ask(t, namespace, "seen", "b", corev1.ConditionUnknown, fleet.ReasonWaitingForApproval)
	require.ErrorContains(t, hub.Decide(t.Context(), seen, approve), "was deleted, or replaced by another with the same name")
	latest, err := requests.Get(t.Context(), "seen", metav1.GetOptions{})
	require.NoError(t, err)
	require.Nil(t, latest.Status.Approval)

	require.NoError(t, hub.Decide(t.Context(), another, fleet.RegistrationApproval{Decision: fleet.DecisionDenied, Message: "no"}))
	latest, err = requests.Get(t.Context(), "seen", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, &fleet.RegistrationApproval{Decision: fleet.DecisionDenied, Message: "no"}, latest.Status.Approval)
	require.ErrorContains(t, hub.Decide(t.Context(), another, fleet.RegistrationApproval{Decision: "Maybe"}), "Unsupported value")
}

func TestRotateAnOfflineImport(t *testing.T) {
	hub, namespace := quietHub(t)
	disconnected := append(conditions(fleet.ConditionRegistered, corev1.ConditionTrue, fleet.ReasonRegistered),
		conditions(fleet.ConditionConnected, corev1.ConditionFalse, fleet.ReasonDisconnected)...)
	connected := append(conditions(fleet.ConditionRegistered, corev1.ConditionTrue, fleet.ReasonRegistered),
		conditions(fleet.ConditionConnected, corev1.ConditionTrue, fleet.ReasonConnected)...)
	for name, row := range map[string]struct {
		before string
		after  fleet.AgentStatus
		wants  string
	}{
		"of-muster":                          {"request-a", fleet.AgentStatus{Registration: "request-b", Version: "v1"}, "request-b"},
		"with-a-credential-of-fleet":         {"", fleet.AgentStatus{Registration: "request-b", Version: "v1"}, "request-b"},
		"of-fleet":                           {"", fleet.AgentStatus{}, ""},
		"still-with-the-credential-of-fleet": {"", fleet.AgentStatus{Version: "v1"}, "gave up"},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := hub.Fleet.Clusters(namespace)
			cluster, err := clusters.Create(t.Context(), &fleet.Cluster{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: fleet.ClusterSpec{ClientID: name, KubeConfigSecret: "east-kubeconfig"},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			cluster.Status.Agent = fleet.AgentStatus{LastSeen: metav1.Now(), Registration: row.before}
			cluster.Status.Conditions, cluster.Status.AgentDeployedGeneration = disconnected, new(int64)
			cluster, err = clusters.UpdateStatus(t.Context(), cluster, metav1.UpdateOptions{})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			request, err := hub.Rotate(ctx, cluster, nil, func(v view.Cluster) {
				if v.State == view.StateRegistered { // written below
					if row.wants == "gave up" {
						cancel()
					}
					return
				}
				assert.Equal(t, view.StateOffline, v.State)
				latest, err := clusters.Get(ctx, name, metav1.GetOptions{})
				if !assert.NoError(t, err) || !assert.Equal(t, int64(1), latest.Spec.RedeployAgentGeneration) {
					cancel()
					return
				}
				latest.Status.Agent, latest.Status.Conditions, latest.Status.AgentDeployedGeneration = row.after, connected, ptr.To(int64(1))
				latest.Status.Agent.LastSeen = metav1.Now()
				_, err = clusters.UpdateStatus(ctx, latest, metav1.UpdateOptions{})
				assert.NoError(t, err)
			})
			if row.wants == "gave up" {
				require.ErrorContains(t, err, "stopped waiting for Cluster")
				return
			}
			require.NoError(t, err)
			require.Equal(t, row.wants, request)
		})
	}
}

func TestRevoke(t *testing.T) {
	hub, namespace := quietHub(t)
	cluster, err := hub.Fleet.Clusters(namespace).Create(t.Context(), &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "east"}, Spec: fleet.ClusterSpec{ClientID: "a"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	own := registration.ClusterNamespace(namespace, "east")
	_, err = hub.Kubernetes.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own}}, metav1.CreateOptions{})
	require.NoError(t, err)
	accounts := hub.Kubernetes.CoreV1().ServiceAccounts(own)
	for name, labels := range map[string]map[string]string{"agent": {fleet.ManagedLabel: fleet.ManagedValue}, "somebody": nil} {
		_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: labels, Annotations: map[string]string{fleet.ClusterRegistrationAnnotation: "request-1"},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	owner := []metav1.OwnerReference{{APIVersion: fleet.SchemeGroupVersion.String(), Kind: "Cluster", Name: "east", UID: cluster.UID}}
	usedUp := fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"a"}, UsageLimit: ptr.To[int32](1)}
	for name, token := range map[string]*fleet.ClusterRegistrationToken{
		"import-token-east": {ObjectMeta: metav1.ObjectMeta{OwnerReferences: owner}},
		"import-token-west": {ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Cluster", Name: "west", UID: "w"}}}},
		"for-all":           {},
		"for-two":           {Spec: fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"a", "b"}}},
		"for-another":       {Spec: fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"b"}}},
		"again":             {Spec: fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"a"}}},
		"used-up":           {Spec: usedUp, Status: fleet.ClusterRegistrationTokenStatus{Uses: 1}},
	} {
		token.Name = name
		created, err := hub.Fleet.ClusterRegistrationTokens(namespace).Create(t.Context(), token, metav1.CreateOptions{})
		require.NoError(t, err)
		created.Status.Uses = token.Status.Uses
		_, err = hub.Fleet.ClusterRegistrationTokens(namespace).UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	tokens := func() (names []string) {
		list, err := hub.Fleet.ClusterRegistrationTokens(namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, token := range list.Items {
			names = append(names, token.Name)
		}
		return names
	}

	revoked, err := hub.Revoke(t.Context(), namespace, "east", false)
	require.NoError(t, err)
	require.Equal(t, Revocation{Requests: []string{"request-1"}, Tokens: []string{"again"}}, revoked)
	require.Equal(t, []string{"again", "for-all", "for-another", "for-two", "import-token-west", "used-up"}, tokens())
	_, err = accounts.Get(t.Context(), "somebody", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = accounts.Get(t.Context(), "agent", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)
	revoked, err = hub.Revoke(t.Context(), namespace, "east", true)
	require.NoError(t, err)
	require.Empty(t, revoked)
	require.Equal(t, []string{"for-all", "for-another", "for-two", "import-token-west", "used-up"}, tokens())
}
