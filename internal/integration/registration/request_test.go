package registration

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/muster-fleet/muster/internal/testenv"
	fleet "github.com/muster-fleet/muster/pkg/apis/fleet.cattle.io/v1alpha1"
	"github.com/muster-fleet/muster/pkg/registration"
)

var sentLabels = map[string]string{
	"env": "prod", "example.com/team": "a",
	"fleet.cattle.io/created-by-agent-pod":      "fleet-agent-0",
	"fleet.cattle.io/cluster":                   "somebody-else",
	"fleet.cattle.io/managed":                   "true",
	"fleet.cattle.io/cluster-management":        "mine",
	"management.cattle.io/cluster-display-name": "somebody-else",
	"management.cattle.io/anything":             "x",
	"not a label":                               "x",
}

func TestAnUnknownClientIDGetsAClusterWithTheLabelsItMayHave(t *testing.T) {
	s := newStage(t)
	values := s.Token(t, "tok")
	request := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "edge-6", ClientRandom: "r" + s.Namespace, ClusterLabels: sentLabels})
	request, _ = s.Hub.Granted(t, values, request)

	sum := sha256.Sum256([]byte("edge-6"))
	name := "cluster-" + hex.EncodeToString(sum[:])[:12]
	assert.Equal(t, name, request.Status.ClusterName)
	cluster := s.Cluster(t, name)
	assert.Equal(t, "edge-6", cluster.Spec.ClientID)
	assert.Equal(t, map[string]string{
		"fleet.cattle.io/cluster":              name,
		"env":                                  "prod",
		"example.com/team":                     "a",
		"fleet.cattle.io/created-by-agent-pod": "fleet-agent-0",
	}, cluster.Labels)
	granted := testenv.Condition(request.Status.Conditions, fleet.ConditionGranted)
	assert.Contains(t, granted, "True Granted")
	assert.Contains(t, granted, "management.cattle.io/anything", "the agent is told which labels it did not get")
}

func TestLabelsOfAgentsAreIgnoredFromTheMomentTheConfigurationSaysSo(t *testing.T) {
	s := newStage(t)
	values := s.Token(t, "tok")
	settings := s.Hub.Reachable()
	settings["ignoreClusterRegistrationLabels"] = true
	s.Hub.Configure(t, settings)

	// The hub, which is not restarted, takes a moment to hear of it: agents come until one finds it in force.
	attempt := 0
	testenv.Eventually(t, func() (bool, string) {
		attempt++
		clientID := "quiet-" + time.Duration(attempt).String()
		request := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: clientID, ClientRandom: "r" + s.Namespace, ClusterLabels: sentLabels})
		request, _ = s.Hub.Granted(t, values, request)
		labels := s.Cluster(t, request.Status.ClusterName).Labels
		return len(labels) == 1 && labels["fleet.cattle.io/cluster"] == request.Status.ClusterName, "the Cluster still got labels of its agent"
	})
}

func TestAKnownClientIDRegistersForItsPreparedCluster(t *testing.T) {
	s := newStage(t)
	prepared := s.CreateCluster(t, &fleet.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "prepared", Labels: map[string]string{"mine": "yes"}},
		Spec:       fleet.ClusterSpec{ClientID: "known"},
	})
	values := s.Token(t, "tok")
	request := s.Hub.Request(t, values, fleet.ClusterRegistrationSpec{ClientID: "known", ClientRandom: "r" + s.Namespace, ClusterLabels: sentLabels})
	request, _ = s.Hub.Granted(t, values, request)

	assert.Equal(t, "prepared", request.Status.ClusterName)
	assert.True(t, request.Status.Granted)
	assert.Equal(t, []metav1.OwnerReference{{
		APIVersion: "fleet.cattle.io/v1alpha1", Kind: "Cluster", Name: "prepared", UID: prepared.UID,
	}}, request.OwnerReferences)
	assert.Equal(t, map[string]string{"mine": "yes"}, s.Cluster(t, "prepared").Labels, "labels are taken only at creation")
	testenv.RequireGone(t, s.Hub.Fleet.Clusters(s.Namespace).Get, "Cluster", registration.ClusterName("known"))
}

func TestTheCredentialSecretIsAsAgentsExpectIt(t *testing.T) {
	s := newStage(t)
	r := s.Register(t, s.Token(t, "tok"), "client", "random")
	cluster := r.Request.Status.ClusterName

	sum := sha256.Sum256([]byte("client" + "random" + s.Namespace))
	assert.Equal(t, "c-"+hex.EncodeToString(sum[:])[:61], r.Secret.Name)
	assert.Equal(t, testenv.RegistrationNamespace, r.Secret.Namespace)
	assert.Equal(t, "fleet.cattle.io/agent-credential", string(r.Secret.Type))
	assert.Equal(t, map[string]string{"fleet.cattle.io/cluster": cluster, "fleet.cattle.io/managed": "true"}, r.Secret.Labels)
	assert.Equal(t, []string{"clusterName", "clusterNamespace", "deploymentNamespace", "systemNamespace", "token"}, keysOf(r.Secret.Data))
	assert.NotEmpty(t, r.Bearer())
	assert.Equal(t, registration.ClusterNamespace(s.Namespace, cluster), r.ClusterNamespace())
	assert.Equal(t, r.ClusterNamespace(), s.Cluster(t, cluster).Status.Namespace)
	assert.Equal(t, s.Namespace, string(r.Secret.Data["clusterNamespace"]))
	assert.Equal(t, cluster, string(r.Secret.Data["clusterName"]))
	assert.Equal(t, "cattle-fleet-system", string(r.Secret.Data["systemNamespace"]))
	for _, value := range r.Secret.Annotations {
		assert.NotContains(t, value, r.Bearer()[:20], "no part of the token is in an annotation")
	}
}

func TestTheCredentialMayDoWhatAnAgentNeedsAndNothingElse(t *testing.T) {
	s := newStage(t)
	values := s.Token(t, "tok")
	r := s.Register(t, values, "client-rights", "random")
	neighbour := s.Register(t, values, "client-neighbour", "random")
	cluster, own := r.Request.Status.ClusterName, r.ClusterNamespace()

	testenv.RequireRights(t, s.Hub, r.Bearer(), own, "get,list,watch bundledeployments", "update,patch bundledeployments/status")
	testenv.RequireRights(t, s.Hub, r.Bearer(), s.Namespace, "patch clusters/status "+cluster)
	for _, elsewhere := range []string{neighbour.ClusterNamespace(), testenv.RegistrationNamespace, "cattle-fleet-system", "default", "kube-system"} {
		testenv.RequireRights(t, s.Hub, r.Bearer(), elsewhere)
	}
	testenv.RequireMay(t, s.Hub, r.Bearer(),
		testenv.To("list", "bundledeployments.fleet.cattle.io", own, ""),
		testenv.To("watch", "bundledeployments.fleet.cattle.io", own, ""),
		testenv.To("patch", "bundledeployments.fleet.cattle.io/status", own, "any"),
		testenv.To("patch", "clusters.fleet.cattle.io/status", s.Namespace, cluster),
	)
	testenv.RequireMayNot(t, s.Hub, r.Bearer(),
		testenv.To("get", "clusters.fleet.cattle.io", s.Namespace, cluster),
		testenv.To("update", "clusters.fleet.cattle.io/status", s.Namespace, cluster),
		testenv.To("patch", "clusters.fleet.cattle.io", s.Namespace, cluster),
		testenv.To("patch", "clusters.fleet.cattle.io/status", s.Namespace, neighbour.Request.Status.ClusterName),
		testenv.To("list", "bundledeployments.fleet.cattle.io", neighbour.ClusterNamespace(), ""),
		testenv.To("get", "secrets", neighbour.ClusterNamespace(), "any"),
		testenv.To("list", "contents.fleet.cattle.io", "", ""),
		testenv.To("create", "bundledeployments.fleet.cattle.io", own, ""),
		testenv.To("update", "bundledeployments.fleet.cattle.io", own, "any"),
		testenv.To("delete", "bundledeployments.fleet.cattle.io", own, "any"),
		testenv.To("get", "contents.fleet.cattle.io", "", "any"),
		testenv.To("get", "secrets", own, "any"),
		testenv.To("get", "configmaps", own, "any"),
		testenv.To("list", "secrets", own, ""),
		testenv.To("list", "configmaps", own, ""),
		testenv.To("create", "clusterregistrations.fleet.cattle.io", s.Namespace, ""),
		testenv.To("get", "secrets", testenv.RegistrationNamespace, r.Secret.Name),
		testenv.To("create", "serviceaccounts/token", own, r.Account()),
		testenv.To("get", "namespaces", "", own),
	)
	s.RequireHeartbeat(t, r, time.Now())
}

func TestTheTokenMayReadTheOneCredentialItWasAskedForWith(t *testing.T) {
	s := newStage(t)
	mine, other := s.Token(t, "mine"), s.Token(t, "other")
	r := s.Register(t, mine, "client-a", "random-a")
	foreign := s.Register(t, other, "client-b", "random-b")

	testenv.RequireRights(t, s.Hub, mine.Token, testenv.RegistrationNamespace, "get secrets "+r.Secret.Name)
	testenv.RequireRights(t, s.Hub, other.Token, testenv.RegistrationNamespace, "get secrets "+foreign.Secret.Name)
	testenv.RequireRights(t, s.Hub, mine.Token, r.ClusterNamespace())

	secrets := s.Hub.ClientFor(t, mine.Token).Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace)
	_, err := secrets.Get(t.Context(), r.Secret.Name, metav1.GetOptions{})
	require.NoError(t, err)
	_, err = secrets.Get(t.Context(), foreign.Secret.Name, metav1.GetOptions{})
	assert.True(t, apierrors.IsForbidden(err), "%v", err)
	testenv.RequireMayNot(t, s.Hub, mine.Token,
		testenv.To("list", "secrets", testenv.RegistrationNamespace, ""),
		testenv.To("watch", "secrets", testenv.RegistrationNamespace, r.Secret.Name),
		testenv.To("delete", "secrets", testenv.RegistrationNamespace, r.Secret.Name),
		testenv.To("patch", "secrets", testenv.RegistrationNamespace, r.Secret.Name),
	)
}

func TestASecondRegistrationMakesTheFirstWorthless(t *testing.T) {
	s := newStage(t)
	values := s.Token(t, "tok")
	first := s.Register(t, values, "twice", "random-1")
	testenv.RequireMay(t, s.Hub, first.Bearer(), testenv.To("list", "bundledeployments.fleet.cattle.io", first.ClusterNamespace(), ""))

	values = s.Hub.Token(t, s.Namespace, "own", fleet.ClusterRegistrationTokenSpec{ClientIDs: []string{"twice"}}) // the token of that Cluster
	second := s.Register(t, values, "twice", "random-2")

	assert.Equal(t, first.Request.Status.ClusterName, second.Request.Status.ClusterName)
	assert.Equal(t, first.ClusterNamespace(), second.ClusterNamespace())
	s.requireRegistrationGone(t, first)
	testenv.RequireUnauthorized(t, s.Hub, first.Bearer())
	testenv.RequireMay(t, s.Hub, second.Bearer(), testenv.To("list", "bundledeployments.fleet.cattle.io", second.ClusterNamespace(), ""))
	testenv.RequireRights(t, s.Hub, values.Token, testenv.RegistrationNamespace, "get secrets "+second.Secret.Name)
}

func TestACredentialSecretIsTakenFromTheHubAfterFortyMinutes(t *testing.T) {
	s := newStage(t)
	r := s.Register(t, s.Token(t, "tok"), "forty", "random")
	s.Stop(t)
	secrets := s.Hub.Kubernetes.CoreV1().Secrets(testenv.RegistrationNamespace)

	young := s.Hub.Hub(t, testenv.Ahead(39*time.Minute))
	s.AwaitWork(t, "marker") // and so whatever the hub had to do at its start
	testenv.RequireThere(t, secrets.Get, r.Secret.Name)
	young.Stop(t)

	s.Hub.Hub(t, testenv.Ahead(41*time.Minute))
	testenv.RequireGone(t, secrets.Get, "Secret", r.Secret.Name)
	testenv.RequireMay(t, s.Hub, r.Bearer(), testenv.To("list", "bundledeployments.fleet.cattle.io", r.ClusterNamespace(), ""))
	testenv.RequireThere(t, s.Hub.Fleet.ClusterRegistrations(s.Namespace).Get, r.Request.Name)
}
